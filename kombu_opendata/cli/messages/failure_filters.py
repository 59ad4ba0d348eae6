"""Options that select failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from ..option_types import MESSAGE_ID, MOMENT, where_option, with_options
from ..target import complete_clients, complete_queues

if TYPE_CHECKING:
    from ...queue_client import QueueClient

_REASONS = ("raised", "timed_out", "lost", "rejected", "delivery_limit")
_KINDS = ("failed", "acknowledged")
#: the options that select failures; `--all` belongs to the commands that change them
_CHOOSING = ("queues", "tasks", "exceptions", "reasons", "workers", "kinds", "ids", "where", "since", "until")


def _several(name: str, short: str, into: str, help: str, **more: Any) -> Callable[[Any], Any]:
    flags = (f"--{name}", short) if short else (f"--{name}",)
    return click.option(*flags, into, multiple=True, help=f"{help}; may be repeated", **more)


#: the queues, and the filters of failures
failure_options = with_options(
    click.argument("queues", nargs=-1, metavar="[QUEUE]...", shell_complete=complete_queues),
    _several("task", "-t", "tasks", "only this Celery task, by its name"),
    _several("exception", "-e", "exceptions", "only this type of exception, as app.errors.Bad"),
    _several("reason", "-r", "reasons", "only for this reason", type=click.Choice(_REASONS)),
    _several(
        "worker", "-w", "workers", "only of this worker, by its name in `failed list`", shell_complete=complete_clients
    ),
    _several("id", "", "ids", "only this message or task, by its id", metavar="ID"),
    _several(
        "kind", "", "kinds", "only messages in failed lists, or only acknowledged tasks", type=click.Choice(_KINDS)
    ),
    click.option("--since", type=MOMENT, help="failed at or after this time (2026-11-21T09:30), or how long ago (2h)"),
    click.option("--until", type=MOMENT, help="failed at or before this time"),
    where_option,
    click.option("--archived", is_flag=True, help="the failed messages that `failed archive` set aside"),
)


def is_chosen(given: dict[str, Any]) -> bool:
    """Return True if any option selects failures."""
    return any(given[name] for name in _CHOOSING)


def filters_of(given: dict[str, Any]) -> Any:
    """Remove these options from ``given`` and return the client's filters for them."""
    options = {name: given.pop(name) for name in (*_CHOOSING, "archived")}
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
    messages = [int(id) for id in ids if id.isdecimal() and int(id) <= MESSAGE_ID.max]
    return messages, [id for id in ids if not (id.isdecimal() and int(id) <= MESSAGE_ID.max)]


def count_of(client: QueueClient, filters: Any) -> int:
    """Return the number of failures that match."""
    return sum(group.count for group in client.group_failures(["queue"], **filters).groups)
