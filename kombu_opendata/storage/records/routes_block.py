"""Routes block: the number of queues that need each of 256 messages; a payload is deleted with the last one.

A message has an entry if it is or was in several queues, has its payload in chunks, or was moved. A message without an
entry is in one queue.

=======  ====================  ========================================================================
field    type                  meaning
=======  ====================  ========================================================================
version  u8                    1
entries  u8                    number of messages with an entry, 1 to 170; 0: all 256 messages have a place
places   u8 for each           message id & 255, ascending; missing if ``entries`` is 0
counts   u16 for each          queues that need the message, in the order of the places; 0: no entry; 65,535: only the
                               log keeps it; 65,534: only the log keeps it, and it may have chunks
=======  ====================  ========================================================================

The key has the block (message id >> 8). A block without entries is not stored. The format is defined here.
"""

from __future__ import annotations

import struct
from array import array
from itertools import pairwise

from . import field_types

BLOCK_BITS = 8
#: number of messages of a block
SIZE = 1 << BLOCK_BITS
#: the bits of a message id that are its place in the block
LOW = SIZE - 1
#: the count of a message that only the log keeps, and that has no chunks
KEPT = field_types.MAX_U16
#: the count of a message that only the log keeps, and that may have chunks
KEPT_IN_CHUNKS = KEPT - 1
MAX_COUNT = KEPT_IN_CHUNKS - 1

_HEAD = struct.Struct("<BB")
#: with more entries than this, a place for each message takes no more bytes
_MAX_SPARSE = 2 * SIZE // 3


def empty() -> array[int]:
    """Return the counts of a block without entries."""
    return array("H", bytes(2 * SIZE))


def encode(counts: array[int]) -> bytes:
    """Encode a block's 256 counts, at least one of which is not 0."""
    entries = SIZE - counts.count(0)
    if entries > _MAX_SPARSE:
        return field_types.pack_versioned(_HEAD, "entries", 0) + field_types.pack_column("H", counts)
    places = [place for place, count in enumerate(counts) if count]
    head = field_types.pack_versioned(_HEAD, "entries", entries)
    return head + bytes(places) + field_types.pack_column("H", [counts[place] for place in places])


def read(key: bytes, value: bytes) -> array[int]:
    """Decode the block's 256 counts, 0 for a message without an entry."""
    (entries,) = field_types.read_versioned(_HEAD, key, value)
    if entries == 0:
        counts, end = field_types.read_column("H", key, value, _HEAD.size, SIZE)
        field_types.check_end(key, value, end)
        if not any(counts):
            raise field_types.corrupt(key, 1, "a block without entries")
        return counts
    places, offset = field_types.read_column("B", key, value, _HEAD.size, entries)
    entry_counts, end = field_types.read_column("H", key, value, offset, entries)
    field_types.check_end(key, value, end)
    if entries > _MAX_SPARSE:
        raise field_types.corrupt(key, 1, f"{entries} entries with a place each; at most {_MAX_SPARSE} are allowed")
    if any(after <= before for before, after in pairwise(places)):
        raise field_types.corrupt(key, _HEAD.size, "places that do not ascend")
    if 0 in entry_counts:
        raise field_types.corrupt(key, offset, "an entry of 0")
    counts = empty()
    for place, count in zip(places, entry_counts, strict=True):
        counts[place] = count
    return counts


def decode(key: bytes, value: bytes) -> dict[int, int]:
    """Decode message id → number of queues, for the messages with an entry, in order."""
    first = int.from_bytes(key[2:10], "big") << BLOCK_BITS
    return {first + place: count for place, count in enumerate(read(key, value)) if count}
