"""Queue client, which combines all groups of calls."""

from __future__ import annotations

from .administration import Administration
from .metrics import Metrics
from .queues import Queues
from .replaying import Replaying
from .sending import Sending
from .settling import Settling
from .tasks import Tasks


class QueueClient(Sending, Settling, Tasks, Queues, Metrics, Replaying, Administration):
    """Client of a broker for programs without Celery. Any number of threads may share a client."""
