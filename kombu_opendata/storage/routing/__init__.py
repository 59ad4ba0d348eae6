"""Routing of messages to queues by exchanges, bindings and filters."""
