"""Metrics for Prometheus: figures, names, text, HTTP."""
