"""The client: all groups of calls together."""

from __future__ import annotations

from .queues import AsyncQueues


class AsyncQueueClient(AsyncQueues):
    """A client of a broker, for programs without Celery. Any number of tasks or threads may use one client."""
