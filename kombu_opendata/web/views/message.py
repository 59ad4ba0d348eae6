"""Views of one message and of one task: contents, states, attempts, canvas; the search box of all views."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Annotated

from fastapi import Response
from fastapi.responses import RedirectResponse

from ...errors import AccessRefused, MessageNotFound, NotFound, PreconditionFailed
from ...json_values import moment
from ...masking import Masking
from ...protocol.messages import AttemptInfo, MessageInfo, QueueStatus
from ...queue_client.message_models import MessageState, StoredMessage
from ...queue_client.tasks import RelatedTask, Task
from ..rendering import link
from ..reports.body_text import Body, body_of, shown_json
from ..reports.message_rows import Identified, id_of
from ..reports.wire_structs import WireStruct, copied
from ..request_context import AVisit, Visit
from ..user_clients import UserBroker
from .view import Views

VIEWS = Views("messages")
#: attempts of a message that are shown
_MOST = 100


@dataclass(frozen=True)
class AttemptRow:
    """An attempt that ended, or a current delivery.

    Attributes:
        outcome: the end of the attempt; empty while it is in progress.
        state: the outcome of the task, if a worker reported it.
    """

    queue: str
    number: int
    worker: str
    pid: int = 0
    began_at: datetime | None = None
    ended_at: datetime | None = None
    seconds: float | None = None
    outcome: str = ""
    state: str = ""
    exception: str = ""
    error: str = ""
    traceback: str = ""

    @property
    def is_good(self) -> bool:
        """True if the task succeeded or, without a report, the message was acknowledged."""
        return self.state == "succeeded" if self.state else self.outcome == "acked"


@dataclass(frozen=True)
class MessageReport(Identified):
    """A message; all fields but ``attempts`` are empty if it is no longer stored."""

    id: int
    attempts: tuple[AttemptRow, ...]
    task: str = ""
    task_id: str = ""
    body: Body | None = None
    headers: dict[str, str] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    exchange: str = ""
    routing_key: str = ""
    content_type: str = ""
    created_at: datetime | None = None
    received_at: datetime | None = None
    visible_at: datetime | None = None
    states: tuple[MessageState, ...] = ()


@VIEWS.view("/message", "message.html")
async def get_message(visit: AVisit, id: int) -> MessageReport:
    """Return a message, or its history if it is no longer stored."""
    try:
        stored = await visit.broker.client.get(id)
    except MessageNotFound:
        attempts = await _attempts(visit, id)
        if not attempts:
            raise
        return MessageReport(id, attempts)
    attempts = await _attempts_of(visit, stored)
    # A thread, as a large body would delay other requests.
    return await asyncio.to_thread(_report, stored, visit.site.masking, attempts)


def _report(stored: StoredMessage, masking: Masking, attempts: tuple[AttemptRow, ...]) -> MessageReport:
    message = stored.message

    def texts(values: dict[str, object]) -> dict[str, str]:
        return {name: str(value) for name, value in masking.value(values).items() if value is not None}

    metadata = stored.metadata
    return copied(
        MessageReport,
        vars(message) | vars(stored),
        task=metadata.get("task", ""),
        task_id=metadata.get("id", "") if "task" in metadata else "",
        body=body_of(message, masking),
        headers=texts(message.headers),
        properties=texts(message.properties),
        attempts=attempts,
    )


async def _attempts_of(visit: Visit, stored: StoredMessage) -> tuple[AttemptRow, ...]:
    """Return the attempts of a stored message in all queues, or in its current ones if the user may not see all."""
    for queues in (None, [state.queue for state in stored.states]):
        with suppress(AccessRefused):
            return await _attempts(visit, stored.message.id, queues)
    return ()


async def _attempts(visit: Visit, id: int, queues: list[str] | None = None) -> tuple[AttemptRow, ...]:
    """Return the ended attempts of a message, the oldest first; none if the broker keeps no history."""
    list_attempts = visit.broker.client.list_attempts
    list_page = partial(list_attempts, message_ids=[id], queues=queues, order="asc", limit=_MOST)
    try:
        try:
            page = await list_page(tracebacks=True)
        except AccessRefused:
            page = await list_page()
    except PreconditionFailed:
        return ()
    return tuple(attempt_of(attempt, visit.site.masking) for attempt in page.items)


def attempt_of(attempt: AttemptInfo, masking: Masking) -> AttemptRow:
    """Return an attempt of the history, with masked texts."""
    milliseconds = attempt.runtime_ms if attempt.state else max(attempt.ended_at_ms - attempt.claimed_at_ms, 0)
    return copied(
        AttemptRow,
        attempt,
        worker=attempt.consumer,
        began_at=moment(attempt.claimed_at_ms),
        seconds=milliseconds / 1000,
        error=masking.text(attempt.error),
        traceback=masking.text(attempt.traceback),
    )


@VIEWS.view("/message/body", response_class=Response, responses={200: {"content": {"application/octet-stream": {}}}})
async def get_body(visit: AVisit, id: int) -> Response:
    """Return the body of a message as it is stored."""
    stored = await visit.broker.client.get(id)
    if stored.message.error is not None:
        raise stored.message.error
    # browsers save it, and never show it
    headers = {"Content-Disposition": f'attachment; filename="message-{id}.bin"', "X-Content-Type-Options": "nosniff"}
    return Response(stored.message.raw, media_type="application/octet-stream", headers=headers)


@VIEWS.pages.get("/jump")
async def jump(visit: AVisit, to: str = "") -> Response:
    """Redirect to a queue by name, a message by id, or a task by Celery's id."""
    root = visit.request.scope.get("root_path", "")
    client = visit.broker.client
    to = to.strip()
    if id_of(to) is not None:
        return RedirectResponse(link(root, "message", id=to), 303)
    try:
        await client.task(to)
        return RedirectResponse(link(root, "task", id=to), 303)
    except (AccessRefused, MessageNotFound, PreconditionFailed):
        pass  # not a task, or this user may not search tasks
    try:
        await client.get_queue(to)
        return RedirectResponse(link(root, "queue", name=to), 303)
    except NotFound:
        return RedirectResponse(link(root, "", search=to), 303)


