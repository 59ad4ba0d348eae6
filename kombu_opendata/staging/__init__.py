"""Staged batches: many messages that are written as one object beside the store, and committed together (RFC 0008)."""
