"""Commands ``messages``, ``attempts`` and ``done``: the history of messages, and the done messages of a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from ...errors import NotFound
from ...json_values import moment, unpacked
from ...protocol.task_reports import STATES
from ...readable_text import age, counted, pairs
from ..exit_codes import Command, CommandGroup, confirm, missing_ids, require_confirmation
from ..option_types import (
    LENGTH,
    MESSAGE_ID,
    MOMENT,
    every_queue_option,
    header_choices,
    header_option,
    ids_option,
    limit_option,
    listed,
    page_options,
    several,
    state_name,
    with_options,
)
from ..output import Columns, JsonLines, Reply, Table, local, page_reply
from ..progress import watched
from ..target import (
    Target,
    at_target,
    complete_clients,
    complete_queues,
    queue_argument,
    queues_argument,
    reads,
    yes_option,
)

if TYPE_CHECKING:
    from ...protocol.messages import AttemptInfo, QueueStatus
    from ...queue_client import QueueClient

_CELL = 60
#: headers that every message has; only --json shows them
_ROUTING = frozenset(("exchange", "routing_key", "priority", "content_type"))
_OUTCOMES = ("acked", "failed", "rejected", "expired", "released", "redriven")

_LIST_OPTIONS = with_options(
    several("--queue", "-q", help="only this queue", shell_complete=complete_queues),
    header_option("only with this header", header_choices),
    click.option("--since", type=MOMENT, help="from this time on (2026-11-21T09:30), or how long ago (30m, 2h, 30d)"),
    click.option("--until", type=MOMENT, help="up to this time"),
    page_options,
    click.option("--prev", "prev", metavar="CURSOR", help="the page before this cursor"),
)


def _list_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a list, and check them before the command connects."""

    @wraps(command)
    def checked(**filters: Any) -> Any:
        if filters["next"] and filters["prev"]:
            raise click.UsageError("give --next or --prev, not both")
        return command(**filters)

    command_with_options: Callable[..., Any] = _LIST_OPTIONS(checked)
    return command_with_options


def _state(status: QueueStatus) -> str:
    due = moment(status.visible_at_ms) if status.status == "available" else None
    return f"delayed, due {local(due)}" if due is not None and due > datetime.now(UTC) else state_name(status.status)


_MESSAGES = Table(
    {
        "id#": lambda message: str(message.id),
        "received": lambda message: moment(message.received_at_ms),
        "queues": lambda message: ", ".join(f"{each.queue}: {_state(each)}" for each in message.queues) or "none",
        "headers": lambda message: pairs({n: v for n, v in message.headers.items() if n not in _ROUTING}, _CELL),
    },
    none="none",
)


@click.command(cls=Command, epilog="Example: opendata-queue messages -q orders -s failed -H customer=acme --since 2h")
@_list_options
@click.option(
    "--status",
    "-s",
    "statuses",
    multiple=True,
    help="only in this state; delayed messages are ready, too",
    type=click.Choice(("ready", "in_flight", "running", "done", "failed")),
)
@ids_option
@reads
def messages(client: QueueClient, **filters: Any) -> Reply:
    """List stored messages and their state in each queue.

    They are ordered by the time at which the broker received them.
    """
    return _list(client, client.list_messages, client.iter_messages, _MESSAGES, **filters)


def _outcome(attempt: AttemptInfo) -> str:
    return attempt.outcome + (", requeued" if attempt.requeued else "") + (", by hand" if attempt.manual else "")


_ATTEMPTS = Table(
    {
        "message#": lambda attempt: str(attempt.message_id),
        "queue": "",
        "ended": lambda attempt: moment(attempt.ended_at_ms),
        "seconds#": lambda each: f"{(each.ended_at_ms - each.claimed_at_ms) / 1000:.3f}" if each.claimed_at_ms else "",
        "attempt#": "number", "outcome": _outcome, "state": "", "exception": "", "consumer": "",
    },
    none="none",
    spare=("attempt", "seconds", "consumer"),
)  # fmt: skip


@click.command(cls=Command, epilog="Example: opendata-queue attempts -q orders -o rejected -o expired --since 30m")
@_list_options
@click.option("--outcome", "-o", "outcomes", multiple=True, type=click.Choice(_OUTCOMES), help="only with this outcome")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES[1:]), help="only with this task state")
@several("--exception", help="only with this type of exception")
@click.option("--tracebacks", is_flag=True, help="with the tracebacks of failed tasks, for --json")
@click.option("--id", "message_ids", multiple=True, type=MESSAGE_ID, help="only this message; may be repeated")
@several("--consumer", help="only this consumer", shell_complete=complete_clients)
@click.option("--manual/--not-manual", default=None, help="only what was done by hand, or only the rest")
@reads
def attempts(client: QueueClient, **filters: Any) -> Reply:
    """List finished attempts with their consumers and outcomes.

    They are ordered by the time at which they ended. A task's state is the one that its worker reported.
    """
    return _list(client, client.list_attempts, client.iter_attempts, _ATTEMPTS, **filters)


