"""Metrics that several reports share: of queues, of the last minutes, and of failures."""
