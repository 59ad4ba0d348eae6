"""Metrics for Prometheus: names, values, text format, HTTP server."""
