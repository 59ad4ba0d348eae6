"""View of a Celery task and its canvas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from ...errors import PreconditionFailed
from ...json_values import moment
from ...masking import Masking
from ...protocol.messages.history_messages import MessageInfo, QueueStatus
from ...queue_client.tasks import RelatedTask, Task
from ..brokers import UserBroker
from ..reports.bodies import shown_json
from ..reports.wire_structs import WireStruct, copied
from ..visit import AVisit
from .message import AttemptRow, attempt_of
from .view import Views

VIEWS = Views("messages")
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
