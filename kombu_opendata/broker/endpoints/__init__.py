"""The HTTP endpoints of a broker: metrics for Prometheus, probes, the list of queues."""
