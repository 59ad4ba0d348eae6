"""The client: all groups of calls together."""

from __future__ import annotations

from .history_queries import AsyncHistory
from .peeking import AsyncLooking
from .queue_admin import AsyncQueues
from .reading import AsyncReading
from .replaying import AsyncReplaying
from .sending import AsyncSending
from .settling import AsyncSettling
from .worker_control import AsyncWorkers


class AsyncQueueClient(
    AsyncSending, AsyncReading, AsyncSettling, AsyncLooking, AsyncHistory, AsyncQueues, AsyncReplaying, AsyncWorkers
):
    """A client of a broker, for programs without Celery. Any number of tasks or threads may use one client."""
