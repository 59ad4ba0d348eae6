"""Key of a unique message: at most one message with it waits or runs, or was published within a time.

A Kombu message names its key in the header :data:`HEADER`: a text, or a map with ``key``, ``until`` and
``on_conflict``. The client reads it (:func:`unique_key_of`) and requests it in the field ``unique`` of its publish.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import msgspec

from ..errors import InvalidMessage

HEADER = "x-opendata-unique"
MAX_KEY_BYTES = 255
#: the longest time for which a key may be held: thirty days
MAX_SECONDS = 30 * 86_400
#: values of ``until_ms`` besides a time from the publish
UNTIL_STARTED, UNTIL_DONE = 0, -1
#: ``until`` and ``on_conflict`` of a header that is a text
DEFAULTS = ("done", "return")


class OnConflict(IntEnum):
    """Outcome of a publish whose key another message holds."""

    RETURN = 0  # nothing is stored; the reply names the holder
    REPLACE = 1  # a holder that waits is removed, in the commit of the new message; otherwise as RETURN
    ERROR = 2  # nothing is stored; the publish fails
    KEEP = 3  # the message is stored, without the key


class UniqueKey(msgspec.Struct, array_like=True, gc=False):
    """Key that a message requests.

    ``until_ms`` is a time from the publish, :data:`UNTIL_STARTED` or :data:`UNTIL_DONE`. The holder of a key with
    ``pinned`` is never replaced.
    """

    key: str
    until_ms: int = UNTIL_DONE
    on_conflict: int = OnConflict.RETURN
    pinned: bool = False

    def check(self) -> None:
        """Raise InvalidMessage for values out of range."""
        try:
            size = len(self.key.encode())
        except UnicodeEncodeError as exc:
            raise _invalid("key", ascii(self.key), "a text with a UTF-8 form") from exc
        if not 0 < size <= MAX_KEY_BYTES:
            text = f"a unique key has {size} bytes; it must have 1 to {MAX_KEY_BYTES}: use a hash of a longer text"
            raise InvalidMessage(text, name="key", size=size, limit=MAX_KEY_BYTES)
        if not UNTIL_DONE <= self.until_ms <= 1000 * MAX_SECONDS:
            raise _invalid("until", self.until_ms, f"at most {MAX_SECONDS} seconds")
        if not OnConflict.RETURN <= self.on_conflict <= OnConflict.KEEP:
            raise _invalid("on_conflict", self.on_conflict, "0 to 3")


def unique_key_of(headers: Mapping[Any, Any]) -> UniqueKey | None:
    """Return the key that the header of a message requests; None if it is None.

    The retry of a task is stored in any case: it keeps the key of its task, or takes a free one. A time counts from the
    first publish, so a retry does not hold the key longer.

    Raises:
        InvalidMessage: the header can't be used.
    """
    key = headers[HEADER]
    if key is None:
        return None
    until_ms, mode = UNTIL_DONE, OnConflict.RETURN
    if not isinstance(key, str) and isinstance(key, Mapping):
        until, on_conflict = key.get("until", DEFAULTS[0]), key.get("on_conflict", DEFAULTS[1])
        key, until_ms, mode = key.get("key"), until_ms_of(until), on_conflict_of(on_conflict)
    if not isinstance(key, str):
        raise _invalid("key", key, "a text")
    is_retry = bool(headers.get("retries"))
    if is_retry and until_ms > 0:
        return None
    unique = UniqueKey(key, until_ms, OnConflict.KEEP if is_retry else mode, mode is OnConflict.KEEP)
    unique.check()
    return unique


def until_ms_of(until: Any) -> int:
    """Return ``until`` in ms; raise InvalidMessage unless it is "started", "done" or a number of seconds."""
    if until in ("started", "done"):
        return UNTIL_STARTED if until == "started" else UNTIL_DONE
    if isinstance(until, (int, float)) and not isinstance(until, bool) and 0.001 <= until <= MAX_SECONDS:
        return int(until * 1000)
    raise _invalid("until", until, f'"started", "done" or a number of seconds up to {MAX_SECONDS}')


def on_conflict_of(value: Any) -> OnConflict:
    try:
        return OnConflict[str(value).upper()]
    except KeyError as exc:
        raise _invalid("on_conflict", value, '"return", "replace", "error" or "keep"') from exc


def _invalid(name: str, value: Any, expected: str) -> InvalidMessage:
    text = f"{name} of a unique message must be {expected}, not {str(value)[:80]!r}"
    return InvalidMessage(text, name=name, value=value)
