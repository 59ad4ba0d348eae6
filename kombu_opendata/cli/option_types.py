"""Types of options and arguments: times, durations, positions in the log, headers; and shared options."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from ..configuration.kinds import NumberKind, WholeNumberKind
from ..configuration.units import seconds_of
from ..control_queues import is_control_queue
from ..protocol.log_position import FIRST, NOW

T = TypeVar("T")


class Length(click.ParamType):  # type: ignore[type-arg]
    """A duration, in seconds."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return value
        seconds = seconds_of(str(value).strip())
        if seconds is None:
            self.fail(f"{value!r} is not a duration: write 90s, 30m, 2h, 30d, 1w, or 1h30m", param, ctx)
        return seconds


class Moment(click.ParamType):  # type: ignore[type-arg]
    """A time: ISO 8601 (local time if it has no zone), or a duration before now."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        moment = value if isinstance(value, datetime) else moment_of(str(value).strip())
        if moment is None:
            self.fail(
                f"{value!r} is not a time: write 2026-11-21T09:30 (local time), 2026-11-21T09:30Z, or how long ago: "
                "30m, 2h, 30d",
                param,
                ctx,
            )
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


class LogPositionType(click.ParamType):  # type: ignore[type-arg]
    """A position in the log of messages: first, now, a time, or a message id."""

    name = "POSITION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value in (FIRST, NOW):
            return value
        if value.isdecimal():
            return MESSAGE_ID.convert(value, param, ctx)
        moment = moment_of(value)
        if moment is None:
            self.fail(
                f"{value!r} is not a position in the log: write first, now, a message id, a time (2026-11-21T09:30), "
                "or how long ago (2h)",
                param,
                ctx,
            )
        return moment


class Bounded(click.ParamType):  # type: ignore[type-arg]
    """A number or a time, validated as the broker's options are."""

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
    """Return a JSON value; Python's NaN and Infinity are refused.

    Raises:
        ValueError: the text is not JSON.
    """
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def with_options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds several options or arguments, in this order."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def header_option(what: str) -> Callable[[Any], Any]:
    """Return the option ``--header``, for :func:`headers_of` and :func:`header_choices`; ``what`` begins its help."""
    text = f"{what}, or NAME:=JSON; may be repeated"
    return click.option("--header", "-H", "headers", multiple=True, metavar="NAME=TEXT", help=text)


def limit_option(help: str, default: int = 0, *, low: int = 0, high: int | None = None) -> Callable[[Any], Any]:
    """Return the option ``--limit``."""
    kind = Bounded(WholeNumberKind(low, high))
    return click.option("--limit", "-n", type=kind, default=default, show_default=default > 0, help=help)


def where_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option ``--where``."""
    return click.option("--where", default="", metavar="SELECTOR", help="only messages that match this filter")(command)


def every_queue_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option ``--all``, for :func:`listed`."""
    text = "also Celery's queues for events and remote control"
    return click.option("--all", "every", is_flag=True, help=text)(command)


def listed(found: Mapping[str, T], every: bool) -> dict[str, T]:
    """Return the queues that a table shows: Celery's queues for events and remote control only if ``every`` is set."""
    return {name: entry for name, entry in found.items() if every or not is_control_queue(name)}


def ids_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option ``--id`` for several ids."""
    return click.option("--id", "ids", multiple=True, type=MESSAGE_ID, help="only this message; may be repeated")(
        command
    )


def headers_of(given: Iterable[str], what: str = "header") -> dict[str, Any]:
    """Return the headers in texts of the form ``name=text`` and ``name:=JSON``.

    Raises:
        click.UsageError: a text has neither form.
    """
    return dict(_header(text, what) for text in given)


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
    """Return the headers to search for: the wanted values of each name.

    Raises:
        click.UsageError: a header has no value, or one that can't be searched for.
    """
    choices: dict[str, list[Any]] = {}
    for text in given:
        name, value = _header(text, "header")
        if not isinstance(value, (str, int, float)):
            raise click.UsageError(f"can't search for the header {text!r}: give a text, a number, true or false")
        choices.setdefault(name, []).append(value)
    return choices
