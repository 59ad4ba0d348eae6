"""Report of a Celery task and its canvas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from ...errors import PreconditionFailed
from ...masking import Masking
from ...protocol.messages.history_messages import MessageInfo
from ...queue_client.message_models import moment
from ...queue_client.task_models import RelatedTask, Task
from ..brokers import UserBroker
from .bodies import shown_json
from .message import AttemptRow, attempt_of

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
class TaskLocation:
    """The newest message of a task in one queue; ``at`` is the time of its delivery, settlement or start."""

    queue: str
    status: str
    attempts: int
    consumer: str
    at: datetime | None


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
    queues: tuple[TaskLocation, ...]
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


async def task_report(broker: UserBroker, masking: Masking, id: str) -> TaskView:
    """Return a task by Celery's id.

    Raises:
        MessageNotFound: there is no such task, or it is no longer in the history.
        PreconditionFailed: the broker keeps no history.
    """
    task = await broker.client.task(id)
    tree, is_whole = await _canvas(broker, task)
    attempts = [attempt_of(item, masking) for item in task.attempts]
    places = tuple(
        TaskLocation(item.queue, item.status, item.attempts, item.consumer, moment(item.at_ms)) for item in task.queues
    )
    attempts += [_going_on(item) for item in places if item.status in ("running", "in_flight")]
    result, note = _result(task, masking)
    return TaskView(
        task.id, task.name, task.state, task.message_ids, places,
        None if task.args is None else shown_json(task.args, masking),
        None if task.kwargs is None else shown_json(task.kwargs, masking),
        task.arguments_note, task.content_type, masking.value(dict(task.headers)), tuple(attempts), result, note,
        len(task.failures), task.again, tree, is_whole,
    )  # fmt: skip


def _going_on(one: TaskLocation) -> AttemptRow:
    return AttemptRow(one.queue, one.attempts, one.consumer, 0, one.at, None, None, "", one.status, "", "", "")


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
        yield Node(id, info.headers.get("task", ""), _status(info), depth)
        pending += [(child, depth + 1) for child in reversed(children.get(id, []))]


def _status(one: MessageInfo) -> str:
    return next((status.status for status in one.queues), "collected")
