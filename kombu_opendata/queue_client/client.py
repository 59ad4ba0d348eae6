"""Queue client, which combines all groups of calls."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from ..client.client_clock import ClientClock
from ..client.job_calls import JobCalls
from ..protocol.messages.message_base import Reply, Request
from .administration import Administration
from .metrics import QueueMetricsCalls
from .queues import QueueAdministration
from .replaying import Replaying
from .sending import MessageSending
from .settling import Settling
from .tasks import Tasks

P = ParamSpec("P")
T = TypeVar("T")


def _earlier_name(name: str, method: Callable[P, T]) -> Callable[P, T]:
    """Return a method under its name in earlier versions."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        warnings.warn(f"{name}() is now {method.__name__}()", DeprecationWarning, stacklevel=2)
        return method(*args, **kwargs)

    return call


class QueueClient(
    MessageSending, Settling, Tasks, JobCalls, QueueAdministration, QueueMetricsCalls, Replaying, Administration
):
    """Client of a broker for programs without Celery. Any number of threads may share a client.

    A call about a queue, an exchange, a message or a worker that does not exist raises :class:`.NotFound`, and one with
    a wrong argument :class:`.RequestError`.
    """

    def _request(self, message: Request[Reply]) -> Reply:
        return self.calls.call(message)

    def _clock(self) -> ClientClock:
        return self.connections.clock

    list_staged_jobs = _earlier_name("list_staged_jobs", JobCalls.list_jobs)
