"""History index: the positions that have a value. A position is a message id (space 0) or an attempt number (space 1).

A value (queue = q, header task = t, …) is represented by a hash of 64 bits. Positions are split into segments of 4,096.
Each write of the index adds a *part*, and for each value that occurs often enough in a part and segment a record of
*postings*:

==========  =======  =====================================================
field       type     meaning
==========  =======  =====================================================
form        u8       1 all from first to last, 2 offsets, 3 bits
1           u16 × 2  first and last offset in the segment
2           columns  offsets u16
3           512 B    4,096 bits; the lowest bit of the first byte is offset 0
==========  =======  =====================================================

A *segment* record lists the hashes of a segment and part, so that the postings can be deleted: version u8 (1), hashes
as a column of u64.

Values with few positions are in *runs*, sets of (hash, position) in pages by the highest bits of the hash.
A *page*: version u8 (1), count u32, then the columns hash u64 and position u64.

The *head* has the progress of indexing and the list of runs:

==================  =======  =====================================================
field               type     meaning
==================  =======  =====================================================
version             u8       1
part                u64      the next part's number
run                 u64      the next run's number
attempt             u64      the log is indexed before this attempt …
row                 u64      … and this other row
kept                u64      older attempts were removed from the log
runs                u32      number of runs
runs                each     space u8, number u64, level u8, bits u8 of the hash
                             that make the page, lowest position u64, highest
                             position u64, entries u64
==================  =======  =====================================================

The formats are defined here.
"""

from __future__ import annotations

import struct
from array import array
from typing import NamedTuple

from . import field_types

SEGMENT_BITS = 12
SEGMENT_SIZE = 1 << SEGMENT_BITS
OFFSET_MASK = SEGMENT_SIZE - 1

MESSAGES, ATTEMPTS = range(2)

_RANGE, _OFFSETS, _BITS = 1, 2, 3
_ENDS = struct.Struct("<HH")
_COUNT = struct.Struct("<BI")
_HEAD = struct.Struct("<BQQQQQI")
_RUN = struct.Struct("<BQBBQQQ")
_BITMAP_BYTES = SEGMENT_SIZE // 8
#: a bitmap as the digits of a number, highest first: setting a digit is faster than setting a bit
_NO_BITS, _ONE = b"0" * SEGMENT_SIZE, ord("1")


class PostingRun(NamedTuple):
    """A set of (hash, position) pairs that were written together."""

    space: int
    number: int
    level: int
    page_bits: int
    low: int
    high: int
    entries: int


class IndexHead(NamedTuple):
    part: int = 0
    run: int = 0
    attempt: int = 0
    row: int = 0
    kept: int = 0
    runs: tuple[PostingRun, ...] = ()


def encode_postings(positions: list[int]) -> bytes:
    """Encode the postings of these positions of one segment, in any order."""
    first, last = min(positions) & OFFSET_MASK, max(positions) & OFFSET_MASK
    if 2 * len(positions) < _BITMAP_BYTES:
        offsets = sorted({position & OFFSET_MASK for position in positions})
        if last - first + 1 == len(offsets):
            return bytes((_RANGE,)) + _ENDS.pack(first, last)
        return bytes((_OFFSETS,)) + field_types.pack_column("H", offsets)
    digits = bytearray(_NO_BITS)
    for position in positions:
        digits[OFFSET_MASK - (position & OFFSET_MASK)] = _ONE
    if last - first + 1 == digits.count(_ONE):
        return bytes((_RANGE,)) + _ENDS.pack(first, last)
    return bytes((_BITS,)) + int(digits, 2).to_bytes(_BITMAP_BYTES, "little")


def decode_postings(key: bytes, value: bytes) -> int:
    """Decode the mask of the offsets."""
    form = value[0] if value else 0
    if form == _RANGE:
        if len(value) != 1 + _ENDS.size:
            raise field_types.corrupt(key, 1, f"{len(value) - 1} bytes of a range")
        ends: tuple[int, int] = _ENDS.unpack_from(value, 1)
        first, last = ends
        if not first <= last < SEGMENT_SIZE:
            raise field_types.corrupt(key, 1, f"a range from {first} to {last}")
        return int((1 << (last - first + 1)) - 1) << first
    if form == _OFFSETS:
        offsets, end = field_types.read_column("H", key, value, 1, (len(value) - 1) // 2)
        field_types.check_end(key, value, end)
        if offsets and max(offsets) >= SEGMENT_SIZE:
            raise field_types.corrupt(key, 1, f"offset {max(offsets)} in a segment of {SEGMENT_SIZE}")
        return mask_of(offsets)
    if form == _BITS:
        if len(value) != 1 + _BITMAP_BYTES:
            raise field_types.corrupt(key, 1, f"{len(value) - 1} bytes of a bitmap")
        return int.from_bytes(value[1:], "little")
    raise field_types.corrupt(key, 0, f"postings of form {form}")


def mask_of(offsets: array[int] | list[int]) -> int:
    if len(offsets) < 16:
        mask = 0
        for offset in offsets:
            mask |= 1 << offset
        return mask
    digits = bytearray(_NO_BITS)
    for offset in offsets:
        digits[OFFSET_MASK - offset] = _ONE
    return int(digits, 2)


def encode_segment(hashes: list[int]) -> bytes:
    """Encode the hashes of the values that have postings in a segment and part."""
    return field_types.VERSION_ONLY + field_types.pack_column("Q", hashes)


def decode_segment(key: bytes, value: bytes) -> array[int]:
    field_types.check_version(key, value[0] if value else 0)
    hashes, end = field_types.read_column("Q", key, value, 1, (len(value) - 1) // 8)
    field_types.check_end(key, value, end)
    return hashes


def encode_page(hashes: array[int] | list[int], positions: array[int] | list[int]) -> bytes:
    """Encode a page of a run; both lists have the same length."""
    columns = field_types.pack_columns("QQ", (hashes, positions))
    return field_types.pack_versioned(_COUNT, "count", len(hashes)) + columns


def decode_page(key: bytes, value: bytes) -> tuple[array[int], array[int]]:
    (count,) = field_types.read_versioned(_COUNT, key, value)
    (hashes, positions), end = field_types.read_columns("QQ", key, value, _COUNT.size, count)
    field_types.check_end(key, value, end)
    return hashes, positions


def encode_head(head: IndexHead) -> bytes:
    fields = field_types.pack_versioned(_HEAD, "part, run, attempt, row, kept, runs", *head[:5], len(head.runs))
    return fields + b"".join(_RUN.pack(*run) for run in head.runs)


def decode_head(key: bytes, value: bytes) -> IndexHead:
    part, run, attempt, row, first_kept, count = field_types.read_versioned(_HEAD, key, value)
    runs, end = field_types.read_many(_read_run, key, value, _HEAD.size, count)
    field_types.check_end(key, value, end)
    return IndexHead(part, run, attempt, row, first_kept, tuple(runs))


def _read_run(key: bytes, value: bytes, offset: int) -> tuple[PostingRun, int]:
    return PostingRun(*field_types.read(_RUN, key, value, offset)), offset + _RUN.size
