"""Queue client, which combines all groups of calls."""

from __future__ import annotations

from .broker_admin import AsyncBroker
from .queue_admin import AsyncQueues
from .reading import AsyncReading
from .replaying import AsyncReplaying
from .sending import AsyncSending
from .settling import AsyncSettling
from .tasks import AsyncTasks
from .worker_control import AsyncWorkers


class AsyncQueueClient(
    AsyncSending,
    AsyncReading,
    AsyncSettling,
    AsyncTasks,
    AsyncQueues,
    AsyncReplaying,
    AsyncWorkers,
    AsyncBroker,
):
    """Client of a broker for programs without Celery. Any number of tasks or threads may share a client."""
