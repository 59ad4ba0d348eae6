"""Producer: the last publish of a session, which identifies repeated publishes.

=================  ======  ====================================================
field              type    meaning
=================  ======  ====================================================
last sequence      u64     the producer's number of its last stored publish
last message id    u64     the message id in the reply to that publish
last queues        u32     number of queues that received it; highest bit: holes follow
at                 i64     the time of storage, ms since the epoch
size               u8      of the holes in bytes, 1 to 128; only if there are any
holes              bytes   little endian, the last byte is not 0: bit n stands for
                           the number n below the last one
=================  ======  ====================================================

A *hole* is a number below the last one whose publish was not stored: it was refused, unroutable, or routed to transient
queues only. Several publishes may be in flight, so later ones may be stored after a refused one, which must not count
as stored when it is sent again. A client has at most :data:`WINDOW` numbers from its oldest
unconfirmed publish to its newest, so older holes are dropped.

The format is defined here.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ...errors import RequestError
from . import types

_PRODUCER = struct.Struct("<QQIq")
#: number of a session's last publishes that are tracked individually
WINDOW = 1024
_MASK = (1 << WINDOW) - 1


class Producer(NamedTuple):
    """The last publish of a session."""

    last_sequence: int
    last_message_id: int
    last_queues: int
    at_ms: int
    holes: int = 0

    def has(self, sequence: int) -> bool:
        """Return True if this publish was stored."""
        below = self.last_sequence - sequence
        return below >= 0 and not (self.holes >> below) & 1

    def after(self, sequence: int, message_id: int, queues: int, at_ms: int) -> Producer:
        """Return the record after this publish is stored, too."""
        ahead = sequence - self.last_sequence
        if ahead <= 0:
            return self._replace(at_ms=at_ms, holes=self.holes & ~(1 << -ahead))
        skipped = (1 << min(ahead, WINDOW)) - 2
        holes = (self.holes << min(ahead, WINDOW) | skipped) & _MASK
        return Producer(sequence, message_id, queues, at_ms, holes)


#: the record before a session's first publish
NONE = Producer(0, 0, 0, 0)
_FIELDS = ", ".join(Producer._fields[:4])
_SIZE = struct.Struct("<B")
_HOLES_FOLLOW = 1 << 31


def encode(producer: Producer) -> bytes:
    """Encode `producer`, which may be a plain tuple of the same fields."""
    sequence, message_id, queues, at_ms, holes = producer
    if not holes:
        return types.pack(_PRODUCER, _FIELDS, sequence, message_id, queues, at_ms)
    if not 0 <= holes <= _MASK:
        raise RequestError(f"holes {holes:#x} are over {WINDOW} bits")
    raw = holes.to_bytes((holes.bit_length() + 7) // 8, "little")
    fixed = types.pack(_PRODUCER, _FIELDS, sequence, message_id, queues | _HOLES_FOLLOW, at_ms)
    return fixed + _SIZE.pack(len(raw)) + raw


def decode(key: bytes, value: bytes) -> Producer:
    """Decode the producer in `value`."""
    sequence, message_id, queues, at_ms = types.read(_PRODUCER, key, value, 0)
    end, holes = _PRODUCER.size, 0
    if queues & _HOLES_FOLLOW:
        (size,) = types.read(_SIZE, key, value, end)
        raw = value[end + 1 : end + 1 + size]
        if not 1 <= size <= WINDOW // 8 or len(raw) != size or not raw[-1]:
            raise types.corrupt(key, end, f"holes of {size} bytes where {len(raw)} are left")
        end, holes = end + 1 + size, int.from_bytes(raw, "little")
    types.check_end(key, value, end)
    return Producer(sequence, message_id, queues & ~_HOLES_FOLLOW, at_ms, holes)
