# Made by tools/unasync.py from ../_async/__init__.py: change that one, then run the script.
"""The queue client, one mixin a group of calls; the async half is the source of the sync half."""
