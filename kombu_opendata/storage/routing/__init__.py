"""Routing: exchanges, bindings and filters decide which queues get a message."""
