"""The client, which combines all groups of calls."""

from __future__ import annotations

from .history_queries import AsyncHistory
from .peeking import AsyncPeeking
from .queue_admin import AsyncQueues
from .reading import AsyncReading
from .replaying import AsyncReplaying
from .sending import AsyncSending
from .settling import AsyncSettling
from .worker_control import AsyncWorkers


class AsyncQueueClient(
    AsyncSending, AsyncReading, AsyncSettling, AsyncPeeking, AsyncHistory, AsyncQueues, AsyncReplaying, AsyncWorkers
):
    """A client of a broker for programs without Celery. Any number of tasks or threads may share a client."""
