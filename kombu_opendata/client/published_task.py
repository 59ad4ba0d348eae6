"""The task whose message is about to be published, and where its result is to go.

Celery tells the result backend of a task right before it publishes the message, in the same thread, greenlet or asyncio
task. The backend notes it here; the transport compares ids.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple

from ..url import Place


class Awaited(NamedTuple):
    """A task, the brokers that its result backend uses, and what its message says if one of them gets it."""

    task_id: str
    places: frozenset[Place]
    result: tuple[str, str, int]  # see kombu_opendata.protocol.revocation


awaited: ContextVar[Awaited | None] = ContextVar("kombu_opendata_awaited", default=None)
