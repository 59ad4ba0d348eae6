"""Models of Celery tasks and results that the clients return: plain values, the same for both clients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import BodyTooLarge
from ..protocol import revocation
from ..protocol.messages.failure_messages import FailureInfo
from ..protocol.messages.history_messages import AttemptInfo, MessageInfo, QueueStatus
from . import bodies
from .message_models import Message

#: prefix of a task's id in Celery's backends
RESULT_PREFIX = "celery-task-meta-"
#: every pickle since protocol 2 begins with this byte
_PICKLE = b"\x80"


@dataclass(frozen=True)
class TaskResult:
    """Result in the broker's store. A pickle is never loaded.

    Attributes:
        encoding: ``json``; or ``pickle``, ``unknown`` or ``too large`` to display, and then everything else is empty.
        size: the size of the stored result, in bytes.
        state: Celery's state: ``SUCCESS``, ``FAILURE``, …
        value: the return value of the task; for a failure, a mapping with ``exc_type`` and ``exc_message``.
        traceback: the traceback of a failure.
        date_done: the time of completion, as Celery wrote it.
    """

    encoding: str
    size: int
    state: str = ""
    value: Any = None
    traceback: str = ""
    date_done: str = ""


def result_of(stored: bytes) -> TaskResult:
    """Return the result from its stored bytes."""
    limit = bodies.Budget.of_display().elements
    if bodies.json_elements(stored, limit) > limit:
        return TaskResult("too large", len(stored))
    try:
        values = revocation.decode(stored) if stored.startswith(revocation.MARK) else json.loads(stored)
        if bodies.is_deeper(values, bodies.MAX_DISPLAYED_DEPTH):
            return TaskResult("too large", len(stored))
        state, traceback, done = (str(values.get(name) or "") for name in ("status", "traceback", "date_done"))
        return TaskResult("json", len(stored), state, values.get("result"), traceback, done)
    except (ValueError, AttributeError, RecursionError):
        return TaskResult("pickle" if stored.startswith(_PICKLE) else "unknown", len(stored))


@dataclass(frozen=True)
class RelatedTask:
    """Task that another one started, or that retries another one."""

    message_id: int
    task_id: str
    name: str


@dataclass(frozen=True)
class Task:
    """Celery task: its messages (more than one if it was retried), its attempts, its result.

    Attributes:
        id, name: Celery's id and name; the name is empty if the message is no longer stored and the task did not fail.
        state: ``available``, ``delayed``, ``in_flight``, ``running``, ``done`` or ``failed``, from its newest message;
            for a task that ended, the outcome of its last attempt, such as ``raised``; ``collected`` if it is unknown.
        queues: the queues of its newest message.
        message_ids: its messages, the oldest first.
        args, kwargs: None if the body can't be displayed; ``arguments_note`` has the reason. A pickle is never loaded.
        content_type: the content type of the body.
        headers: the headers of the newest message, as texts.
        attempts: its finished attempts, the oldest first, with tracebacks if the user may read them.
        result: its result, if the broker is its result backend and the user may read results.
        children: tasks that it started.
        failures: its unhandled failures.
        handled: its failures that were retried or dismissed.
        again: the tasks that retry it.
    """

    id: str
    name: str
    state: str
    queues: tuple[QueueStatus, ...]
    message_ids: tuple[int, ...]
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    content_type: str
    headers: Mapping[str, str]
    attempts: tuple[AttemptInfo, ...]
    result: TaskResult | None
    children: tuple[RelatedTask, ...]
    failures: tuple[FailureInfo, ...]
    handled: tuple[FailureInfo, ...]
    again: tuple[RelatedTask, ...] = field(default=())
    arguments_note: str = ""


def arguments_of(message: Message | None) -> tuple[list[Any] | None, dict[str, Any] | None, str]:
    """Return the positional and named arguments of a task's message, or None for each and the reason."""
    if message is None:
        return None, None, "The message is no longer stored."
    try:
        body = message.displayed()
    except BodyTooLarge as exc:
        return None, None, str(exc)
    match body:
        case [list(args), dict(kwargs), dict()]:
            return args, kwargs, ""
        case {"args": list(args), "kwargs": dict(kwargs)}:  # Celery's first protocol
            return args, kwargs, ""
    return None, None, f"The body is encoded as {message.content_type or 'something else'}, which is not loaded."


def related(message: MessageInfo) -> RelatedTask:
    """Return the task of a message."""
    return RelatedTask(message.id, message.headers.get("id", ""), message.headers.get("task", ""))


def state_of(queues: tuple[QueueStatus, ...], attempts: tuple[AttemptInfo, ...]) -> str:
    """Return the current state of a task, or its outcome."""
    for now in ("running", "in_flight", "available"):
        for status in queues:
            if status.status == now:
                return now
    last = attempts[-1] if attempts else None
    if last is not None and last.state:
        return last.state
    return next((status.status for status in queues), "collected")
