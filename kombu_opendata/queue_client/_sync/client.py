# Made by tools/unasync.py from ../_async/client.py: change that one, then run the script.
"""Queue client, which combines all groups of calls."""

from __future__ import annotations

from .broker_admin import Broker
from .queue_admin import Queues
from .reading import Reading
from .replaying import Replaying
from .sending import Sending
from .settling import Settling
from .tasks import Tasks
from .worker_control import Workers


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
    """Client of a broker for programs without Celery. Any number of tasks or threads may share a client."""
