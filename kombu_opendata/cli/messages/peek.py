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
from ..option_types import MESSAGE_ID, limit_option, state_name
from ..output import JsonLines, Reply, Table
from ..target import complete_queues, queue_argument, reads

if TYPE_CHECKING:
    from ...errors import OpenDataError
    from ...queue_client import QueueClient
    from ...queue_client.message_models import Message, StoredMessage

_CELL = 60
_PREVIEW = 200
#: metadata headers that are shown as facts
_ROUTING = ("exchange", "routing_key", "priority")


def _due(message: Message) -> str:
    wait = (message.visible_at - datetime.now(UTC)).total_seconds() if message.visible_at is not None else 0
    return f"in {age(wait)}" if wait > 0 else ""


def _messages(limit: int) -> Table:
    return Table(
        {
            "id#": lambda message: str(message.id),
            "received": "received_at",
            "due": _due,
            "priority#": lambda message: message.properties.get("priority") or 0,
            "attempts#": "",
            "headers": lambda message: pairs(message.headers, _CELL),
            "body": lambda message: _body(message, limit),
        },
        none="no messages are ready",
        spare=("attempts",),
        rare=("due", "priority"),  # the body needs the space
    )


@click.command(cls=Command, epilog="Example: opendata-queue peek orders -n 5 --full")
@queue_argument
@limit_option("how many at most", 10, low=1)
@click.option("--after", type=MESSAGE_ID, help="only messages above this id")
@click.option("--full", is_flag=True, help="show whole bodies")
@reads
def peek(client: QueueClient, queue: str, limit: int, after: int | None, full: bool) -> Reply:
    """Show ready and delayed messages of a queue.

    They are not claimed. With --json, each message is a separate document on its line.
    """
    errors: list[OpenDataError] = []
    messages = _peeked(client, queue, limit, -1 if after is None else after, errors)
    table = _messages(0 if full else _CELL)._replace(none=f"queue {queue!r} has no ready or delayed messages")
    return Reply(JsonLines(map(_document, messages)), table.of(messages), check=lambda: _damage(errors))


def _peeked(client: QueueClient, queue: str, limit: int, after: int, errors: list[OpenDataError]) -> Iterator[Message]:
    """Yield messages, and record the errors of those that can't be read."""
    while limit > 0:
        page = client.peek(queue, min(limit, 100), after=after)
        errors += [message.error for message in page if message.error is not None]
        yield from page
        if not page:
            return
        limit, after = limit - len(page), page[-1].id


def _damage(errors: list[OpenDataError]) -> CommandError | None:
    """Return the error for messages that can't be read."""
    if not errors:
        return None
    return CommandError(f"{counted(len(errors), 'message')} can't be read: {errors[0].text}", DAMAGED)


@click.command(cls=Command, epilog="Example: opendata-queue message 1234")
@click.argument("id", type=MESSAGE_ID)
@click.option("--queue", default="", help="show only its state in this queue", shell_complete=complete_queues)
@click.option("--save", type=click.File("wb"), help="write the body as it is stored to this file; - for stdout")
@reads
def message(client: QueueClient, id: int, queue: str, save: Any) -> Reply | None:
    """Show a message by its id: body, headers and states."""
    stored = client.get(id, queue)
    error = stored.message.error
    if save is not None:
        if error is not None:
            raise error
        save.write(stored.message.raw)
        return None
    states = [{name: value for name, value in plain(state).items() if name != "token"} for state in stored.states]
    document = {**plain(stored), "message": _document(stored.message), "states": states}
    shown_message, metadata = _with_metadata(stored), stored.metadata
    facts = {
        "id": str(shown_message.id),
        "received": stored.received_at,
        "due": stored.visible_at,
        "priority": shown_message.properties.get("priority") or metadata.get("priority") or 0,
        "exchange": shown_message.exchange or "(default)",
        "routing key": shown_message.routing_key,
        "content type": shown_message.content_type,
    }
    return Reply(
        document,
        facts,
        *(f"header {name}: {value_text(value, _PREVIEW)}" for name, value in shown_message.headers.items()),
        _STATES.of(stored.states),
        f"body: {_body(shown_message)}",
        error=_damage([] if error is None else [error]),
    )


_STATES = Table(
    {
        "queue": "",
        "state": lambda state: state_name(state.state),
        "attempts#": "",
        "since or until": lambda s: s.running_since or s.settled_at or s.leased_until or s.visible_at,
        "holder": "",
    },
    none="The message is in no queue.",
)


def _with_metadata(stored: StoredMessage) -> Message:
    """Return the message; if it can't be read, with the headers and the routing of its metadata, a separate record."""
    metadata = stored.metadata
    if stored.message.error is None:
        return stored.message
    headers = {name: text for name, text in metadata.items() if name not in _ROUTING}
    exchange, routing_key = metadata.get("exchange", ""), metadata.get("routing_key", "")
    return replace(stored.message, exchange=exchange, routing_key=routing_key, headers=headers)


def _body(message: Message, limit: int = 0) -> str:
    if message.error is not None:
        return "(can't be read)"
    try:
        return value_text(message.displayed(), limit)
    except BodyTooLarge as exc:
        return shown(f"({exc})", limit)


def _document(message: Message) -> dict[str, Any]:
    """Return a message without the fields of a lease, as it has none; a body that is too large is not decoded."""
    try:
        body = None if message.error is not None else plain(message.displayed())
    except BodyTooLarge:
        body = plain(message.raw)
    document = {name: value for name, value in plain(message).items() if name not in ("token", "leased_until")}
    return {"id": message.id, "queue": message.queue, "body": body, **document}
