"""Delay of the partition of a task's queue, for example after an API has answered 429 with Retry-After."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from celery import current_task

from ..errors import RequestError
from ..protocol.messages import DelayKey
from ..protocol.messages.message_base import moment
from ..queue_client.checks import milliseconds
from .task_requests import DELIVERED


def delay_key(seconds: float | timedelta) -> datetime | None:
    """Deliver no more messages of the current task's partition for a time; return its end.

    In a queue without partitions, the whole queue is delayed. Messages in flight stay, and the task continues: it
    usually raises ``self.retry()``. The delay survives a restart of the broker. A later end of an earlier delay stays.
    With 0 seconds, the delay is removed, and the result is None.

    Raises:
        RequestError: it is not called in a task, the task's broker is another package's, or the broker has no reports
            of tasks.
        NotFound: the queue has partitions, and the task's message has ended: its lease was lost.
    """
    delay_ms = milliseconds(seconds, "seconds")
    task: Any = current_task
    delivered = (task.request.properties or {}).get(DELIVERED) if task else None
    if delivered is None:
        raise RequestError("delay_key is for a task that this package's broker has delivered: call it within the task")
    queue, id = delivered
    with task.app.connection_or_acquire() as connection:
        return moment(connection.connection.call(DelayKey(0, queue, delay_ms, None, id)).until_ms)
