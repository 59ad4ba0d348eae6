"""Types of options and arguments: times, durations, positions in the log, headers; and options that repeat."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from ..configuration.kinds import NumberKind, WholeNumberKind
from ..configuration.units import seconds_of
from ..control_queues import is_control_queue

T = TypeVar("T")


class Length(click.ParamType):  # type: ignore[type-arg]
    """A duration, in seconds."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return value
        found = seconds_of(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is not a duration: write 90s, 30m, 2h, 30d, 1w, or 1h30m", param, ctx)
        return found


class Moment(click.ParamType):  # type: ignore[type-arg]
    """A time: ISO 8601 (local time if it has no zone), or how long ago."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        found = value if isinstance(value, datetime) else moment_of(str(value).strip())
        if found is None:
            self.fail(
                f"{value!r} is not a time: write 2026-11-21T09:30 (local time), 2026-11-21T09:30Z, or how long ago: "
                "30m, 2h, 30d",
                param,
                ctx,
            )
        return found


def moment_of(text: str, now: datetime | None = None) -> datetime | None:
    """The time that a text names, in UTC and, as times are stored, in whole milliseconds; None if it names none."""
    now = now or datetime.now(UTC)
    ago = 0.0 if text == "now" else seconds_of(text)
    try:
        found = now - timedelta(seconds=ago) if ago is not None else datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return found.replace(microsecond=found.microsecond // 1000 * 1000)


class LogPositionType(click.ParamType):  # type: ignore[type-arg]
    """A position in the log of messages: first, now, a time, or a message id."""

    name = "POSITION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value in ("first", "now"):
            return value
        if value.isdecimal():
            return MESSAGE_ID.convert(value, param, ctx)
        found = moment_of(value)
        if found is None:
            self.fail(
                f"{value!r} is not a position in the log: write first, now, a message id, a time (2026-11-21T09:30), "
                "or how long ago (2h)",
                param,
                ctx,
            )
        return found


class Bounded(click.ParamType):  # type: ignore[type-arg]
    """A number or a time, read and refused as those of a broker's options are."""

    def __init__(self, kind: NumberKind) -> None:
        self._kind = kind
        self.name = kind.metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return self._kind.read(value)
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


class MessageId(click.ParamType):  # type: ignore[type-arg]
    """A message id. Unlike click's IntRange, it does not show its range in the help."""

    name = "ID"
    max = (1 << 63) - 1

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return int(click.IntRange(0, self.max).convert(value, param, ctx))


MESSAGE_ID = MessageId()
LENGTH, MOMENT, POINT = Length(), Moment(), LogPositionType()


def json_value(text: str | bytes) -> Any:
    """A JSON value; Python's NaN and Infinity are refused.

    Raises:
        ValueError: it is not JSON.
    """
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def with_options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A decorator that adds several options or arguments, in this order."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def header_option(what: str) -> Callable[[Any], Any]:
    """The option ``--header``, for :func:`headers_of` and :func:`header_choices`; ``what`` begins its help."""
    text = f"{what}, or NAME:=JSON; may be repeated"
    return click.option("--header", "-H", "headers", multiple=True, metavar="NAME=TEXT", help=text)


def limit_option(help: str, default: int = 0, *, low: int = 0, high: int | None = None) -> Callable[[Any], Any]:
    """The option ``--limit``."""
    kind = Bounded(WholeNumberKind(low, high))
    return click.option("--limit", "-n", type=kind, default=default, show_default=default > 0, help=help)


def where_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option ``--where``."""
    return click.option("--where", default="", metavar="SELECTOR", help="only messages that match this filter")(command)


def every_queue_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option ``--all``, for :func:`listed`."""
    text = "also Celery's queues for events and remote control"
    return click.option("--all", "every", is_flag=True, help=text)(command)


def listed(found: Mapping[str, T], every: bool) -> dict[str, T]:
    """Return what a table shows of queues by name: not those of Celery for events and remote control, unless asked."""
    return {name: one for name, one in found.items() if every or not is_control_queue(name)}


def ids_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option ``--id`` for several ids."""
    return click.option("--id", "ids", multiple=True, type=MESSAGE_ID, help="only this message; may be repeated")(
        command
    )


def headers_of(given: Iterable[str], what: str = "header") -> dict[str, Any]:
    """Headers from ``name=text`` and ``name:=JSON``.

    Raises:
        click.UsageError: a text is neither.
    """
    return dict(_header(one, what) for one in given)


def _header(one: str, what: str) -> tuple[str, Any]:
    name, separator, value = one.partition("=")
    if not separator or not name.rstrip(":"):
        raise click.UsageError(f"can't read the {what} {one!r}: write name=text, or name:=3 for a JSON value")
    if not name.endswith(":"):
        return name, value
    try:
        return name[:-1], json_value(value)
    except ValueError as exc:
        raise click.UsageError(f"the {what} {one!r} has no valid JSON after ':=': {exc}") from exc


def header_choices(given: Iterable[str]) -> dict[str, list[Any]]:
    """Headers to search for: the wanted values of each name.

    Raises:
        click.UsageError: a header has no value, or one that can't be searched for.
    """
    found: dict[str, list[Any]] = {}
    for one in given:
        name, value = _header(one, "header")
        if not isinstance(value, (str, int, float)):
            raise click.UsageError(f"can't search for the header {one!r}: give a text, a number, true or false")
        found.setdefault(name, []).append(value)
    return found
