"""History trail: the events of the 256 messages of one block, in order.

The key has the block (message id >> 8) and the number of the part: each write of the index adds a part to every block
with new events.

==================  =======  =====================================================
field               type     meaning
==================  =======  =====================================================
version             u8       1
names               u16      number of queues
events              u32      number of events
names               each     ``Utf8``
events              columns  message u8 (id & 255), what u8, number of the attempt
                             u16, queue u16 (a name's number), at i64, attempt u64
==================  =======  =====================================================

``what``: an attempt's outcome as in the history log; 64: routed to the queue; 65 and up: left it, 65 + reason.
``attempt`` is its number in the log, 0 for other events. The format is defined here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from . import field_types

BLOCK_BITS = 8
_LOW = (1 << BLOCK_BITS) - 1
ROUTED = 64
LEFT = 65

_HEAD = struct.Struct("<BHI")
_COLUMNS = "BBHHqQ"
#: the starts of the second and the following columns, and the end of the last one, in bytes per event
_STARTS = tuple(accumulate(field_types.COLUMN_BYTES[code] for code in _COLUMNS))
_SHORT, _TIME, _NUMBER = struct.Struct("<H"), struct.Struct("<q"), struct.Struct("<Q")


class TrailEvent(NamedTuple):
    message_id: int
    queue: str
    what: int
    number: int = 0
    at_ms: int = 0
    attempt: int = 0


def encode(events: list[TrailEvent]) -> bytes:
    """Encode these events, which are of one block."""
    names: dict[str, int] = {}
    ids, queues, whats, numbers, times, attempts = zip(*events, strict=True)
    low = [id & _LOW for id in ids]
    queue_numbers = [names.setdefault(queue, len(names)) for queue in queues]
    in_order = (low, whats, numbers, queue_numbers, times, attempts)
    head = field_types.pack_versioned(_HEAD, "names, events", len(names), len(events))
    return b"".join([head, *map(field_types.utf8_escaped, names), field_types.pack_columns(_COLUMNS, in_order)])


def decode(key: bytes, value: bytes) -> list[TrailEvent]:
    names, start, count = _names(key, value)
    (low, whats, numbers, queues, times, attempts), end = field_types.read_columns(_COLUMNS, key, value, start, count)
    field_types.check_end(key, value, end)
    if count and max(queues) >= len(names):
        raise field_types.corrupt(key, start, f"an event in queue {max(queues)} of {len(names)}")
    base = int.from_bytes(key[2:10], "big") << BLOCK_BITS
    return [
        TrailEvent(base + low[at], names[queues[at]], whats[at], numbers[at], times[at], attempts[at])
        for at in range(count)
    ]


def decode_some(key: bytes, value: bytes, ids: Iterable[int]) -> list[TrailEvent]:
    """Decode the events of these messages in ``value``, each message's in order; the others are skipped."""
    names, start, count = _names(key, value)
    whats, numbers, queues, times, attempts, end = (start + count * size for size in _STARTS)
    if end > len(value):
        raise field_types.corrupt(key, start, f"columns of {count} events where {len(value) - start} bytes are left")
    field_types.check_end(key, value, end)
    block = int.from_bytes(key[2:10], "big")
    low = value[start:whats]
    events = []
    for id in ids:
        if id >> BLOCK_BITS != block:
            continue
        for at in _places(low, id & _LOW):
            (queue,) = _SHORT.unpack_from(value, queues + 2 * at)
            if queue >= len(names):
                raise field_types.corrupt(key, start, f"an event in queue {queue} of {len(names)}")
            (number,) = _SHORT.unpack_from(value, numbers + 2 * at)
            (at_ms,) = _TIME.unpack_from(value, times + 8 * at)
            (attempt,) = _NUMBER.unpack_from(value, attempts + 8 * at)
            events.append(TrailEvent(id, names[queue], value[whats + at], number, at_ms, attempt))
    return events


def _names(key: bytes, value: bytes) -> tuple[list[str], int, int]:
    """Return the names of the queues, the start of the columns, and the number of events."""
    named, count = field_types.read_versioned(_HEAD, key, value)
    names, offset = field_types.read_many(field_types.read_utf8_escaped, key, value, _HEAD.size, named)
    return names, offset, count


def _places(low: bytes, wanted: int) -> Iterator[int]:
    at = low.find(wanted)
    while at >= 0:
        yield at
        at = low.find(wanted, at + 1)
