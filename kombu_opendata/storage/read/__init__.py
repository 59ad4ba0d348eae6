"""Reads of what memory does not have: pages of queues, memberships, stored messages, the metadata log."""
