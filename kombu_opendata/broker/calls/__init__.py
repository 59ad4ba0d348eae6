"""The handlers of the messages that clients send."""
