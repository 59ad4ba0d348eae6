"""Validation and parsing of a queue's arguments, by the table in :mod:`.protocol.queue_arguments`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from ...errors import RequestError, SelectorError
from ...protocol.log_position import LogPosition
from ...protocol.queue_arguments import (
    BY_NAME,
    FILTER,
    FILTER_MODE,
    KNOWN,
    PARTITION_BY,
    Argument,
    QueueArguments,
)
from ...selectors import compile_expression
from ...storage.routing.queue_filters import filter_of
from .name_checks import MAX_NAME_BYTES

#: limit for the unknown arguments that are compared with all known names
_MAX_SUGGESTIONS = 8
_MAX_COMPARED = 64

_DEAD_LETTERS = {a.name: a.field for a in KNOWN if a.field.startswith("dead_letter_")}
_PARTITIONS = {a.name: a.field for a in KNOWN if a.field.startswith("partition_")}


def parse(queue: str, arguments: Mapping[str, Any]) -> QueueArguments:
    """Parse a queue's arguments, without unknown ones; raise RequestError for a wrong type or range."""
    parsed: dict[str, Any] = {}
    for name, value in arguments.items():
        argument = BY_NAME.get(name)
        if argument is None:
            continue
        check(argument, value, f"queue {queue!r}", queue=queue)
        if argument.field:
            parsed[argument.field] = value
    _check_retry(queue, parsed)
    _check_dead_letters(queue, parsed)
    _check_filter(queue, arguments)
    _check_partitions(queue, parsed)
    return QueueArguments(**parsed)


def check(argument: Argument, value: Any, place: str, **values: Any) -> None:
    """Raise RequestError, with a text that begins with ``place``, if a value is not valid for an argument."""
    if not _takes(argument, value):
        raise RequestError(
            f"{place}: {argument.name} must be {argument.allowed}, not {value!r}", argument=argument.name, **values
        )


def _takes(argument: Argument, value: Any) -> bool:
    if argument.kind is object:
        try:
            LogPosition.parse(value)
        except RequestError:
            return False
    return argument.takes(value)


def _check_retry(queue: str, parsed: Mapping[str, Any]) -> None:
    longest, first = parsed.get("retry_max_delay_ms"), parsed.get("retry_delay_ms", 0)
    if longest is not None and (not first or longest < first):
        text = (
            f"queue {queue!r}: x-retry-max-delay must be {first or 'given with an x-retry-delay and be that'} or more, "
            f"not {longest!r}"
        )
        raise RequestError(text, argument="x-retry-max-delay", queue=queue)


def _check_filter(queue: str, arguments: Mapping[str, Any]) -> None:
    if FILTER_MODE in arguments and FILTER not in arguments:
        raise RequestError(
            f"queue {queue!r} has an {FILTER_MODE} and no {FILTER}: give both", argument=FILTER_MODE, queue=queue
        )
    try:
        filter_of(arguments)
    except SelectorError as exc:
        raise SelectorError(
            f"queue {queue!r}: {FILTER}, {exc.text}", **exc.values, argument=FILTER, queue=queue
        ) from exc


def _check_partitions(queue: str, parsed: Mapping[str, Any]) -> None:
    expression = parsed.get("partition_by")
    if expression is None:
        for name, field in _PARTITIONS.items():
            if field in parsed:
                text = f"queue {queue!r} has an {name} and no {PARTITION_BY}: give both"
                raise RequestError(text, argument=name, queue=queue)
        return
    try:
        compile_expression(expression)
    except SelectorError as exc:
        text = f"queue {queue!r}: {PARTITION_BY}, {exc.text}"
        raise SelectorError(text, **exc.values, argument=PARTITION_BY, queue=queue) from exc


def _check_dead_letters(queue: str, parsed: Mapping[str, Any]) -> None:
    for name, value in _DEAD_LETTERS.items():
        size = len(parsed.get(value, "").encode("utf-8", "surrogatepass"))
        if size > MAX_NAME_BYTES:
            raise RequestError(
                f"queue {queue!r}: {name} has {size} bytes, the limit is {MAX_NAME_BYTES}", argument=name, queue=queue
            )
    if "dead_letter_routing_key" in parsed and "dead_letter_exchange" not in parsed:
        text = (
            f"queue {queue!r} has an x-dead-letter-routing-key and no x-dead-letter-exchange: give both "
            "(the default exchange is an empty text)"
        )
        raise RequestError(text, argument="x-dead-letter-routing-key", queue=queue)


def parse_stored(queue: str, arguments: Mapping[str, Any]) -> QueueArguments:
    """Parse the arguments of a stored queue, except for values that only an older version of the broker accepted."""
    accepted = valid(arguments)
    for name in (FILTER, FILTER_MODE):  # the storage has compiled the filter, or logged that it is not valid
        accepted.pop(name, None)
    try:
        return parse(queue, accepted)
    except RequestError:
        for name in ("x-retry-max-delay", *_DEAD_LETTERS, *_PARTITIONS):
            accepted.pop(name, None)
        return parse(queue, accepted)


def valid(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without values that only an older version of the broker accepted."""
    return {name: value for name, value in arguments.items() if name not in BY_NAME or _takes(BY_NAME[name], value)}


def unknown(what: str, name: str, arguments: Iterable[str], known: Collection[str] = BY_NAME.keys()) -> list[str]:
    """Return warnings about unknown arguments of ``what``, a queue or an exchange.

    Arguments without ``x-`` are ignored, unless the argument with ``x-`` is known.
    """
    unknown_names = [key for key in arguments if key not in known and (key.startswith("x-") or f"x-{key}" in known)]
    return [
        f"{what} {name!r}: the argument {key!r} is unknown and has no effect"
        # limited, because each suggestion takes time, and a declaration may have any number of arguments
        + (_did_you_mean(key, known) if at < _MAX_SUGGESTIONS else "")
        for at, key in enumerate(unknown_names)
    ]


def _did_you_mean(name: str, known: Collection[str]) -> str:
    bare = {argument.removeprefix("x-"): argument for argument in known}
    target = name.removeprefix("x-").replace("_", "-")
    close = get_close_matches(target, bare, n=1) if len(name) <= _MAX_COMPARED else []
    return f"; did you mean {bare[close[0]]!r}?" if close else ""


def refuse_unknown(queue: str, arguments: Iterable[str]) -> None:
    """Raise RequestError, with a suggestion of the probable name, for an unknown argument of a queue."""
    warnings = unknown("queue", queue, arguments)
    if warnings:
        text = warnings[0] if warnings[0].endswith("?") else f"{warnings[0]}."
        raise RequestError(f"{text} To keep it for another broker, use force (--force).", queue=queue)


def with_effect(arguments: Mapping[str, Any], *, stored: bool) -> dict[str, Any]:
    """Return the arguments that have an effect on a stored or transient queue, to compare two declarations."""
    return {
        name: value
        for name, value in arguments.items()
        if (known := BY_NAME.get(name)) is not None and known.field and (stored or not known.stored_only)
    }


def difference(have: Mapping[str, Any], want: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the name of the first argument that differs, and descriptions of both sides."""
    name = min(name for name in have.keys() | want.keys() if have.get(name, have) != want.get(name, want))
    before_text, after_text = (
        f"with {name}={side[name]!r}" if name in side else f"without {name}" for side in (have, want)
    )
    return name, before_text, after_text
