"""Commands ``task show`` and ``result get``: a Celery task with its attempts and its result, and a result alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from ...json_values import moment, plain, unpacked
from ...readable_text import shown_lines, value_text
from ..exit_codes import CommandError, CommandGroup
from ..hints import next_command
from ..option_types import MESSAGE_ID
from ..target import Target, look_options
from ..terminal.output import note, print_facts, print_json, say
from ..terminal.tables import Column, print_table
from .failure_lines import ARGUMENTS_LIMIT, as_document, hint, masked_arguments, say_lines, what_was_raised

if TYPE_CHECKING:
    from ...protocol.messages.history_messages import AttemptInfo
    from ...queue_client.task_models import Task, TaskResult

_ATTEMPTS: list[Column] = [
    ("message", True), ("queue", False), ("ended", False), ("waited", True), ("ran", True), ("state", False),
    ("outcome", False), ("worker", False), ("pid", True),
]  # fmt: skip
_HEADERS = ("parent_id", "root_id", "eta", "expires")
_SPARE = ("pid", "outcome", "queue", "waited")


@click.group("task", cls=CommandGroup)
def task_group() -> None:
    """Show a task of Celery."""


@click.group("result", cls=CommandGroup)
def result_group() -> None:
    """Get the results of tasks."""


@task_group.command(epilog="Example: opendata-queue task show 5b0e6c0e-2f1d-4c55-9d1c-6d1f0f1c8c3a")
@click.argument("id", metavar="ID")
@look_options
def show(id: str, target: Target, as_json: bool) -> None:
    """Show a task by its id, with its attempts and its result.

    ID is Celery's id of the task, or the id of its message. Arguments that are not JSON or msgpack are not shown, and a
    pickle is never loaded. Arguments are masked as those of `failed show`, but not with --json.
    """
    with target.client(looks=True) as client:
        task = client.task(int(id) if id.isdecimal() and int(id) <= MESSAGE_ID.max else id)
    if as_json:
        print_json(_document(task))
    else:
        _print(task)


def _document(found: Task) -> Any:
    return {
        **plain(found), "queues": unpacked(found.queues), "attempts": [unpacked(record) for record in found.attempts],
        "failures": [as_document(record) for record in found.failures],
        "handled": [as_document(record) for record in found.handled],
    }  # fmt: skip


def _print(found: Task) -> None:
    print_facts(
        {
            "task": found.name or "(its message is no longer stored)",
            "id": found.id,
            "state": _state(found),
            "queue": ", ".join(status.queue for status in found.queues),
            "messages": ", ".join(map(str, found.message_ids)),
            **{name: value_text(value, ARGUMENTS_LIMIT) for name, value in masked_arguments(found).items()},
            **{name: found.headers[name] for name in _HEADERS if name in found.headers},
            "result": _result(found.result),
        }
    )
    for title, related_tasks in (("started", found.children), ("runs again as", found.again)):
        for related in related_tasks:
            say(f"{title}: {related.name} {related.task_id} (message {related.message_id})")
    for failure in found.handled:
        if failure.handled == "dismissed":
            say(f"dismissed: the failure of message {failure.message_id}")
    say("")
    print_table(_ATTEMPTS, map(_row, found.attempts), none="no attempt has ended", spare=_SPARE)
    for attempt in found.attempts:
        if attempt.exception:
            say("")
            say_lines(attempt.traceback.rstrip() or what_was_raised(attempt, limit=0))
    if found.failures:
        note(hint(found.id))


def _state(found: Task) -> str:
    """Return the state; for a task in progress, with its worker and the time of its start."""
    for status in found.queues:
        if status.status in ("running", "in_flight"):
            return f"{status.status} since {moment(status.at_ms):%Y-%m-%d %H:%M:%SZ} by {status.consumer}"
        if status.status == "available" and status.visible_at_ms:
            return f"available, visible at {moment(status.visible_at_ms):%Y-%m-%d %H:%M:%SZ}"
    return found.state


def _result(result: TaskResult | None) -> str:
    if result is None:
        return "(none in this broker)"
    if result.encoding != "json":
        return f"({_unread(result)})"
    return f"{result.state}: {value_text(result.value, 200)}"


def _unread(result: TaskResult) -> str:
    kind = {"pickle": "a pickle", "too large": "too large to display: a result"}.get(result.encoding, "not JSON")
    return f"{kind} of {result.size:,} bytes, not loaded"


def _row(one: AttemptInfo) -> tuple[Any, ...]:
    received = one.event.visible_at_ms if one.event is not None else 0
    queue_seconds = f"{max(0, one.claimed_at_ms - received) / 1000:.3f}" if received and one.claimed_at_ms else ""
    ran = one.runtime_ms or (one.ended_at_ms - one.claimed_at_ms if one.claimed_at_ms else 0)
    return (
        str(one.message_id), one.queue, moment(one.ended_at_ms), queue_seconds, f"{ran / 1000:.3f}",
        f"{one.state} {one.exception}".strip(), one.outcome, one.consumer, str(one.pid or ""),
    )  # fmt: skip


# ---------------------------------------------------------------------- results
@result_group.command(epilog="Example: opendata-queue result get 5b0e6c0e-2f1d-4c55-9d1c-6d1f0f1c8c3a")
@click.argument("id", metavar="TASK_ID")
@click.option("--key", default="", metavar="NAME", help="the result's name, if it is not celery-task-meta-TASK_ID")
@look_options
def get(id: str, key: str, target: Target, as_json: bool) -> None:
    """Print the result of a task, as JSON.

    Exits with 1 if there is none in this broker. A pickled result is not loaded; only its size is printed.
    """
    with target.client(looks=True) as client:
        result = client.task_result(id, key=key)
    if result is None:
        raise CommandError(
            f"there is no result of task {id}: none was stored in this broker, or it expired; "
            f"'{next_command('task show', id)}' shows the task's outcome"
        )
    if as_json:
        print_json(result)
    elif result.encoding != "json":
        say(_unread(result))
    elif result.state == "SUCCESS":
        say(json.dumps(result.value, ensure_ascii=False))
    else:
        say(f"{result.state}: {value_text(result.value)}")
        if result.traceback:
            say_lines(shown_lines(result.traceback.rstrip()))
