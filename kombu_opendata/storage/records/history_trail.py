"""History trail: what became of the 1,024 messages of one block, in the order in which it happened.

The key has the block (message id >> 10) and the number of the part: each time the index is written, the blocks that
anything happened to get a part more.

==================  =======  =====================================================
field               type     meaning
==================  =======  =====================================================
version             u8       1
names               u16      how many queues
events              u32      how many events
names               each     ``Utf8``
events              columns  message u16 (id & 1023), what u8, number of the
                             attempt u16, queue u16 (a name's number), at i64,
                             attempt u64
==================  =======  =====================================================

``what``: an attempt's outcome as in the history log; 64: routed to the queue; 65 and up: left it, 65 + reason.
``attempt`` is its number in the log, 0 where there is none. The format is ours.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kombu_opendata.storage.records import columns, types

BLOCK_BITS = 10
_LOW = (1 << BLOCK_BITS) - 1
ROUTED = 64
LEFT = 65

_HEAD = struct.Struct("<BHI")
_VERSION = 1
_COLUMNS = "HBHHqQ"


class Event(NamedTuple):
    """One thing that happened to a message."""

    message_id: int
    queue: str
    what: int
    number: int = 0
    at_ms: int = 0
    attempt: int = 0


def encode(events: list[Event]) -> bytes:
    """The record of these events, which are of one block."""
    names: dict[str, int] = {}
    ids, queues, whats, numbers, times, attempts = zip(*events, strict=True)
    low = [id & _LOW for id in ids]
    where = [names.setdefault(queue, len(names)) for queue in queues]
    in_order = (low, whats, numbers, where, times, attempts)
    head = types.pack(_HEAD, "version, names, events", _VERSION, len(names), len(events))
    packed = [columns.pack(code, values) for code, values in zip(_COLUMNS, in_order, strict=True)]
    return b"".join([head, *map(types.utf8_escaped, names), *packed])


def decode(key: bytes, value: bytes) -> list[Event]:
    """The events in ``value``."""
    return _decode(key, value, None)


def decode_some(key: bytes, value: bytes, ids: Iterable[int]) -> list[Event]:
    """Of the events in ``value`` those of these messages, each message's in order."""
    return _decode(key, value, ids)


def _decode(key: bytes, value: bytes, ids: Iterable[int] | None) -> list[Event]:
    version, named, count = types.read(_HEAD, key, value, 0)
    if version != _VERSION:
        raise types.corrupt(key, 0, f"record version {version}")
    block = int.from_bytes(key[2:10], "big")
    offset = _HEAD.size
    names = []
    for _ in range(named):
        name, offset = types.read_utf8_escaped(key, value, offset)
        names.append(name)
    found = []
    start = offset
    for code in _COLUMNS:
        column, offset = columns.read(code, key, value, offset, count)
        found.append(column)
    types.check_end(key, value, offset)
    low, whats, numbers, queues, times, attempts = found
    if count and max(queues) >= len(names):
        raise types.corrupt(key, start, f"an event in queue {max(queues)} of {len(names)}")
    if ids is None:
        places: Iterable[int] = range(count)
    else:
        places = (at for id in ids if id >> BLOCK_BITS == block for at in _places(low, id & _LOW))
    base = block << BLOCK_BITS
    return [Event(base + low[at], names[queues[at]], whats[at], numbers[at], times[at], attempts[at]) for at in places]


def _places(low: array[int], wanted: int) -> Iterator[int]:
    at = -1
    try:
        while True:
            at = low.index(wanted, at + 1)
            yield at
    except ValueError:
        return
