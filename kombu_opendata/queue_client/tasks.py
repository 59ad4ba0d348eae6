"""Calls about a Celery task by its id, and its result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import AccessRefused, BodyTooLarge, MessageNotFound
from ..protocol import revocation
from ..protocol.messages import AttemptInfo, FailureInfo, GetResults, MessageInfo, QueueStatus
from . import body_codec
from .history import HistoryQueries
from .message_models import Message
from .reading import Reading

#: prefix of a task's id in Celery's backends
RESULT_PREFIX = "celery-task-meta-"
#: every pickle since protocol 2 begins with this byte
_PICKLE = b"\x80"
#: limit for the messages, attempts, children and failures of a task that are listed
_MOST = 100


@dataclass(frozen=True)
class TaskResult:
    """Result in the broker's store. A pickle is never loaded.

    Attributes:
        encoding: ``json``; or ``pickle``, ``unknown`` or ``too large`` (to display): then all attributes but the size
            are empty.
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


@dataclass(frozen=True)
class RelatedTask:
    """Task that another one started, or message that retries a task."""

    message_id: int
    task_id: str
    name: str


@dataclass(frozen=True)
class Task:
    """Celery task: its messages (more than one if it was retried), its attempts, its result.

    Attributes:
        id, name: Celery's id and name; the name is empty if the message is no longer stored and the task did not fail.
        state: the state of its newest message: ``available`` (ready), ``delayed``, ``in_flight``, ``running``, ``done``
            or ``failed``; for a task that ended, the outcome of its last attempt, such as ``raised``; ``collected`` if
            it is unknown.
        queues: the queues of its newest message.
        message_ids: its messages, the oldest first.
        args, kwargs: None if the body can't be displayed; ``arguments_note`` has the reason. A pickle is never loaded.
        content_type: the content type of the body.
        headers: the headers of the newest message, as texts.
        attempts: its finished attempts, the oldest first, with tracebacks if the user may read them.
        result: its result, if the broker is its result backend and the user may read results.
        children: tasks that it started.
        failures: its unhandled failures.
        handled: its failures that were retried or deleted.
        again: the messages that retry it.
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
    again: tuple[RelatedTask, ...] = ()
    arguments_note: str = ""


class Tasks(Reading, HistoryQueries):
    """Calls about single tasks."""

    def task(self, id: str | int) -> Task:
        """Return a task by Celery's id, or by the id of its message (an int), with its state, attempts and result.

        Raises:
            MessageNotFound: there is no such task, or it is no longer in the history.
            PreconditionFailed: the broker keeps no history.
        """
        if isinstance(id, int):
            id = self._task_of(id)
        page = self.list_messages(headers={"id": id}, order="asc", limit=_MOST)
        messages = [item for item in page.items if "task" in item.headers]
        attempts = self._attempts_of(id)
        if not messages and not attempts:
            text = f"no task {id!r}: check the id; the history forgets a task some time after it ended"
            raise MessageNotFound(text, task_id=id)
        newest = messages[-1] if messages else None
        message = self._message(newest)
        queues = newest.queues if newest is not None else ()
        handled = self.list_failures(task_ids=[id], handled=True, limit=_MOST).items
        failures = self.list_failures(task_ids=[id], limit=_MOST).items
        again = self._again(handled)
        names = (failure.task for failure in (*failures, *handled))  # if its messages are no longer stored
        name = newest.headers.get("task", "") if newest is not None else next(filter(None, names), "")
        args, kwargs, note = arguments_of(message)
        message_ids = [item.id for item in messages] or [item.message_id for item in attempts]
        return Task(
            id=id,
            name=name,
            state=_state_of(queues, attempts),
            queues=queues,
            message_ids=tuple(dict.fromkeys(message_ids)),
            args=args,
            kwargs=kwargs,
            content_type=message.content_type if message is not None else "",
            headers=newest.headers if newest is not None else {},
            attempts=attempts,
            result=self._result(id, message),
            children=self._children_of(id, {item.message_id for item in again}),
            failures=failures,
            handled=handled,
            again=again,
            arguments_note=note,
        )

    def task_result(self, id: str, *, key: str = "") -> TaskResult | None:
        """Return the result of a task, if the broker is its result backend; None if there is none.

        Args:
            key: the name of the result, if it differs from ``celery-task-meta-`` and the id.
        """
        reply = self.calls.call(GetResults(0, [(key or RESULT_PREFIX + id).encode()]))
        return None if reply.values[0] is None else result_of(reply.values[0])

    # ------------------------------------------------------------ parts of a task
    def _task_of(self, message_id: int) -> str:
        """Return the id of a message's task."""
        about = self.retrieve_message(message_id)
        if about is None or "task" not in about.headers:
            text = f"no message {message_id} of a task: see `opendata-queue message {message_id}`"
            raise MessageNotFound(text, message_id=message_id)
        return about.headers.get("id", "")

    def _attempts_of(self, id: str) -> tuple[AttemptInfo, ...]:
        query: Any = {"headers": {"id": id}, "order": "asc", "limit": _MOST}
        try:
            return self.list_attempts(**query, tracebacks=True).items
        except AccessRefused:
            return self.list_attempts(**query).items

    def _children_of(self, id: str, others: set[int]) -> tuple[RelatedTask, ...]:
        """Return the tasks that a task started, except those of the messages ``others``."""
        page = self.list_messages(headers={"parent_id": id}, order="asc", limit=_MOST)
        return tuple(_related(child) for child in page.items if child.id not in others)

    def _message(self, about: MessageInfo | None) -> Message | None:
        if about is None:
            return None
        try:
            return self.get(about.id).message
        except MessageNotFound:
            return None  # collected in the meantime, or the user may not read it

    def _again(self, handled: tuple[FailureInfo, ...]) -> tuple[RelatedTask, ...]:
        tasks = []
        for failure in handled:
            if failure.retried_as >= 0:
                about = self.retrieve_message(failure.retried_as)
                tasks.append(RelatedTask(failure.retried_as, "", "") if about is None else _related(about))
        return tuple(tasks)

    def _result(self, id: str, message: Message | None) -> TaskResult | None:
        about = message.properties.get("x-opendata-result") if message is not None else None
        key = str(about[0]) if isinstance(about, (list, tuple)) and about else ""
        try:
            return self.task_result(id, key=key)
        except AccessRefused:
            return None


