"""Task whose message is about to be published: the destination of its result, and the receiver of a conflict.

Celery calls the result backend immediately before it publishes the message of a task, in the same thread, greenlet or
asyncio task. The backend records the task here; the transport compares its id with that of the message.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple

from ..url import Place


class PublishedTask(NamedTuple):
    """Task with the result property of its message.

    Attributes:
        task_id: Celery's id of the task.
        places: the brokers that its result backend uses.
        result: the property of the message, if the message goes to one of these brokers, see
            kombu_opendata.protocol.revocation.
    """

    task_id: str
    places: frozenset[Place]
    result: tuple[str, str, int]


published_task: ContextVar[PublishedTask | None] = ContextVar("kombu_opendata_published_task", default=None)
#: called with the Celery id of the task (empty for another message) that holds the unique key of the published message
unique_conflict: ContextVar[Callable[[str], object] | None] = ContextVar("kombu_opendata_conflict", default=None)
