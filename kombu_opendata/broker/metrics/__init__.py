"""Metrics of a broker: their names and text format, the recent past of queues and clients."""
