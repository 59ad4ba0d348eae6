"""Conversion of clients' results to JSON values, and of users' texts from JSON.

Times become ISO 8601, in UTC if they have a time zone. Bytes become base64.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID


def moment(ms: int) -> datetime | None:
    """Return milliseconds since the epoch as a datetime; None for 0."""
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None


#: depth below which values become ``…``: headers may be nested deeper than Python's stack
_MAX_DEPTH = 200


def plain(value: Any, depth: int = 0) -> Any:
    """Return a JSON value for anything that a client returns.

    Bytes become ``{"base64": …}``; NaN and infinities, which JSON does not have, become texts.
    """
    if depth > _MAX_DEPTH:
        return "…"
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID, Exception)):
        return str(value)
    if isinstance(value, bytes):
        from base64 import b64encode

        return {"base64": b64encode(value).decode()}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name), depth + 1) for field in fields(value) if field.repr}
    if (names := getattr(type(value), "__struct_fields__", None)) is not None:  # a message of the broker
        shown = [_shown_as(value, name) for name in names if name != "rid"]
        return {name: plain(getattr(value, name), depth + 1) for name in shown}
    if isinstance(value, Mapping):
        return {str(name): plain(item, depth + 1) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value


def _shown_as(value: Any, name: str) -> str:
    """Return the name of a field, or that of its property without the unit: ``since`` for ``since_ms``."""
    unitless = name.removesuffix("_ms")
    return unitless if hasattr(value, unitless) else name


def with_times(value: Any) -> Any:
    """Return a report in which a datetime ``…_at`` replaces each time ``…_at_ms`` in milliseconds; None replaces 0."""
    if isinstance(value, Mapping):
        return dict(_timed(str(name), item) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return [with_times(item) for item in value]
    return value


def _timed(name: str, value: Any) -> tuple[str, Any]:
    if f"_{name}".endswith("_at_ms") and (value is None or type(value) is int):
        return name.removesuffix("_ms"), moment(value or 0)
    return name, with_times(value)


def unpacked(value: Any) -> Any:
    """Return results of the history as dictionaries and lists, with times."""
    from msgspec import Struct
    from msgspec.structs import asdict

    from .protocol.messages import EventInfo

    if isinstance(value, (list, tuple)):
        return [unpacked(item) for item in value]
    if not isinstance(value, Struct):
        return value
    routing = {"exchange": value.exchange, "topic": value.topic} if isinstance(value, EventInfo) else {}
    return with_times({**routing, **{name: unpacked(item) for name, item in asdict(value).items()}})


def json_value(text: str | bytes) -> Any:
    """Return a JSON value; raise ValueError for other texts, also for NaN and Infinity, which JSON does not have."""
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def named_value(text: str, what: str) -> tuple[str, Any]:
    """Return the name and the value in ``name=text`` or ``name:=JSON``; raise ValueError for other texts.

    Args:
        what: a description of the pair, for errors.
    """
    name, separator, value = text.partition("=")
    if not separator or not name.rstrip(":"):
        raise ValueError(f"can't read the {what} {text!r}: write name=text, or name:=3 for a JSON value")
    try:
        return (name[:-1], json_value(value)) if name.endswith(":") else (name, value)
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"the {what} {text!r} has no valid JSON after ':=': {exc}") from exc
