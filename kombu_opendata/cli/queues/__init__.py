"""Verbs about queues, and about the exchanges, bindings and filters that route to them."""
