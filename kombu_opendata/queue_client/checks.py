"""Conversion of call arguments for the wire, with validation before anything is sent."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from ..errors import InvalidMessage, RequestError
from ..protocol.envelope import check_headers, encode_envelope
from ..protocol.message_properties import MAX_PRIORITY
from ..protocol.messages import Item, Outgoing
from . import body_codec
from .message_models import Message

#: seconds, as a number or a timedelta
Seconds = float | timedelta
#: a time: a datetime (UTC if it has no time zone), or seconds since the epoch
Moment = datetime | float
#: a position in the log of messages: "now", "first", a time, or a message id
Point = str | int | datetime
#: a message, or its id
Target = Message | int

#: thirty days, the broker's limit for leases
MAX_SECONDS = 30 * 86_400
MAX_DELAY_SECONDS = 100 * 366 * 86_400
MAX_ID = (1 << 63) - 1
DIGEST_BYTES = 16
#: properties of AMQP that are set by arguments
_OWN_PROPERTIES = {"priority": "priority", "expiration": "ttl"}


def milliseconds(value: Any, what: str, *, low: float = 0, high: float = MAX_SECONDS) -> int:
    """Return seconds as milliseconds, rounded up; raise RequestError if the value is not a number, or out of range."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not math.isfinite(seconds):
        raise RequestError(f"{what} must be a number of seconds or a timedelta, not {value!r}", name=what)
    if not low <= seconds <= high:
        raise RequestError(f"{what} must be {low:g} to {high:g} seconds, not {seconds:g}", name=what, limit=high)
    return math.ceil(seconds * 1000)


def whole(value: Any, what: str, low: int, high: int) -> int:
    """Return a whole number in a range; raise RequestError if the value is not a whole number, or out of range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(f"{what} must be a whole number from {low} to {high}, not {value!r}", name=what, limit=high)
    return value


def due_at_ms(delay: Seconds | None, at: Moment | None, now_ms: int) -> int:
    """Return the due time in ms since the epoch; 0 means immediately.

    Raises RequestError if both arguments are given, or one is not valid.
    """
    if delay is not None and at is not None:
        raise RequestError("give a delay or a time, not both")
    if delay is not None:
        wait = milliseconds(delay, "the delay", high=MAX_DELAY_SECONDS)
        return now_ms + wait if wait else 0
    if at is None:
        return 0
    if isinstance(at, datetime):
        return max(0, math.ceil((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000))
    return milliseconds(at, "the time", high=1 << 43)


def name(value: Any, what: str) -> str:
    """Return a name; raise RequestError if the value is not a text, or is empty."""
    if not isinstance(value, str) or not value:
        raise RequestError(f"{what} must be a str that is not empty, not {value!r}", name=what)
    return text(value, what)


def text(value: Any, what: str) -> str:
    """Return a text; raise RequestError if the value is not a text, or can't be encoded as UTF-8."""
    try:
        value.encode()
    except (AttributeError, UnicodeEncodeError) as exc:
        raise RequestError(f"{what} must be a str that can be encoded as UTF-8, not {value!a}", name=what) from exc
    return str(value)


def outgoing(
    body: Any,
    headers: Mapping[str, Any] | None,
    exchange: str,
    routing_key: str,
    *,
    priority: int,
    due_ms: int,
    ttl: Seconds | None,
    now_ms: int,
    properties: Mapping[str, Any] | None = None,
) -> tuple[Outgoing, bytes]:
    """Return a message for the wire, and the digest of its body, with which the broker stores an idempotency key.

    Raises InvalidMessage or RequestError with the reason why the message can't be sent.
    """
    whole(priority, "the priority", 0, MAX_PRIORITY)
    ttl_ms = -1 if ttl is None else milliseconds(ttl, "the time to live", high=MAX_DELAY_SECONDS)
    raw, content_type, content_encoding = body_codec.encode(body)
    for value, what in ((headers, "the headers"), (properties, "the properties")):
        if value is not None and not isinstance(value, Mapping):
            raise RequestError(f"{what} must be a mapping, not {type(value).__name__}", name=what)
    header_values = {str(key): value for key, value in (headers or {}).items()}
    for own, argument in _OWN_PROPERTIES.items():
        if own in (properties or {}):
            raise RequestError(f"give the property {own!r} as the argument {argument!r}", name=own)
    values = {"priority": priority, "delivery_mode": 2, "timestamp": now_ms // 1000, **(properties or {})}
    if ttl_ms >= 0:
        values["expiration"] = str(ttl_ms)
    try:
        envelope = encode_envelope(raw, content_type, content_encoding, header_values, values, exchange, routing_key)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise InvalidMessage(f"the headers or properties can't be encoded: {exc}", name="headers") from exc
    check_headers(envelope, header_values, exchange, routing_key, priority, content_type)
    data = raw.encode() if isinstance(raw, str) else raw
    digest = hashlib.blake2b(data, digest_size=DIGEST_BYTES, person=content_type[-16:].encode()).digest()
    return (envelope, {}, priority, due_ms, ttl_ms), digest


def outgoing_batch(
    bodies: Iterable[Any],
    headers: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None,
    queue: str,
    *,
    priority: int,
    due_ms: int,
    ttl: Seconds | None,
    now_ms: int,
) -> list[tuple[Outgoing, bytes]]:
    """Return many messages to a queue as :func:`outgoing`, with the same headers for all or a mapping for each."""
    body_list = list(bodies)
    each = [headers] * len(body_list) if headers is None or isinstance(headers, Mapping) else list(headers)
    whole(len(each), "the number of headers", len(body_list), len(body_list))
    return [
        outgoing(body, of, "", queue, priority=priority, due_ms=due_ms, ttl=ttl, now_ms=now_ms)
        for body, of in zip(body_list, each, strict=True)
    ]


def wire_state(state: str) -> str:
    """Return the name of a message's state in the protocol, where a ready message is ``available``."""
    return "available" if state == "ready" else state


def listed(values: Iterable[Any], what: str) -> list[Any]:
    """Return several values as a list; raise RequestError if the argument is a single text, or not iterable."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise RequestError(f"{what} must be a list, not {values!r}", name=what)
    return list(values)


def message_ids(ids: Iterable[Any] | None) -> list[int] | None:
    """Return message ids as a list; raise RequestError if they are not a list, or one of them is not an id."""
    if ids is not None and not isinstance(ids, Iterable):
        raise RequestError(f"message ids must be a list, not {ids!r}", name="ids")
    return None if ids is None else [whole(id, "a message id", 0, MAX_ID) for id in ids]


def items_of(queue: str, targets: Iterable[Target], token: int | None = None) -> list[Item]:
    """Return the ids to settle, each with the token of its lease; 0 means the lease of any reader.

    Raises RequestError for a target that is neither a message of this queue nor an id.
    """
    items = []
    for target in targets:
        if isinstance(target, Message):
            if target.queue != queue:
                raise RequestError(f"message {target.id} is from queue {target.queue!r}, not {queue!r}", queue=queue)
            items.append((target.id, target.token if token is None else token))
        else:
            whole(target, "a message id", 0, MAX_ID)
            items.append((target, token or 0))
    return items
