# Made by tools/unasync.py from ../_async/__init__.py: change that one, then run the script.
"""Queue client, with a mixin for each group of calls. The sync half is generated from the async half."""