def result_of(stored: bytes) -> TaskResult:
    """Return the result from its stored bytes."""
    limit = body_codec.Budget.of_display().elements
    if body_codec.json_elements(stored, limit) > limit:
        return TaskResult("too large", len(stored))
    try:
        values = revocation.decode(stored) if stored.startswith(revocation.MARK) else json.loads(stored)
        if body_codec.is_deeper(values, body_codec.MAX_DISPLAYED_DEPTH):
            return TaskResult("too large", len(stored))
        state, traceback, done = (str(values.get(name) or "") for name in ("status", "traceback", "date_done"))
        return TaskResult("json", len(stored), state, values.get("result"), traceback, done)
    except (ValueError, AttributeError, RecursionError):
        return TaskResult("pickle" if stored.startswith(_PICKLE) else "unknown", len(stored))


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


def _related(message: MessageInfo) -> RelatedTask:
    """Return the task of a message."""
    return RelatedTask(message.id, message.headers.get("id", ""), message.headers.get("task", ""))


def _state_of(queues: tuple[QueueStatus, ...], attempts: tuple[AttemptInfo, ...]) -> str:
    """Return the current state of a task, or its outcome."""
    for now in ("running", "in_flight", "available"):
        for status in queues:
            if status.status == now:
                return now
    last = attempts[-1] if attempts else None
    if last is not None and last.state:
        return last.state
    return next((status.status for status in queues), "collected")
