"""Verbs about queues, and about exchanges, bindings and filters that fill them."""
