"""Shared parts of an instance's calls and maintenance: queues, leases, sessions, delivery, commits, replies."""
