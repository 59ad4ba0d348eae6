"""Commands ``task show`` and ``result get``: a Celery task with its attempts and its result, and a result alone."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from ...json_values import moment, plain, unpacked
from ...readable_text import value_text
from ..exit_codes import CommandError, CommandGroup
from ..hints import next_command
from ..option_types import state_name
from ..output import Reply, Table
from ..target import reads
from .failure_options import argument_texts, exception_text, failure_document, masked_arguments, retry_hint, split_ids

if TYPE_CHECKING:
    from ...protocol.messages import AttemptInfo
    from ...queue_client import QueueClient
    from ...queue_client.tasks import Task, TaskResult

_HEADERS = ("parent_id", "root_id", "eta", "expires")


task_group = CommandGroup("task", help="Show a task of Celery.")
result_group = CommandGroup("result", help="Get the results of tasks.")


def _waited(attempt: AttemptInfo) -> str:
    received = attempt.event.visible_at_ms if attempt.event is not None else 0
    return f"{max(0, attempt.claimed_at_ms - received) / 1000:.3f}" if received and attempt.claimed_at_ms else ""


def _ran(attempt: AttemptInfo) -> str:
    held_ms = attempt.ended_at_ms - attempt.claimed_at_ms if attempt.claimed_at_ms else 0
    return f"{(attempt.runtime_ms or held_ms) / 1000:.3f}"


_ATTEMPTS = Table(
    {
        "message#": lambda attempt: str(attempt.message_id),
        "queue": "",
        "ended": lambda attempt: moment(attempt.ended_at_ms),
        "waited#": _waited,
        "ran#": _ran,
        "state": lambda attempt: f"{attempt.state} {attempt.exception}".strip(),
        "outcome": "",
        "worker": "consumer",
        "pid#": lambda attempt: str(attempt.pid or ""),
    },
    none="no attempt has ended",
    spare=("pid", "outcome", "queue", "waited"),
)


@task_group.command(epilog="Example: opendata-queue task show 5b0e6c0e-2f1d-4c55-9d1c-6d1f0f1c8c3a")
@click.argument("id", metavar="ID")
@reads
def show(client: QueueClient, id: str) -> Reply:
    """Show a task by its id, with its attempts and its result.

    ID is Celery's id of the task, or the id of its message. Arguments that are not JSON or msgpack are not shown, and a
    pickle is never loaded. Arguments are masked as those of `failed show`, but not with --json.
    """
    message_ids, _ = split_ids([id])
    task = client.task(message_ids[0] if message_ids else id)
    document = {
        **plain(task), "queues": unpacked(task.queues), "attempts": [unpacked(attempt) for attempt in task.attempts],
        "failures": [failure_document(failure) for failure in task.failures],
        "handled": [failure_document(failure) for failure in task.handled],
    }  # fmt: skip
    facts = {
        "task": task.name or "(its message is no longer stored)",
        "id": task.id,
        "state": _state(task),
        "queue": ", ".join(status.queue for status in task.queues),
        "messages": ", ".join(map(str, task.message_ids)),
        **argument_texts(masked_arguments(task)),
        **{name: task.headers[name] for name in _HEADERS if name in task.headers},
        "result": _result(task.result),
    }
    related = (("started", task.children), ("runs again as", task.again))
    tracebacks = [
        line
        for attempt in task.attempts
        if attempt.exception
        for line in ("", *(attempt.traceback.rstrip() or exception_text(attempt, limit=0)).split("\n"))
    ]
    return Reply(
        document,
        facts,
        *(
            f"{title}: {other.name} {other.task_id} (message {other.message_id})"
            for title, tasks in related
            for other in tasks
        ),
        *(f"deleted: the failure of message {item.message_id}" for item in task.handled if item.handled == "dismissed"),
        "",
        _ATTEMPTS.of(task.attempts),
        *tracebacks,
        notes=[retry_hint(task.id)] if task.failures else [],
    )


def _state(task: Task) -> str:
    """Return the state; for a task in progress, with its worker and the time of its start."""
    for status in task.queues:
        if status.status in ("running", "in_flight"):
            return f"{state_name(status.status)} since {moment(status.at_ms):%Y-%m-%d %H:%M:%SZ} by {status.consumer}"
        if status.status == "available" and status.visible_at_ms:
            due = moment(status.visible_at_ms)
            is_delayed = due is not None and due > datetime.now(UTC)
            return f"{'delayed, due' if is_delayed else 'ready since'} {due:%Y-%m-%d %H:%M:%SZ}"
    return state_name(task.state)


def _result(result: TaskResult | None) -> str:
    if result is None:
        return "(none in this broker)"
    if result.encoding != "json":
        return f"({_unread(result)})"
    return f"{result.state}: {value_text(result.value, 200)}"


def _unread(result: TaskResult) -> str:
    kind = {"pickle": "a pickle", "too large": "too large to display: a result"}.get(result.encoding, "not JSON")
    return f"{kind} of {result.size:,} bytes, not loaded"


@result_group.command(epilog="Example: opendata-queue result get 5b0e6c0e-2f1d-4c55-9d1c-6d1f0f1c8c3a")
@click.argument("id", metavar="TASK_ID")
@click.option("--key", default="", metavar="NAME", help="the result's name, if it is not celery-task-meta-TASK_ID")
@reads
def get(client: QueueClient, id: str, key: str) -> Reply:
    """Print the result of a task, as JSON.

    Exits with 1 if there is none in this broker. A pickled result is not loaded; only its size is printed.
    """
    result = client.task_result(id, key=key)
    if result is None:
        raise CommandError(
            f"there is no result of task {id}: none was stored in this broker, or it expired; "
            f"'{next_command('task show', id)}' shows the task's outcome"
        )
    if result.encoding != "json":
        return Reply(result, _unread(result))
    if result.state == "SUCCESS":
        return Reply(result, json.dumps(result.value, ensure_ascii=False))
    traceback = result.traceback.rstrip().split("\n") if result.traceback else []
    return Reply(result, f"{result.state}: {value_text(result.value)}", *traceback)
