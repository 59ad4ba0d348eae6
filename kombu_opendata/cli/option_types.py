"""Types of options and arguments: times, durations, positions in the log, headers; and shared options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from ..configuration.kinds import Kind, WholeNumberKind, seconds_of
from ..control_queues import is_control_queue
from ..json_values import named_value
from ..protocol.log_position import FIRST, NOW
from .exit_codes import failure

T = TypeVar("T")
MAX_ID = (1 << 63) - 1


class ReadBy(click.ParamType):  # type: ignore[type-arg]
    """A value that a function reads; its ValueError is the reason why the value is not valid."""

    def __init__(self, name: str, read: Callable[[Any], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._read(value)
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


def validated(kind: Kind[Any]) -> ReadBy:
    """Return the type of values that are validated as those of the broker's options are."""
    return ReadBy(kind.metavar, kind.read)


def _read_length(value: Any) -> float:
    """Return a duration in seconds."""
    seconds = value if isinstance(value, (int, float)) else seconds_of(value.strip())
    if seconds is None:
        raise ValueError(f"{value!r} is not a duration: write 90s, 30m, 2h, 30d, 1w, or 1h30m")
    return seconds


def _read_moment(value: Any) -> datetime:
    """Return a time: ISO 8601 (local time if it has no zone), or a duration before now."""
    moment = value if isinstance(value, datetime) else moment_of(value.strip())
    if moment is None:
        forms = "2026-11-21T09:30 (local time), 2026-11-21T09:30Z, or how long ago: 30m, 2h, 30d"
        raise ValueError(f"{value!r} is not a time: write {forms}")
    return moment


def moment_of(text: str, now: datetime | None = None) -> datetime | None:
    """Return the time that a text names, in UTC and in whole milliseconds; None if it names none."""
    now = now or datetime.now(UTC)
    ago = 0.0 if text == "now" else seconds_of(text)
    try:
        moment = now - timedelta(seconds=ago) if ago is not None else datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _read_position(value: Any) -> Any:
    """Return a position in the log of messages: first, now, a time, or a message id."""
    if not isinstance(value, str) or value in (FIRST, NOW):
        return value
    if value.isdecimal():
        return MESSAGE_ID.convert(value, None, None)
    moment = moment_of(value)
    if moment is None:
        forms = "first, now, a message id, a time (2026-11-21T09:30), or how long ago (2h)"
        raise ValueError(f"{value!r} is not a position in the log: write {forms}")
    return moment


def _read_selector(value: str) -> str:
    """Return the text of a filter; an invalid one is refused before the command connects."""
    from ..errors import SelectorError
    from ..selectors import compile_selector

    try:
        if value:
            compile_selector(value)
    except SelectorError as exc:
        raise failure(exc) or exc from exc
    return value


def state_name(state: str) -> str:
    """Return the name for users of a message's state in the protocol."""
    return "ready" if state == "available" else state.replace("_", " ")


#: unlike that of click's IntRange, its help does not show the range
MESSAGE_ID = ReadBy("ID", lambda value: click.IntRange(0, MAX_ID).convert(value, None, None))
LENGTH, MOMENT = ReadBy("DURATION", _read_length), ReadBy("TIME", _read_moment)
POINT, SELECTOR = ReadBy("POSITION", _read_position), ReadBy("SELECTOR", _read_selector)


def with_options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds several options or arguments, in this order."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def several(name: str, *flags: str, help: str, **more: Any) -> Callable[[Any], Any]:
    """Return an option that may be repeated; its parameter is the plural of its name."""
    parameter = f"{name.removeprefix('--')}{'es' if name.endswith('s') else 's'}"
    return click.option(name, *flags, parameter, multiple=True, help=f"{help}; may be repeated", **more)


def header_option(what: str, read: Callable[[Iterable[str]], Any] | None = None) -> Callable[[Any], Any]:
    """Return the option ``--header``.

    Args:
        what: the beginning of its help.
        read: returns the value of the parameter; default: :func:`headers_of`.
    """
    callback = parsed(read or headers_of)
    return several("--header", "-H", metavar="NAME=TEXT", help=f"{what}, or NAME:=JSON", callback=callback)


def parsed(read: Callable[[Any], T]) -> Callable[[click.Context, click.Parameter, Any], T]:
    """Return the callback of a parameter whose texts this function reads, before the command connects."""
    return lambda _context, _param, texts: read(texts)


def limit_option(help: str, default: int = 0, *, low: int = 0, high: int | None = None) -> Callable[[Any], Any]:
    """Return the option ``--limit``; its default is shown unless it is 0."""
    kind = validated(WholeNumberKind(low, high))
    return click.option("--limit", "-n", type=kind, default=default, show_default=default > 0, help=help)


where_option = click.option("--where", default="", type=SELECTOR, help="only messages that match this filter")
#: ``--all``, for :func:`listed`
every_queue_option = click.option(
    "--all", "every", is_flag=True, help="also Celery's queues for events and remote control"
)
ids_option = several("--id", type=MESSAGE_ID, help="only this message")
#: the page of a list
page_options = with_options(
    click.option(
        "--order", type=click.Choice(["desc", "asc"]), default="desc", show_default=True, help="newest or oldest first"
    ),
    click.option(
        "--limit",
        "-n",
        type=validated(WholeNumberKind(1, 1000)),
        default=20,
        show_default=True,
        help="entries per page, up to 1,000",
    ),
    click.option("--next", "next", metavar="CURSOR", help="the page after this cursor"),
    click.option("--all", "everything", is_flag=True, help="all pages; with --json, one document a line"),
)


def listed(queues: Mapping[str, T], every: bool) -> dict[str, T]:
    """Return the queues that a table shows: Celery's queues for events and remote control only if ``every`` is set."""
    return {name: entry for name, entry in queues.items() if every or not is_control_queue(name)}


def headers_of(texts: Iterable[str], what: str = "header") -> dict[str, Any]:
    """Return the headers, or other values, in texts of the form ``name=text`` and ``name:=JSON``.

    Raises click.UsageError if a text has neither form.
    """
    try:
        return dict(named_value(text, what) for text in texts)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc


def arguments_of(texts: Iterable[str]) -> dict[str, Any]:
    """Return the arguments of a queue or a binding in such texts."""
    return headers_of(texts, "argument")


def header_choices(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Return the headers to search for: the wanted values of each name.

    Raises click.UsageError if a header has no value, or one that can't be searched for.
    """
    choices: dict[str, list[Any]] = {}
    for text in texts:
        [(name, value)] = headers_of([text]).items()
        if not isinstance(value, (str, int, float)):
            raise click.UsageError(f"can't search for the header {text!r}: give a text, a number, true or false")
        choices.setdefault(name, []).append(value)
    return choices
