"""Headers that record the deaths of a dead letter, as in RabbitMQ.

==========================  =================================================================================
header                      value
==========================  =================================================================================
``x-death``                 a list, the newest first, with one map for each queue and reason: ``queue``,
                            ``reason``, ``count``, ``exchange`` and ``routing-keys`` (of the message as it was
                            in that queue), ``time`` (of the first such death), ``original-expiration``
``x-first-death-queue``     also ``-reason`` and ``-exchange``: of the first death, never changed
``x-last-death-queue``      also ``-reason`` and ``-exchange``: of the newest
==========================  =================================================================================

The expiration property is removed, because the message would expire again immediately. Clients make envelopes, so an
envelope may contain any bytes: headers of an unexpected type are replaced, and bytes that are not an envelope become
the body of a new envelope.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from ...errors import InvalidMessage
from ...protocol.envelope import UNREADABLE, Opened, encode_fields, metadata_headers, open_envelope
from ...storage.records.dead_letter import DeadLetter

_COUNT_LIMIT = 1 << 53
#: number of rejections of a message in one queue after which each further rejection delays its return to that queue
FREE_REJECTIONS = 100
_FIRST_DELAY_MS, _MAX_DELAY_MS = 10, 1000
#: maximum size of an ``x-death``; a larger header is replaced, because its decoding would take too long
_MAX_DEATH_BYTES = 64 << 10
_PARTS = ("queue", "reason", "exchange")
_DEATHS = frozenset(f"x-{which}-death-{part}" for which in ("first", "last") for part in _PARTS)


class Copy(NamedTuple):
    """A dead letter as it is published; ``before`` has the previous metadata headers."""

    envelope: bytes
    routing_key: str
    headers: dict[Any, Any]
    metadata: dict[str, str]
    before: dict[str, str]

    @property
    def deaths(self) -> list[Any]:
        """Deaths, the newest first."""
        deaths: list[Any] = self.headers["x-death"]
        return deaths


def make_copy(envelope: bytes, queue: str, letter: DeadLetter) -> Copy:
    """Make the message for the dead-letter exchange."""
    fields = open_envelope(envelope)
    if fields is not None:
        try:
            return _stamp(fields, queue, letter)
        except UNREADABLE:
            pass  # it can be decoded but not encoded
    body = msgspec.Raw(encode_fields(envelope))
    return _stamp((body, "application/data", "binary", {}, {}, "", ""), queue, letter)


def _stamp(opened: Opened, queue: str, letter: DeadLetter) -> Copy:
    body, content_type, content_encoding, headers, properties, exchange, own_key = opened
    death = {
        "count": 1, "reason": letter.reason, "queue": queue,
        "time": datetime.fromtimestamp(letter.at_ms // 1000, UTC), "exchange": exchange,
        "routing-keys": [own_key],
    }  # fmt: skip
    expiration = properties.pop("expiration", None)
    if expiration is not None:
        death["original-expiration"] = str(expiration)
    priority = 255 - letter.priority
    before = _metadata(headers, exchange, own_key, priority, content_type)
    _record(headers, death)
    routing_key = own_key if letter.routing_key is None else letter.routing_key
    fields = body, content_type, content_encoding, headers, properties, letter.exchange, routing_key
    metadata = _metadata(headers, letter.exchange, routing_key, priority, content_type)
    return Copy(encode_fields(fields), routing_key, headers, metadata, before)


def _metadata(
    headers: dict[Any, Any], exchange: str, routing_key: str, priority: int, content_type: str | None
) -> dict[str, str]:
    try:
        return metadata_headers(headers, exchange, routing_key, priority, content_type)
    except InvalidMessage:  # with those of the deaths there are too many: use only the message's, which were accepted
        original = {name: value for name, value in headers.items() if name not in _DEATHS}
    try:
        return metadata_headers(original, exchange, routing_key, priority, content_type)
    except InvalidMessage:  # an older version accepted them
        return metadata_headers({}, exchange, routing_key, priority, content_type)


def _record(headers: dict[Any, Any], death: dict[str, Any]) -> None:
    """Add a death at the front, or increase the count of a death with the same queue and reason."""
    previous = headers.get("x-death")
    if isinstance(previous, msgspec.Raw):  # the headers are large
        previous = msgspec.msgpack.decode(previous) if len(memoryview(previous)) <= _MAX_DEATH_BYTES else None
    deaths = previous if isinstance(previous, list) else []
    of = death["queue"], death["reason"]
    same = next((d for d in deaths if isinstance(d, dict) and (d.get("queue"), d.get("reason")) == of), None)
    newest = death
    if same is not None:
        count = same.get("count")
        newest = {**same, "count": count + 1 if type(count) is int and 0 < count < _COUNT_LIMIT else 1}
    headers["x-death"] = [newest, *(d for d in deaths if d is not same)]
    for part in _PARTS:
        headers.setdefault(f"x-first-death-{part}", death[part])
        headers[f"x-last-death-{part}"] = death[part]


def return_delay_ms(queues: Collection[str], deaths: list[Any]) -> int:
    """Return the delay of a dead letter to these queues, to limit endless rejections into the same queue."""
    rejected = [death for death in deaths if isinstance(death, dict) and death.get("reason") == "rejected"]
    counts = [death.get("count") for death in rejected if death.get("queue") in queues]
    excess = max((count for count in counts if type(count) is int), default=0) - FREE_REJECTIONS
    return min(_FIRST_DELAY_MS << min(excess, 10), _MAX_DELAY_MS) if excess >= 0 else 0


def is_cycle(queue: str, deaths: list[Any]) -> bool:
    """Return True if a message with these deaths was in the queue before, without a rejection since.

    As in RabbitMQ, a message that consumers reject may return any number of times, but a message that only the broker
    moves may not return. An entry that the broker did not write counts as a rejection.
    """
    for death in deaths:
        if not isinstance(death, dict) or death.get("reason") == "rejected":
            return False
        if death.get("queue") == queue:
            return True
    return False
