"""Positions in the message log, where a replay starts or ends: now, the first message, a time, a message id."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

from ...errors import RequestError
from ...protocol.queue_arguments import BY_NAME, FIRST, NOW
from ...storage.records.kinds import MAX_MESSAGE_ID
from ...storage.records.routing_cursor import Cursor


class LogPosition(NamedTuple):
    """A position in the log: an id or a time; without both, it means now.

    Attributes:
        id: the id of the message.
        at_ms: when the message was received, in ms since the epoch.
    """

    id: int | None = None
    at_ms: int | None = None


def parse(value: Any) -> LogPosition:
    """Parse a position from a client.

    Raises:
        RequestError: it is not valid.
    """
    if type(value) is int and 0 <= value < MAX_MESSAGE_ID:
        return LogPosition(id=value)
    if value == NOW:
        return LogPosition()
    if value == FIRST:
        return LogPosition(id=0)
    if isinstance(value, str) and not value.isdigit():  # digits alone could mean an id or a time in ms
        try:
            at = datetime.fromisoformat(value)
            if at.tzinfo is not None:
                return LogPosition(at_ms=max(0, int(at.astimezone(UTC).timestamp() * 1000)))
        except (ValueError, OverflowError):
            pass
    raise RequestError(
        f"{_short(value)} is not a position in the message log: give {BY_NAME['x-start'].words}", value=_short(value)
    )


def _short(value: Any) -> str:
    return repr(value)[:100]


def cursor(start: Any, until: Any, *, next_id: int, now_ms: int, again: bool = False, selector: str = "") -> Cursor:
    """Return a cursor from ``start`` to ``until``.

    Raises:
        RequestError: one of them is not valid, they are not in order, or the start is in the future.
    """
    first, last = parse(start), parse(until)
    low = first.id if first.id is not None else 0 if first.at_ms is not None else next_id
    if low > next_id or (first.at_ms or 0) > now_ms:
        raise RequestError(
            f"a start of {_short(start)} is in the future: the next message id is {next_id}", start=start
        )
    high = min(last.id, next_id) if last.id is not None else next_id
    if (last.id is not None and last.id < low) or (last.at_ms is not None and last.at_ms < (first.at_ms or 0)):
        raise RequestError(f"the end, {_short(until)}, is before the start, {_short(start)}", start=start, until=until)
    return Cursor(
        low, low, max(low, high), first.at_ms or 0, last.at_ms or 0, now_ms, now_ms, again=again, selector=selector
    )  # fmt: skip
