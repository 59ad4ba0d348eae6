"""Payloads: of new messages, in the cache, and in batch objects."""
