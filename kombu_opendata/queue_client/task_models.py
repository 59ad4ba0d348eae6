"""What the clients return about a task of Celery and its result: plain values, the same for both clients."""

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

#: what Celery's backends put before a task's id
RESULT_PREFIX = "celery-task-meta-"
#: every pickle since protocol 2 begins with this
_PICKLE = b"\x80"


@dataclass(frozen=True)
class TaskResult:
    """A result in the broker's store. A pickle is never loaded.

    Attributes:
        encoding: ``json``; or ``pickle``, ``unknown`` or ``too large`` to display, and then everything else is empty.
        size: of the stored result, in bytes.
        state: Celery's: ``SUCCESS``, ``FAILURE``, …
        value: what the task returned; of a failure, a mapping with ``exc_type`` and ``exc_message``.
        traceback: of a failure.
        date_done: as Celery wrote it.
    """

    encoding: str
    size: int
    state: str = ""
    value: Any = None
    traceback: str = ""
    date_done: str = ""


def result_of(stored: bytes) -> TaskResult:
    """Return a result as it is stored."""
    limit = bodies.Budget.of_display().elements
    if bodies.json_elements(stored, limit) > limit:
        return TaskResult("too large", len(stored))
    try:
        found = revocation.decode(stored) if stored.startswith(revocation.MARK) else json.loads(stored)
        if bodies.is_deeper(found, bodies.MAX_DISPLAYED_DEPTH):
            return TaskResult("too large", len(stored))
        state, traceback, done = (str(found.get(name) or "") for name in ("status", "traceback", "date_done"))
        return TaskResult("json", len(stored), state, found.get("result"), traceback, done)
    except (ValueError, AttributeError, RecursionError):
        return TaskResult("pickle" if stored.startswith(_PICKLE) else "unknown", len(stored))


@dataclass(frozen=True)
class RelatedTask:
    """A task that another one started, or that runs another one again."""

    message_id: int
    task_id: str
    name: str


@dataclass(frozen=True)
class Task:
    """A task of Celery: its messages (more than one if it was retried), its attempts, its result.

    Attributes:
        id, name: Celery's; the name is empty if the message is no longer stored and it did not fail.
        state: ``available``, ``delayed``, ``in_flight``, ``running``, ``done`` or ``failed``, from its newest message;
            for a task that ended, what its last attempt reported, such as ``raised``; ``collected`` if nothing says.
        queues: where its newest message is.
        message_ids: its messages, the oldest first.
        args, kwargs: None if the body can't be displayed; ``arguments_note`` has the reason. A pickle is never loaded.
        content_type: of the body.
        headers: of the newest message, as texts.
        attempts: those that ended, the oldest first, with tracebacks if the user may read them.
        result: if the broker is its result backend and the user may read results.
        children: tasks that it started.
        failures: its failures that nobody has handled.
        handled: those that were run again or dismissed.
        again: the tasks that run it again.
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
    """Return the positional and named arguments of a task's message; or None for each, and why they can't be shown."""
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
    """The task of a message."""
    return RelatedTask(message.id, message.headers.get("id", ""), message.headers.get("task", ""))


def state_of(queues: tuple[QueueStatus, ...], attempts: tuple[AttemptInfo, ...]) -> str:
    """What a task does now, or how it ended."""
    for now in ("running", "in_flight", "available"):
        for one in queues:
            if one.status == now:
                return now
    last = attempts[-1] if attempts else None
    if last is not None and last.state:
        return last.state
    return next((one.status for one in queues), "collected")
