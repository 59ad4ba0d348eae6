"""Reads from the store: pages of queues, membership of messages in queues, stored messages, the metadata log."""
