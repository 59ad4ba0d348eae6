"""Payloads of messages: of new ones, in the cache, and in batch objects."""
