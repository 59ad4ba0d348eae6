"""History: what happened to messages and attempts, its index, and the lists and look-ups over them.

See docs/rfcs/0007-history.md.
"""
