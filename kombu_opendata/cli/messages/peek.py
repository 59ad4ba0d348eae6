"""Commands ``peek`` and ``message``: the messages of a queue, or one message, without leases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ...errors import BodyTooLarge
from ...json_values import plain
from ...readable_text import age, counted, pairs, shown, value_text
from ..exit_codes import DAMAGED, Command, CommandError
from ..option_types import MESSAGE_ID, limit_option
from ..target import Target, complete_queues, look_options, queue_argument
from ..terminal.output import print_facts, print_json, print_json_line, say
from ..terminal.tables import Column, print_table

if TYPE_CHECKING:
    from ...errors import OpenDataError
    from ...queue_client import QueueClient
    from ...queue_client.message_models import Message, MessageState, StoredMessage

_CELL = 60
_PREVIEW = 200
#: metadata headers that are shown as facts
_ROUTING = ("exchange", "routing_key", "priority")


@click.command(cls=Command, epilog="Example: opendata-queue peek orders -n 5 --full")
@queue_argument
@limit_option("how many at most", 10, low=1)
@click.option("--after", type=MESSAGE_ID, help="only messages above this id")
@click.option("--full", is_flag=True, help="show whole bodies")
@look_options
def peek(queue: str, limit: int, after: int | None, full: bool, target: Target, as_json: bool) -> None:
    """Show a queue's waiting messages without claiming them.

    With --json, each message is a separate document on its line.
    """
    with target.client(looks=True) as client:
        errors: list[OpenDataError] = []
        messages = _noted(_peeked(client, queue, limit, -1 if after is None else after), errors)
        if as_json:
            for peeked in messages:
                print_json_line(_as_json(peeked))
            _check(errors)
            return
        rows = [_row(peeked, 0 if full else _CELL) for peeked in messages]
    # delays and priorities are rare, and the body needs the space
    columns = [column for at, column in enumerate(_PEEKED) if column not in _RARE or any(row[at] for row in rows)]
    rows = [tuple(cell for cell, column in zip(row, _PEEKED, strict=True) if column in columns) for row in rows]
    print_table(columns, rows, none=f"no messages wait in queue {queue!r}", spare=("attempts",))
    _check(errors)


_PEEKED: list[Column] = [
    ("id", True), ("received", False), ("due", False), ("priority", True), ("attempts", True), ("headers", False),
    ("body", False),
]  # fmt: skip
_RARE = (("due", False), ("priority", True))


def _noted(found: Iterator[Message], errors: list[OpenDataError]) -> Iterator[Message]:
    """Yield messages, and record the errors of those that can't be read."""
    for peeked in found:
        if peeked.error is not None:
            errors.append(peeked.error)
        yield peeked


def _check(errors: list[OpenDataError]) -> None:
    """End with the exit code for damage if messages can't be read."""
    if errors:
        raise CommandError(f"{counted(len(errors), 'message')} can't be read: {errors[0].text}", DAMAGED)


def _row(one: Message, limit: int) -> tuple[Any, ...]:
    wait = (one.visible_at - datetime.now(UTC)).total_seconds() if one.visible_at is not None else 0
    due = f"in {age(wait)}" if wait > 0 else ""
    priority = one.properties.get("priority") or 0
    body = _body(one, limit)
    return str(one.id), one.received_at, due, priority, one.attempts, pairs(one.headers, _CELL), body


def _peeked(client: QueueClient, queue: str, limit: int, after: int) -> Iterator[Message]:
    while limit > 0:
        page = client.peek(queue, min(limit, 100), after=after)
        yield from page
        if not page:
            return
        limit, after = limit - len(page), page[-1].id


@click.command(cls=Command, epilog="Example: opendata-queue message 1234")
@click.argument("id", type=MESSAGE_ID)
@click.option("--queue", default="", help="show only its state in this queue", shell_complete=complete_queues)
@click.option("--save", type=click.File("wb"), help="write the body as it is stored to this file; - for stdout")
@look_options
def message(id: int, queue: str, save: Any, target: Target, as_json: bool) -> None:
    """Show a message by its id: body, headers and states."""
    with target.client(looks=True) as client:
        stored = client.get(id, queue)
    if save is not None:
        if stored.message.error is not None:
            raise stored.message.error
        save.write(stored.message.raw)
        return
    if as_json:
        states = [{name: value for name, value in plain(state).items() if name != "token"} for state in stored.states]
        print_json({**plain(stored), "message": _as_json(stored.message), "states": states})
    else:
        _print_message(stored)
    if stored.message.error is not None:
        _check([stored.message.error])


def _print_message(found: StoredMessage) -> None:
    message, metadata = _with_metadata(found), found.metadata
    print_facts(
        {
            "id": str(message.id),
            "received": found.received_at,
            "visible": found.visible_at,
            "priority": message.properties.get("priority") or metadata.get("priority") or 0,
            "exchange": message.exchange or "(default)",
            "routing key": message.routing_key,
            "content type": message.content_type,
        }
    )
    for name, value in message.headers.items():
        say(f"header {name}: {value_text(value, _PREVIEW)}")
    columns = [("queue", False), ("state", False), ("attempts", True), ("since or until", False), ("holder", False)]
    rows = [(*_state(state), state.holder) for state in found.states]
    print_table(columns, rows, none="The message is in no queue.")
    say(f"body: {_body(message)}")


def _with_metadata(found: StoredMessage) -> Message:
    """Return the message; if it can't be read, with headers and routing from its metadata, which is another record."""
    metadata = found.metadata
    if found.message.error is None:
        return found.message
    headers = {name: text for name, text in metadata.items() if name not in _ROUTING}
    return replace(
        found.message,
        exchange=metadata.get("exchange", ""),
        routing_key=metadata.get("routing_key", ""),
        headers=headers,
    )


def _body(one: Message, limit: int = 0) -> str:
    if one.error is not None:
        return "(can't be read)"
    try:
        return value_text(one.displayed(), limit)
    except BodyTooLarge as exc:
        return shown(f"({exc})", limit)


def _state(state: MessageState) -> tuple[Any, ...]:
    at = state.running_since or state.settled_at or state.leased_until or state.visible_at
    return state.queue, state.state, state.attempts, at


def _as_json(one: Message) -> dict[str, Any]:
    """Return a message without the fields of a lease, as nothing was claimed; a body that is too large is in bytes."""
    try:
        body = None if one.error is not None else plain(one.displayed())
    except BodyTooLarge:
        body = plain(one.raw)
    document = {name: value for name, value in plain(one).items() if name not in ("token", "leased_until")}
    return {"id": one.id, "queue": one.queue, "body": body, **document}
