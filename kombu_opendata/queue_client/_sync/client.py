# Made by tools/unasync.py from ../_async/client.py: change that one, then run the script.
"""The client, which combines all groups of calls."""

from __future__ import annotations

from .history_queries import History
from .peeking import Peeking
from .queue_admin import Queues
from .reading import Reading
from .replaying import Replaying
from .sending import Sending
from .settling import Settling
from .worker_control import Workers


class QueueClient(
    Sending, Reading, Settling, Peeking, History, Queues, Replaying, Workers
):
    """A client of a broker for programs without Celery. Any number of tasks or threads may share a client."""
