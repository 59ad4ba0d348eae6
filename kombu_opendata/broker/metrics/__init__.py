"""Metrics for Prometheus: names, figures, text format, HTTP server."""
