"""``peek``, ``send``, ``publish`` and ``message``: single messages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from .exit_codes import Command, Failure
from .option_types import LENGTH, MESSAGE_ID, MOMENT, header_option, headers_of, json_value
from .target import complete_queues, find, json_option, queue_argument, target_options
from .terminal.output import (
    Column,
    age,
    counted,
    note,
    pairs,
    plain,
    print_facts,
    print_json,
    print_json_line,
    print_table,
    say,
    value_text,
)

if TYPE_CHECKING:
    from ..queue_client import QueueClient
    from ..queue_client.models import Message, MessageState

#: messages of one commit, with --lines
_BATCH = 1000
_CELL = 60
_PREVIEW = 200


# ---------------------------------------------------------------------- looking
@click.command(cls=Command)
@queue_argument
@click.option(
    "--limit", "-n", type=click.IntRange(1), metavar="N", default=10, show_default=True, help="how many at most"
)
@click.option("--after", type=MESSAGE_ID, help="only messages above this id")
@click.option("--full", is_flag=True, help="show whole bodies")
@target_options
@json_option
def peek(
    queue: str, limit: int, after: int | None, full: bool, url: str | None, tls_ca: str | None, as_json: bool
) -> None:
    """Look at a queue's waiting messages without claiming them.

    With --json, one document a line.
    """
    with find(url, tls_ca).client(looks=True) as client:
        found = _peeked(client, queue, limit, -1 if after is None else after)
        if as_json:
            for one in found:
                print_json_line(_as_json(one))
            return
        rows = [_row(one, 0 if full else _CELL) for one in found]
    # delays and priorities are rare, and the room is for the body
    columns = [column for at, column in enumerate(_PEEKED) if column not in _RARE or any(row[at] for row in rows)]
    rows = [tuple(cell for cell, column in zip(row, _PEEKED, strict=True) if column in columns) for row in rows]
    print_table(columns, rows, none=f"no messages wait in queue {queue!r}", spare=("attempts",))


_PEEKED: list[Column] = [
    ("id", True), ("received", False), ("due", False), ("priority", True), ("attempts", True), ("headers", False),
    ("body", False),
]  # fmt: skip
_RARE = (("due", False), ("priority", True))


def _row(one: Message, limit: int) -> tuple[Any, ...]:
    wait = (one.visible_at - datetime.now(UTC)).total_seconds() if one.visible_at is not None else 0
    due = f"in {age(wait)}" if wait > 0 else ""
    priority = one.properties.get("priority") or 0
    body = value_text(one.body, limit)
    return str(one.id), one.received_at, due, priority, one.attempts, pairs(one.headers, _CELL), body


def _peeked(client: QueueClient, queue: str, limit: int, after: int) -> Iterator[Message]:
    while limit > 0:
        page = client.peek(queue, min(limit, 100), after=after)
        yield from page
        if not page:
            return
        limit, after = limit - len(page), page[-1].id


@click.command(cls=Command)
@click.argument("id", type=MESSAGE_ID)
@click.option("--queue", default="", help="show only its state in this queue", shell_complete=complete_queues)
@target_options
@json_option
def message(id: int, queue: str, url: str | None, tls_ca: str | None, as_json: bool) -> None:
    """Show a message by its id: body, headers and states."""
    with find(url, tls_ca).client(looks=True) as client:
        found = client.get(id, queue)
    if as_json:
        states = [{name: value for name, value in plain(state).items() if name != "token"} for state in found.states]
        print_json({**plain(found), "message": _as_json(found.message), "states": states})
        return
    one = found.message
    print_facts(
        {
            "id": str(one.id),
            "received": found.received_at,
            "visible": found.visible_at,
            "priority": one.properties.get("priority") or 0,
            "exchange": one.exchange or "(default)",
            "routing key": one.routing_key,
            "content type": one.content_type,
        }
    )
    for name, value in one.headers.items():
        say(f"header {name}: {value_text(value, _PREVIEW)}")
    columns = [("queue", False), ("state", False), ("attempts", True), ("since or until", False), ("holder", False)]
    rows = [(*_state(state), state.holder) for state in found.states]
    print_table(columns, rows, none="It is in no queue.")
    say(f"body: {value_text(one.body)}")


def _state(state: MessageState) -> tuple[Any, ...]:
    at = state.settled_at or state.leased_until or state.visible_at
    return state.queue, state.state, state.attempts, at


def _as_json(one: Message) -> dict[str, Any]:
    """A message that nobody holds for us: without a lease."""
    return {name: value for name, value in plain(one).items() if name not in ("token", "leased_until")}


# ---------------------------------------------------------------------- sending
def _sending_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option("--file", "-f", "file", type=click.File("rb"), help="read the body from this file; - is stdin"),
        click.option(
            "--as",
            "kind",
            type=click.Choice(["text", "json", "bytes"]),
            default="text",
            show_default=True,
            help="what the body is",
        ),
        header_option("a header"),
        click.option("--delay", type=LENGTH, help="deliver it only after this long"),
        click.option("--at", type=MOMENT, help="deliver it only from this time on"),
        click.option(
            "--priority",
            type=click.IntRange(0, 255),
            metavar="N",
            default=0,
            help="0 (the default) to 255, which comes first",
        ),
        click.option("--ttl", type=LENGTH, help="remove it if nobody has read it by then"),
        click.option("--key", "idempotency_key", default="", help="idempotency key: sending it again stores nothing"),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(cls=Command)
@queue_argument
@click.argument("body", required=False)
@click.option("--lines", is_flag=True, help="each line of the body is a message")
@_sending_options
@target_options
@json_option
def send(
    queue: str,
    body: str | None,
    lines: bool,
    file: Any,
    kind: str,
    headers: tuple[str, ...],
    at: datetime | None,
    url: str | None,
    tls_ca: str | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Send a message to a queue and print its id.

    Without BODY and --file, the body is read from stdin. When the command returns, the message is on disk. The queue
    must exist.
    """
    given = headers_of(headers)
    _check_times(at, settings)
    if lines and settings["idempotency_key"]:
        raise click.UsageError("--key is for one message: leave out --lines")
    convert = _typed(kind)
    ids: list[int] = []
    with find(url, tls_ca).client() as client:
        if not lines:
            ids.append(client.send(queue, convert(_whole(body, file)), given, at=at, **settings))
        else:
            del settings["idempotency_key"]
            bodies = (convert(line, f"line {number:,}:") for number, line in enumerate(_lines(body, file), 1))
            ids = _send_lines(client, queue, bodies, {"headers": given, "at": at, **settings}, as_json)
    if as_json and not lines:
        print_json({"queue": queue, "id": ids[0]})
    elif not as_json:
        say(str(ids[0]) if not lines else f"{counted(len(ids), 'message')} sent to queue {queue!r}")


