"""Payloads: new ones, cached ones, and those in batch objects."""