def _list(
    client: QueueClient,
    list_page: Callable[..., Any],
    iterate: Callable[..., Iterable[Any]],
    table: Table,
    *,
    everything: bool,
    since: datetime | None,
    until: datetime | None,
    **filters: Any,
) -> Reply:
    _check_queues(client, filters["queues"])
    query = {**filters, "gte": since, "lte": until}
    return page_reply(list_page, iterate, table, unpacked, query, everything=everything)


def _check_queues(client: QueueClient, queues: Iterable[str]) -> None:
    """Check that these queues exist or existed; raise NotFound if a queue does not exist and is not in the history."""
    existing = {info.name for info in client.list_queues()} if queues else set()
    for queue in queues:
        if queue in existing:
            continue
        query: Any = {"queues": [queue], "limit": 1}
        if not client.list_messages(**query).items and not client.list_attempts(**query).items:
            raise NotFound(f"there is no queue {queue!r}, not even in the history", queue=queue)


done_group = CommandGroup("done", help="List, count and delete done messages.")


_DONE = ("id", "queue", "state", "attempts", "settled_at")


@done_group.command("list", epilog="Example: opendata-queue done list orders -n 0")
@queue_argument
@limit_option("how many; 0: all", 20)
@reads
def list_done(client: QueueClient, queue: str, limit: int) -> Reply:
    """List the done messages of a queue, oldest first. With --json, each is a separate document on its line."""
    states = client.iter_by_state(queue, "done")
    page = islice(states, limit or None)
    columns: Columns = {"id#": lambda state: str(state.id), "settled": "settled_at", "attempts#": ""}

    def more() -> Iterable[str]:
        if next(states, None) is not None:
            yield f"these are the oldest {limit:,}; -n 0 lists all"

    return Reply(
        JsonLines({name: getattr(state, name) for name in _DONE} for state in page),
        Table(columns, none=f"queue {queue!r} has no done messages", rows=page),
        notes=more(),
    )


@done_group.command(epilog="Example: opendata-queue done count")
@queues_argument
@every_queue_option
@reads
def count(client: QueueClient, queues: tuple[str, ...], every: bool) -> Reply:
    """Count the done messages of queues.

    Without QUEUE, of all queues. A count is exact up to 4,000,000 messages in a queue.
    """
    metrics = {name: client.metrics(name) for name in queues} if queues else client.metrics_all()
    rows = listed(metrics, every or bool(queues)).values()
    counts = {name: queue.done for name, queue in metrics.items()}
    return Reply(counts, Table({"queue": "", "done#": ""}, none="no queues", rows=rows))


@done_group.command(epilog="Example: opendata-queue done delete orders --older-than 30d")
@queue_argument
@click.option("--older-than", type=LENGTH, help="messages that were settled at least this long ago: 90s, 12h, 30d")
@ids_option
@click.option("--all", "everything", is_flag=True, help="all of them")
@yes_option
@at_target
def delete(
    queue: str, older_than: float | None, ids: tuple[int, ...], everything: bool, yes: bool, target: Target
) -> Reply:
    """Delete done messages of a queue: by age, by id, or all. This can't be undone."""
    if (older_than is not None) + bool(ids) + everything != 1:
        raise click.UsageError("choose one of: --older-than, --id, --all")
    require_confirmation(yes)
    with target.client() as client:
        total = client.metrics(queue).done
        confirm(_question(queue, counted(total, "done message"), older_than, len(ids)), yes)

        def work() -> int:
            return client.delete_settled(queue, "done", older_than=older_than, ids=ids or None, all=everything)

        def progress() -> tuple[int, int]:
            return max(0, total - client.metrics(queue).done), total

        deleted = watched(f"deleting {queue}", work, progress)
    return Reply(
        {"queue": queue, "state": "done", "deleted": deleted},
        f"{counted(deleted, 'done message')} deleted from queue {queue!r}",
        error=missing_ids(ids, deleted, 0, "done messages of the queue"),
    )


def _question(queue: str, have: str, older_than: float | None, ids: int) -> str:
    if ids:
        return f"Delete {counted(ids, 'message')} from queue {queue!r}, which has {have}?"
    if older_than is not None:
        return f"Delete what was settled at least {age(older_than)} ago from queue {queue!r}, which has {have}?"
    return f"Delete {have} from queue {queue!r}?"
