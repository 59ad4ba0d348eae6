"""Conversion and validation of the values of history filters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from ...errors import InvalidFilter
from ...protocol.envelope import header_text

Time = int | datetime
Header = str | int | float | bool
Headers = Mapping[str, Header | Iterable[Header]]

_MS = timedelta(milliseconds=1)
_MAX_BUCKET_SECONDS = 1e13
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def texts(name: str, given: Iterable[str] | None) -> list[str]:
    if isinstance(given, str):
        raise InvalidFilter(f"{name}: {given!r} is a single text: give a list of texts", value=given)
    return [of_type(name, value, str) for value in given or ()]


def of_type(name: str, value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        raise InvalidFilter(f"{name}: {value!r} is not of type {kinds[0].__name__}", value=repr(value))
    return value


def ids_of(given: Any) -> list[int]:
    if isinstance(given, int):
        raise InvalidFilter(f"{given!r} is a single message id: give a list of ids", value=given)
    ids = list(given or ())
    for id in ids:
        if not isinstance(id, int) or isinstance(id, bool) or not 0 <= id < 1 << 63:
            raise InvalidFilter(f"{id!r} is not a message id: an id is a number from 0 up", value=repr(id))
    return ids


def bucket_ms(seconds: Any) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not abs(seconds) < _MAX_BUCKET_SECONDS:
        raise InvalidFilter(f"{seconds!r} is not a length for a bucket: give a number of seconds", value=repr(seconds))
    return round(1000 * seconds)  # the broker checks the range


def header_values(given: Headers | None) -> dict[str, list[str]]:
    if given is not None and not isinstance(given, Mapping):
        raise InvalidFilter(f"headers: {given!r} is not a mapping of names to values", value=repr(given))
    texts_by_name = {}
    for name, value in (given or {}).items():
        several = not isinstance(value, (str, int, float)) and isinstance(value, Iterable)
        of_type("name of a header", name, str)
        texts_by_name[name] = [header_text(item) or str(item) for item in (value if several else [value])]  # type: ignore[union-attr]
    return texts_by_name


def page_limit(limit: Any) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise InvalidFilter(f"limit: {limit!r} is not a number", value=repr(limit))
    return max(min(limit, 1 << 62), -1 << 62)  # the broker checks the range


def floor_ms(at: Any) -> int | None:
    """Return the last millisecond that is not after this time."""
    return None if at is None else at if type(at) is int else _since_epoch(at) // _MS


def ceil_ms(at: Any) -> int | None:
    """Return the first millisecond that is not before this time."""
    return None if at is None else start_ms(at)


def start_ms(at: Any) -> int:
    return at if type(at) is int else -(-_since_epoch(at) // _MS)


def _since_epoch(at: Any) -> timedelta:
    if not isinstance(at, datetime):
        raise InvalidFilter(f"{at!r} is not a time: give a datetime, or milliseconds since the epoch", value=repr(at))
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)) - _EPOCH
