"""Queue client, which combines all groups of calls."""

from __future__ import annotations

from .broker_calls import Broker
from .queues import Queues
from .reading import Reading
from .replaying import Replaying
from .sending import Sending
from .settling import Settling
from .tasks import Tasks
from .worker_calls import Workers


class QueueClient(
    Sending,
    Reading,
    Settling,
    Tasks,
    Queues,
    Replaying,
    Workers,
    Broker,
):
    """Client of a broker for programs without Celery. Any number of threads may share a client."""
