"""Verbs about messages: send, peek, history, settled ones, replay."""
