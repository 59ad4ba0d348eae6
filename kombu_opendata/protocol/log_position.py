"""Position in the message log where a replay or a queue starts or ends: now, the first message, a time, or an id."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

from ..errors import RequestError

NOW, FIRST = "now", "first"
ALLOWED = f'"{NOW}", "{FIRST}", an ISO 8601 time with its offset from UTC, or a message id'
#: exclusive limit for message ids
_MAX_ID = 0x6F << 56


class LogPosition(NamedTuple):
    """Position in the log: a message id, or a time of receipt in ms since the epoch. Without both it means now."""

    id: int | None = None
    at_ms: int | None = None

    @classmethod
    def parse(cls, value: Any) -> LogPosition:
        """Parse a position from a client; raise RequestError if it is not valid."""
        if type(value) is int and 0 <= value < _MAX_ID:
            return cls(id=value)
        if value == NOW:
            return cls()
        if value == FIRST:
            return cls(id=0)
        if isinstance(value, str) and not value.isdigit():  # digits alone could mean an id or a time in ms
            try:
                at = datetime.fromisoformat(value)
                if at.tzinfo is not None:
                    return cls(at_ms=max(0, int(at.astimezone(UTC).timestamp() * 1000)))
            except (ValueError, OverflowError):
                pass
        short = repr(value)[:100]
        raise RequestError(f"{short} is not a position in the message log: give {ALLOWED}", value=short)


def wire_position(position: str | int | datetime) -> str | int:
    """Return a position in its wire form; the broker refuses a time without a UTC offset."""
    return position.isoformat() if isinstance(position, datetime) else position