# ---------------------------------------------------------------------- tasks
#: tasks of a canvas that are shown
MOST = 500


@dataclass(frozen=True)
class Node:
    """A task of a canvas; ``depth`` is its distance from the root."""

    task_id: str
    name: str
    status: str
    depth: int


@dataclass(frozen=True)
class TaskView:
    """A task.

    Attributes:
        args, kwargs: as JSON; None if they can't be displayed, and ``arguments_note`` has the reason.
        attempts: the ended attempts, the oldest first, and the current one.
        result: as JSON; None if there is none here. ``result_note`` has the reason why it is not shown.
        tree: the canvas, parents before children; empty if the task is alone.
        is_whole: whether the tree has all tasks of the canvas.
    """

    id: str
    name: str
    state: str
    message_ids: tuple[int, ...]
    queues: tuple[Annotated[QueueStatus, WireStruct()], ...]
    args: str | None
    kwargs: str | None
    arguments_note: str
    content_type: str
    headers: dict[str, str]
    attempts: tuple[AttemptRow, ...]
    result: str | None
    result_note: str
    failures: int
    again: tuple[RelatedTask, ...]
    tree: tuple[Node, ...]
    is_whole: bool


@VIEWS.view("/task", "task.html")
async def get_task(visit: AVisit, id: str) -> TaskView:
    """Return a task by Celery's id, with its attempts, its result, and its canvas."""
    masking = visit.site.masking
    task = await visit.broker.client.task(id)
    tree, is_whole = await _canvas(visit.broker, task)
    result, note = _result(task, masking)
    current = [
        AttemptRow(
            queue=status.queue,
            number=status.attempts,
            worker=status.consumer,
            began_at=moment(status.at_ms),
            state=status.status,
        )
        for status in task.queues
        if status.status in ("running", "in_flight")
    ]
    return copied(
        TaskView,
        task,
        args=None if task.args is None else shown_json(task.args, masking),
        kwargs=None if task.kwargs is None else shown_json(task.kwargs, masking),
        headers=masking.value(dict(task.headers)),
        attempts=(*(attempt_of(attempt, masking) for attempt in task.attempts), *current),
        result=result,
        result_note=note,
        failures=len(task.failures),
        tree=tree,
        is_whole=is_whole,
    )


def _result(task: Task, masking: Masking) -> tuple[str | None, str]:
    result = task.result
    if result is None:
        return None, ""
    if result.encoding == "too large":
        return None, f"The result of {result.size:,} bytes is too large to display."
    if result.encoding != "json":
        return None, f"a result of {result.size:,} bytes ({result.encoding}), which is not loaded"
    return shown_json(result.value, masking), result.state


async def _canvas(broker: UserBroker, task: Task) -> tuple[tuple[Node, ...], bool]:
    """Return all tasks with the same root, in the order of a tree."""
    root = task.headers.get("root_id", "")
    if not root:
        return (), True
    try:
        page = await broker.client.list_messages(headers={"root_id": root}, order="asc", limit=MOST)
    except PreconditionFailed:
        return (), True
    newest = {info.headers.get("id", ""): info for info in page.items}  # a retry has the same id
    nodes = tuple(_tree(newest))
    return (nodes if len(nodes) > 1 else ()), page.next is None


def _tree(tasks: dict[str, MessageInfo]) -> Iterator[Node]:
    """Yield parents before children; a task whose parent is not included is a root."""
    children: dict[str, list[str]] = {}
    for id, info in tasks.items():
        parent = info.headers.get("parent_id", "")
        children.setdefault(parent if parent in tasks and parent != id else "", []).append(id)
    pending = [(id, 0) for id in reversed(children.get("", []))]
    visited: set[str] = set()
    while pending:
        id, depth = pending.pop()
        if id in visited:
            continue
        visited.add(id)
        info = tasks[id]
        status = next((status.status for status in info.queues), "collected")
        yield Node(id, info.headers.get("task", ""), status, depth)
        pending += [(child, depth + 1) for child in reversed(children.get(id, []))]
