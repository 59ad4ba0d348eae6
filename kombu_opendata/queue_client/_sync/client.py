# Made by tools/unasync.py from ../_async/client.py: change that one, then run the script.
"""The client: all groups of calls together."""

from __future__ import annotations

from .queues import Queues


class QueueClient(Queues):
    """A client of a broker, for programs without Celery. Any number of tasks or threads may use one client."""
