"""Handlers of clients' messages."""
