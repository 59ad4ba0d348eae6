"""Options that select failures, and the output of failures and attempts of tasks."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from ...errors import AccessRefused, NotFound
from ...json_values import unpacked
from ...masking import Masking
from ...readable_text import value_text
from ..hints import next_command
from ..option_types import MAX_ID, MOMENT, several, where_option, with_options
from ..target import complete_clients, queues_argument

if TYPE_CHECKING:
    from ...protocol.messages import FailureInfo
    from ...queue_client import QueueClient
    from ...queue_client.tasks import Task

_REASONS = ("raised", "timed_out", "lost", "rejected", "delivery_limit")
_KINDS = ("failed", "acknowledged")
#: parameters of the options that select failures; `--all` is not one of them
_SELECTION = ("queues", "tasks", "exceptions", "reasons", "workers", "kinds", "ids", "where", "since", "until")
_CELL = 60
#: characters of a task's positional or named arguments that are shown
_ARGUMENTS_LIMIT = 2_000

#: the queues, and the filters of failures
failure_options = with_options(
    queues_argument,
    several("--task", "-t", help="only this Celery task, by its name"),
    several("--exception", "-e", help="only this type of exception, as app.errors.Bad"),
    several("--reason", "-r", help="only for this reason", type=click.Choice(_REASONS)),
    several("--worker", "-w", help="only of this worker, as named by `failed list`", shell_complete=complete_clients),
    several("--id", help="only this message or task, by its id", metavar="ID"),
    several("--kind", help="only messages in failed lists, or only acknowledged tasks", type=click.Choice(_KINDS)),
    click.option("--since", type=MOMENT, help="failed at or after this time (2026-11-21T09:30), or how long ago (2h)"),
    click.option("--until", type=MOMENT, help="failed at or before this time"),
    where_option,
    click.option("--archived", is_flag=True, help="the failed messages that `failed archive` set aside"),
)


def failure_filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Call a command with the client's ``filters`` in place of these options, which are checked before it connects."""

    @wraps(command)
    def filtered(**parameters: Any) -> Any:
        return command(filters=filters_of(parameters), **parameters)

    return filtered


def selects(parameters: dict[str, Any]) -> bool:
    """Return True if any option selects failures."""
    return any(parameters[name] for name in _SELECTION)


def filters_of(parameters: dict[str, Any]) -> Any:
    """Remove these options from ``parameters`` and return the client's filters for them."""
    options = {name: parameters.pop(name) for name in (*_SELECTION, "archived")}
    archived, ids = options.pop("archived"), options.pop("ids")
    if archived and options["kinds"]:
        raise click.UsageError("--archived and --kind don't go together: an archived message is of neither kind")
    messages, tasks = split_ids(ids)
    if messages and tasks:
        raise click.UsageError("give message ids or task ids, not both")
    return {
        **{name: options[name] for name in ("queues", "tasks", "exceptions", "reasons", "workers", "where")},
        "kinds": ("archived",) if archived else options["kinds"],
        "ids": messages or None,
        "task_ids": tasks or None,
        "gte": options["since"],
        "lte": options["until"],
    }


def split_ids(ids: Iterable[str]) -> tuple[list[int], list[str]]:
    """Return the message ids, which are numbers, and the task ids, which are not."""
    messages = [id for id in ids if id.isdecimal() and int(id) <= MAX_ID]
    return list(map(int, messages)), [id for id in ids if id not in messages]


def failure_document(failure: FailureInfo) -> Any:
    """Return a failure as a document for ``--json``."""
    return {**unpacked(failure), "retried_as": None if failure.retried_as < 0 else failure.retried_as}


def exception_text(failure: Any, limit: int = _CELL) -> str:
    """Return the exception of a failure or an attempt on one line, cut to ``limit`` characters."""
    text = f"{failure.exception}: {failure.error}" if failure.error else str(failure.exception)
    return text if not limit or len(text) <= limit else text[: limit - 1] + "…"


def task_arguments(client: QueueClient, failure: FailureInfo) -> dict[str, Any]:
    """Return the masked arguments of a failed task; empty for another message, or if the user may not see them."""
    if not failure.task_id:
        return {}
    try:
        return masked_arguments(client.task(failure.message_id))
    except (AccessRefused, NotFound):
        return {}


def masked_arguments(task: Task) -> dict[str, Any]:
    """Return the arguments of a task with secrets masked, or the reason why they can't be shown."""
    if task.args is None or task.kwargs is None:
        return {"arguments": f"({task.arguments_note})"}
    masking = Masking()
    return {"args": masking.value(task.args), "kwargs": masking.value(task.kwargs)}


def argument_texts(arguments: dict[str, Any]) -> dict[str, str]:
    """Return masked arguments as texts for people."""
    return {name: value_text(value, _ARGUMENTS_LIMIT) for name, value in arguments.items()}


def retry_hint(id: str) -> str:
    """Return the command that retries a failure."""
    return f"run it again: {next_command(f'failed retry --id {shlex.quote(id)}')}"
