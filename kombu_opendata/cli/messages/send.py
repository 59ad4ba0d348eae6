"""Commands ``send`` and ``publish``: one message, or many."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from ...configuration.kinds import WholeNumberKind
from ...json_values import json_value
from ...readable_text import counted
from ..exit_codes import Command, CommandError
from ..option_types import LENGTH, MOMENT, header_option, validated, with_options
from ..output import JsonLines, Reply, note, print_json, say
from ..progress import bar
from ..target import Target, at_target, complete_exchanges, json_option, queue_argument, target_options

if TYPE_CHECKING:
    from ...queue_client import QueueClient

#: messages of one commit, with --lines
_BATCH = 1000


_sending_options = with_options(
    click.option("--file", "-f", "file", type=click.File("rb"), help="read the body from this file; - for stdin"),
    click.option(
        "--as",
        "kind",
        type=click.Choice(["text", "json", "bytes"]),
        default="text",
        show_default=True,
        help="type of the body",
    ),
    header_option("a header"),
    click.option("--delay", type=LENGTH, help="deliver it after this long"),
    click.option("--at", type=MOMENT, help="deliver it from this time on"),
    click.option(
        "--priority",
        type=validated(WholeNumberKind(0, 255)),
        default=0,
        help="0 (the default) to 255; higher comes first",
    ),
    click.option("--ttl", type=LENGTH, help="delete it if it has not been read within this time"),
    click.option("--key", "idempotency_key", default="", help="idempotency key: a second send stores nothing"),
)


@click.command(
    cls=Command, epilog="Example: opendata-queue send orders '{\"id\": 7}' --as json -H amount:=120 --delay 30s"
)
@queue_argument
@click.argument("body", required=False)
@click.option("--lines", is_flag=True, help="each line of the body is a message")
@_sending_options
@target_options
@json_option
def send(
    queue: str, body: str | None, lines: bool, file: Any, kind: str, target: Target, as_json: bool, **settings: Any
) -> None:
    """Send a message to a queue and print its id.

    Without BODY and --file, the body is read from stdin. The queue must exist. The message is on disk when the command
    returns.
    """
    _check_time(settings)
    if lines and settings["idempotency_key"]:
        raise click.UsageError("--key is for one message: leave out --lines")
    convert = _typed(kind)
    if not lines:
        content = convert(_whole(body, file))
        with target.client() as client:
            id = client.send(queue, content, **settings)
        return Reply({"queue": queue, "id": id}, str(id)).print(as_json)
    del settings["idempotency_key"]
    bodies = (convert(line, f"line {number:,}:") for number, line in enumerate(_lines(body, file), 1))
    with target.client() as client:
        count = _send_lines(client, queue, bodies, settings, as_json)
    if not as_json:
        say(f"{counted(count, 'message')} sent to queue {queue!r}")


def _check_time(settings: Mapping[str, Any]) -> None:
    if settings["at"] is not None and settings["delay"] is not None:
        raise click.UsageError("give --delay or --at, not both")


def _send_lines(client: QueueClient, queue: str, bodies: Iterator[Any], settings: dict[str, Any], as_json: bool) -> int:
    sent = 0
    try:
        with bar(f"sending to {queue}") as update:
            while batch := list(islice(bodies, _BATCH)):
                ids = client.send_batch(queue, batch, **settings)
                sent += len(ids)
                update(sent, None)
                if as_json:
                    print_json(JsonLines([{"queue": queue, "ids": ids}]))
    except BaseException:
        if sent:
            note(f"lines 1 to {sent:,} were sent; the error concerns the lines after them")
        raise
    return sent


@click.command(cls=Command, epilog="Example: opendata-queue publish hello --exchange news --routing-key de.sports")
@click.argument("body", required=False)
@click.option(
    "--exchange",
    default="",
    shell_complete=complete_exchanges,
    help="where to publish; default: the default exchange, which routes by queue name",
)
@click.option(
    "--routing-key", default="", help="what bindings are compared with; for the default exchange, a queue's name"
)
@_sending_options
@at_target
def publish(
    body: str | None, exchange: str, routing_key: str, file: Any, kind: str, target: Target, **settings: Any
) -> Reply:
    """Send a message to every queue that matches.

    A queue matches by a binding, by its name or by its filter. Exits with 1 if none matches.
    """
    _check_time(settings)
    content = _typed(kind)(_whole(body, file))
    with target.client() as client:
        published = client.publish(content, exchange=exchange, routing_key=routing_key, **settings)
    if published.id is None:
        return Reply(published, error=CommandError("no queue matches: nothing was stored"))
    return Reply(
        published, f"{published.id}{' (sent before)' if published.repeated else ''}: {', '.join(published.queues)}"
    )


def _whole(body: str | None, file: Any) -> bytes:
    if body is not None and file is not None:
        raise click.UsageError("give BODY or --file, not both")
    if body is not None:
        return body.encode("utf-8", "surrogateescape")
    source = file or sys.stdin.buffer
    content: bytes = source.read()
    return content


def _lines(body: str | None, file: Any) -> Iterable[bytes]:
    lines = (file or sys.stdin.buffer) if body is None else _whole(body, file).splitlines()
    return (line.rstrip(b"\r\n") for line in lines)


def _typed(kind: str) -> Callable[..., Any]:
    def convert(content: bytes, name: str = "the body") -> Any:
        try:
            return content if kind == "bytes" else json_value(content) if kind == "json" else content.decode()
        except ValueError as exc:
            advice = "send it --as text" if kind == "json" else "send it --as bytes"
            raise click.UsageError(f"{name} {content[:40]!r} is not {kind}: {exc}; {advice}") from exc

    return convert
