"""Calls of the queue client: sending, reading, settling and peeking at messages; workers."""
