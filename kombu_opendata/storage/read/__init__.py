"""Reads from the store: pages of queues, which messages a queue has, stored messages, the metadata log."""
