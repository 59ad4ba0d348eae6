"""Verbs about messages: send, peek, history, settled messages, replay."""