def _check_times(at: datetime | None, settings: dict[str, Any]) -> None:
    if at is not None and settings["delay"] is not None:
        raise click.UsageError("--delay or --at, not both")


def _send_lines(
    client: QueueClient, queue: str, bodies: Iterator[Any], settings: dict[str, Any], as_json: bool
) -> list[int]:
    from .terminal.progress import bar

    sent: list[int] = []
    try:
        with bar(f"sending to {queue}") as update:
            while batch := list(islice(bodies, _BATCH)):
                ids = client.send_batch(queue, batch, **settings)
                sent += ids
                update(len(sent), None)
                if as_json:
                    print_json_line({"queue": queue, "ids": ids})
    except BaseException:
        if sent:
            note(f"lines 1 to {len(sent):,} were sent; the error is about the lines after them")
        raise
    return sent


@click.command(cls=Command)
@click.argument("body", required=False)
@click.option(
    "--exchange", default="", help="where to publish; default: the default exchange, which knows queues by name"
)
@click.option("--routing-key", default="", help="what bindings are compared with, or a queue's name")
@_sending_options
@target_options
@json_option
def publish(
    body: str | None,
    exchange: str,
    routing_key: str,
    file: Any,
    kind: str,
    headers: tuple[str, ...],
    at: datetime | None,
    url: str | None,
    tls_ca: str | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Send a message to every queue that matches.

    A queue matches by a binding, by its name or by its filter. Exits with 1 if none does.
    """
    _check_times(at, settings)
    given = headers_of(headers)
    content = _typed(kind)(_whole(body, file))
    with find(url, tls_ca).client() as client:
        done = client.publish(content, given, exchange=exchange, routing_key=routing_key, at=at, **settings)
    if as_json:
        print_json(done)
    elif done.id is not None:
        say(f"{done.id}{' (sent before)' if done.repeated else ''}: {', '.join(done.queues)}")
    if done.id is None:
        raise Failure("no queue matches: nothing was stored")


def _whole(body: str | None, file: Any) -> bytes:
    if body is not None and file is not None:
        raise click.UsageError("BODY or --file, not both")
    if body is not None:
        return body.encode("utf-8", "surrogateescape")
    source = file or sys.stdin.buffer
    content: bytes = source.read()
    return content


def _lines(body: str | None, file: Any) -> Iterable[bytes]:
    if body is not None or file is None:
        return (
            line.rstrip(b"\r\n") for line in (sys.stdin.buffer if body is None else _whole(body, file).splitlines())
        )
    return (line.rstrip(b"\r\n") for line in file)


def _typed(kind: str) -> Callable[..., Any]:
    def convert(content: bytes, name: str = "the body") -> Any:
        try:
            return content if kind == "bytes" else json_value(content) if kind == "json" else content.decode()
        except ValueError as exc:
            advice = "send it --as text" if kind == "json" else "send it --as bytes"
            raise click.UsageError(f"{name} {content[:40]!r} is not {kind}: {exc}; {advice}") from exc

    return convert
