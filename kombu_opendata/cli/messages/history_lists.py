"""Commands ``messages`` and ``attempts``: the history of messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ...json_values import moment, plain, unpacked
from ...protocol.task_reports import STATES
from ...readable_text import pairs
from ..exit_codes import Command
from ..option_types import MESSAGE_ID, MOMENT, header_choices, header_option, ids_option, with_options
from ..target import Target, complete_clients, complete_queues, look_options
from ..terminal.output import local, note, print_json, print_json_line
from ..terminal.tables import Column, print_table

if TYPE_CHECKING:
    from ...protocol.messages import AttemptPage, MessagePage
    from ...protocol.messages.history_messages import AttemptInfo, MessageInfo, QueueStatus
    from ...queue_client import QueueClient

_CELL = 60
_LARGE_PAGES = {"limit": 1000}
#: columns that are left out on a narrow terminal, the first one first
_SPARE = ("attempt", "seconds", "consumer")
#: headers that every message has; only --json shows them
_ROUTING = frozenset(("exchange", "routing_key", "priority", "content_type"))
_STATUSES = ("available", "in_flight", "running", "done", "failed")
_OUTCOMES = ("acked", "failed", "rejected", "expired", "released", "redriven")
_TASK_STATES = STATES[1:]

Row = Callable[[Any], tuple[Any, ...]]


_list_options = with_options(
    click.option(
        "--queue",
        "-q",
        "queues",
        multiple=True,
        help="only this queue; may be repeated",
        shell_complete=complete_queues,
    ),
    header_option("only with this header"),
    click.option("--since", type=MOMENT, help="from this time on (2026-11-21T09:30), or how long ago (30m, 2h, 30d)"),
    click.option("--until", type=MOMENT, help="up to this time"),
    click.option(
        "--order", type=click.Choice(["desc", "asc"]), default="desc", show_default=True, help="newest or oldest first"
    ),
    click.option(
        "--limit", "-n", type=int, metavar="N", default=20, show_default=True, help="entries per page, up to 1,000"
    ),
    click.option("--next", "next", metavar="CURSOR", help="the page after this cursor"),
    click.option("--prev", "prev", metavar="CURSOR", help="the page before this cursor"),
    click.option("--all", "everything", is_flag=True, help="all pages; with --json, one document a line"),
)


@click.command(cls=Command, epilog="Example: opendata-queue messages -q orders -s failed -H customer=acme --since 2h")
@_list_options
@click.option("--status", "-s", "statuses", multiple=True, type=click.Choice(_STATUSES), help="only in this state")
@ids_option
@look_options
def messages(target: Target, as_json: bool, everything: bool, **wanted: Any) -> None:
    """List stored messages and their state in each queue.

    They are ordered by the time at which the broker received them.
    """
    columns: list[Column] = [("id", True), ("received", False), ("queues", False), ("headers", False)]
    arguments = _asked(**wanted)
    with target.client(looks=True) as client:
        _check_queues(client, arguments["queues"])
        if everything:
            _show_all(client.iter_messages(**arguments | _LARGE_PAGES), as_json, columns, _message_row)
        else:
            _show_page(client.list_messages(**arguments), arguments, as_json, columns, _message_row)


def _message_row(one: MessageInfo) -> tuple[Any, ...]:
    states = ", ".join(f"{state.queue}: {_status(state)}" for state in one.queues)
    own_headers = {name: value for name, value in one.headers.items() if name not in _ROUTING}
    return str(one.id), moment(one.received_at_ms), states or "none", pairs(own_headers, _CELL)


def _status(state: QueueStatus) -> str:
    due = moment(state.visible_at_ms)
    if state.status != "available" or due is None or due <= datetime.now(UTC):
        return state.status
    return f"available, due {local(due)}"


@click.command(cls=Command, epilog="Example: opendata-queue attempts -q orders -o rejected -o expired --since 30m")
@_list_options
@click.option("--outcome", "-o", "outcomes", multiple=True, type=click.Choice(_OUTCOMES), help="only with this outcome")
@click.option("--state", "states", multiple=True, type=click.Choice(_TASK_STATES), help="only with this task state")
@click.option("--exception", "exceptions", multiple=True, help="only with this type of exception; may be repeated")
@click.option("--tracebacks", is_flag=True, help="with the tracebacks of failed tasks, for --json")
@click.option("--id", "message_ids", multiple=True, type=MESSAGE_ID, help="only this message; may be repeated")
@click.option(
    "--consumer",
    "consumers",
    multiple=True,
    help="only this consumer; may be repeated",
    shell_complete=complete_clients,
)
@click.option("--manual/--not-manual", default=None, help="only what was done by hand, or only the rest")
@look_options
def attempts(target: Target, as_json: bool, everything: bool, **wanted: Any) -> None:
    """List finished attempts with their consumers and outcomes.

    They are ordered by the time at which they ended. A task's state is the one that its worker reported.
    """
    columns: list[Column] = [
        ("message", True), ("queue", False), ("ended", False), ("seconds", True), ("attempt", True),
        ("outcome", False), ("state", False), ("exception", False), ("consumer", False),
    ]  # fmt: skip
    arguments = _asked(**wanted)
    with target.client(looks=True) as client:
        _check_queues(client, arguments["queues"])
        if everything:
            _show_all(client.iter_attempts(**arguments | _LARGE_PAGES), as_json, columns, _attempt_row)
        else:
            _show_page(client.list_attempts(**arguments), arguments, as_json, columns, _attempt_row)


def _attempt_row(one: AttemptInfo) -> tuple[Any, ...]:
    seconds = f"{(one.ended_at_ms - one.claimed_at_ms) / 1000:.3f}" if one.claimed_at_ms else ""
    outcome = one.outcome + (", requeued" if one.requeued else "") + (", by hand" if one.manual else "")
    return (
        str(one.message_id), one.queue, moment(one.ended_at_ms), seconds, one.number, outcome, one.state, one.exception,
        one.consumer,
    )  # fmt: skip


# ---------------------------------------------------------------------- pages
def _check_queues(client: QueueClient, queues: Iterable[str]) -> None:
    """Check that these queues exist or existed.

    Raises:
        NotFound: a queue does not exist and is not in the history.
    """
    from ...errors import NotFound

    existing = {info.name for info in client.list_queues()} if queues else set()
    for queue in queues:
        if queue in existing:
            continue
        query: Any = {"queues": [queue], "limit": 1}
        if not client.list_messages(**query).items and not client.list_attempts(**query).items:
            raise NotFound(f"there is no queue {queue!r}, not even in the history", queue=queue)


def _asked(headers: tuple[str, ...], since: datetime | None, until: datetime | None, **wanted: Any) -> Any:
    """Return the arguments of a query."""
    return {**wanted, "headers": header_choices(headers), "gte": since, "lte": until}


def _show_all(found: Iterable[Any], as_json: bool, columns: list[Column], row: Row) -> None:
    if as_json:
        for record in found:
            print_json_line(unpacked(record))
    else:
        print_table(columns, map(row, found), none="none", spare=_SPARE)


def _show_page(page: AttemptPage | MessagePage, asked: Any, as_json: bool, columns: list[Column], row: Row) -> None:
    # a cursor belongs to exactly this window, and "2h" is another window when the next page is requested
    window = {"since": asked["gte"], "until": asked["lte"]}
    cursors = {"next": page.next, "prev": page.prev}
    if as_json:
        print_json({"items": [unpacked(record) for record in page.items], **cursors, **window})
        return
    print_table(columns, map(row, page.items), none="none", spare=_SPARE)
    times = "".join(f"--{name} {plain(at)} " for name, at in window.items() if at is not None)
    for name, cursor in cursors.items():
        if cursor:
            note(f"{name} page: {times}--{name} {cursor}")
