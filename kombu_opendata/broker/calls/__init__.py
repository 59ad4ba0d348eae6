"""The handlers of clients' messages."""
