"""History of messages and attempts: its index, and the lists, counts and look-ups over it.

See docs/rfcs/0007-history.md.
"""
