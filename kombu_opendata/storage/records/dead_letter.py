"""Dead letter: a message that left its queue and must be published to a dead-letter exchange.

=================  ========  ============================================================================
field              type      meaning
=================  ========  ============================================================================
at                 i64       the time at which it left its queue, ms since the epoch
priority           u8        the stored priority, lower first
flags              u8        bit 0: its payload is kept for this letter only; bit 1: the routing key is
                             the queue's argument and not the message's own; others are 0
reason             ``Utf8``  rejected, expired, maxlen or delivery_limit; revoked: it expired in a queue
                             without dead-letter exchange, and the result of its task may be due
exchange           ``Utf8``  the dead-letter exchange
routing key        ``Utf8``  empty without bit 1
=================  ========  ============================================================================

The message id and the queue that it left are in the key. The format is defined here.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from . import field_types

#: not published: the result of a task that expired, see kombu_opendata.protocol.revocation
REVOKED = "revoked"

_FIXED = struct.Struct("<qBB")
_LAST_USE = 1
_ROUTING_KEY = 2


class DeadLetter(NamedTuple):
    """The message to publish again, and the reason. ``routing_key`` None means the message's own."""

    reason: str
    at_ms: int
    priority: int
    exchange: str
    routing_key: str | None
    last_use: bool  # the payload is kept for the letter only


def encode(letter: DeadLetter) -> bytes:
    flags = _LAST_USE * bool(letter.last_use) | _ROUTING_KEY * (letter.routing_key is not None)
    fixed = field_types.pack(_FIXED, "at, priority, flags", letter.at_ms, letter.priority, flags)
    return fixed + b"".join(map(field_types.utf8, (letter.reason, letter.exchange, letter.routing_key or "")))


def decode(key: bytes, value: bytes) -> DeadLetter:
    at, priority, flags = field_types.read(_FIXED, key, value, 0)
    if flags & ~(_LAST_USE | _ROUTING_KEY):
        raise field_types.corrupt(key, _FIXED.size - 1, f"dead letter flags {flags:#04x}")
    reason, offset = field_types.read_utf8(key, value, _FIXED.size)
    exchange, offset = field_types.read_utf8(key, value, offset)
    routing_key, end = field_types.read_utf8(key, value, offset)
    if routing_key and not flags & _ROUTING_KEY:
        raise field_types.corrupt(key, offset, "a routing key that the flags exclude")
    field_types.check_end(key, value, end)
    return DeadLetter(
        reason, at, priority, exchange, routing_key if flags & _ROUTING_KEY else None, bool(flags & _LAST_USE)
    )
