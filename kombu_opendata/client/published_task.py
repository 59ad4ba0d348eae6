"""The task whose message is about to be published, and where its result goes.

Celery tells the result backend of a task right before it publishes the message, in the same thread, greenlet or asyncio
task. The backend notes the task here; the transport compares its id with that of the message.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple

from ..url import Place


class PublishedTask(NamedTuple):
    """A task, and what its message says of its result.

    Attributes:
        task_id: Celery's id of the task.
        places: the brokers that its result backend uses.
        result: the property of the message, if one of these brokers gets it, see kombu_opendata.protocol.revocation.
    """

    task_id: str
    places: frozenset[Place]
    result: tuple[str, str, int]


published_task: ContextVar[PublishedTask | None] = ContextVar("kombu_opendata_published_task", default=None)
