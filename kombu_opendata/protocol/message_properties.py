"""Priority, due time and time to live of a message, from its headers and properties in Kombu."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from math import ceil
from typing import Any

from ..errors import InvalidMessage

MAX_PRIORITY = 255


def priority_of(value: Any) -> int:
    """Return a message's priority, from 0 (lowest) to 255; None means 0. Raise InvalidMessage for other values."""
    if value is None:
        return 0
    if type(value) is int and 0 <= value <= MAX_PRIORITY:
        return value
    try:
        number = int(value)
        if 0 <= number <= MAX_PRIORITY:
            return number
    except (TypeError, ValueError):
        pass
    raise InvalidMessage(f"priority {value!r} is not a number from 0 to {MAX_PRIORITY}", name="priority")


def visible_at_ms_of(headers: Mapping[Any, Any]) -> int:
    """Return the due time of a Celery task with an ``eta`` header, in ms since the epoch; 0 means immediately.

    The header is an ISO 8601 time, in UTC if it has no time zone; for other values, raise InvalidMessage. A delayed
    message stays in the store, not in a worker's memory.
    """
    eta = headers.get("eta")
    if eta is None or "task" not in headers:
        return 0
    try:
        due = datetime.fromisoformat(eta)
        if due.tzinfo is None:
            due = due.replace(tzinfo=UTC)
        return max(0, ceil(due.timestamp() * 1000))  # never early: a worker would hold the task until it is due
    except (TypeError, ValueError, OverflowError) as exc:
        raise InvalidMessage(f"the eta header {eta!r} is not an ISO 8601 time", name="eta") from exc


def ttl_ms_of(expiration: Any) -> int:
    """Return AMQP's ``expiration`` in ms, -1 for no TTL; raise InvalidMessage if it is not a number."""
    if expiration is None or expiration == "":
        return -1
    try:
        ttl_ms = int(expiration)
    except (TypeError, ValueError):
        ttl_ms = -1
    if ttl_ms < 0:
        raise InvalidMessage(f"expiration {expiration!r} is not a number of milliseconds from 0 up", name="expiration")
    return ttl_ms
