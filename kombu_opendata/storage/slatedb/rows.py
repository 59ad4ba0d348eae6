"""The rows of a scan in one block of memory, for readers that need no object for each key and value.

The encoding is that of the generated module of slatedb 0.17 (big-endian):

=============  ==========================================================================
bytes          length i32, then the bytes
optional T     ``00``, or ``01`` then T
sequence of T  count i32, then each T
KeyRange       optional bytes start, bool, optional bytes end, bool (a bool is one byte)
KeyValue       bytes key, bytes value, seq u64, created i64, optional i64 expires
=============  ==========================================================================
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

Pair = tuple[bytes, bytes]

LENGTH = struct.Struct(">i")
_SEQ_AND_CREATED_BYTES = 16
_EXPIRES_BYTES = 8
#: the fewest rows that are worth a search for a run
_FEW = 8
#: the most rows that are read individually after a failed search
_MANY = 512
#: rows that are compared first; all others are compared only if these are alike
_WINDOW = 64
#: bytes between a key and its value
GAP = 4
#: the fewest bytes that follow the last value
TAIL = 4


#: Consecutive rows whose keys have one length and whose values have one length: (offset of the first value, distance to
#: the next value, length of a key, length of a value, number of rows). A key ends ``GAP`` bytes before its value. This
#: is a plain tuple, as there may be one for each row.
Run = tuple[int, int, int, int, int]


class Rows:
    """Keys and values, in the order of the keys.

    Attributes:
        data: all keys and values, with other bytes in between; at least ``TAIL`` bytes follow the last value.
        runs: the places of the rows in ``data``.
    """

    __slots__ = ("_count", "data", "runs")

    def __init__(self, data: bytes, runs: Sequence[Run], count: int) -> None:
        self.data = data
        self.runs = runs
        self._count = count

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Rows:
        parts: list[bytes] = []
        runs: list[Run] = []
        at = 0
        for key, value in pairs:
            parts += key, _FILL, value
            at += len(key) + GAP
            runs.append((at, 0, len(key), len(value), 1))
            at += len(value)
        return cls(b"".join((*parts, bytes(TAIL))), runs, len(runs))

    def __len__(self) -> int:
        return self._count

    @property
    def last_key(self) -> bytes:
        start, step, key, _value, count = self.runs[-1]
        end = start + step * (count - 1) - GAP
        return self.data[end - key : end]

    def pairs(self) -> list[Pair]:
        data = self.data
        pairs: list[Pair] = []
        for start, step, key, value, count in self.runs:
            if count == 1:
                pairs.append((data[start - GAP - key : start - GAP], data[start : start + value]))
            else:
                places = range(start, start + step * count, step)
                pairs += [(data[at - GAP - key : at - GAP], data[at : at + value]) for at in places]
        return pairs


_FILL = bytes(GAP)


# ---- decoding
def decode_pairs(data: bytes) -> list[Pair]:
    """Decode the keys and values of a sequence of KeyValue."""
    length_at = LENGTH.unpack_from
    at = LENGTH.size
    pairs = []
    for _ in range(length_at(data)[0]):
        key_at = at + 4
        key_end = key_at + length_at(data, at)[0]
        value_at = key_end + 4
        value_end = value_at + length_at(data, key_end)[0]
        pairs.append((data[key_at:key_end], data[value_at:value_end]))
        at = value_end + _SEQ_AND_CREATED_BYTES
        at += 1 + _EXPIRES_BYTES * data[at]
    if at != len(data):
        raise ValueError("a batch of rows from SlateDB does not decode")
    return pairs


def decode_rows(data: bytes, few: int = _FEW) -> Rows:
    """Decode the places of the keys and values of a sequence of KeyValue, without copies.

    Consecutive rows are mostly alike, so one comparison of a column finds a run of them. Where they are not, an
    increasing number of rows is read individually before the next comparison.
    """
    length_at = LENGTH.unpack_from
    at = LENGTH.size
    count: int = length_at(data)[0]
    remaining, singles = count, few
    runs: list[Run] = []
    while remaining:
        key = length_at(data, at)[0]
        start = at + key + 8
        value = length_at(data, start - 4)[0]
        expires = start + value + _SEQ_AND_CREATED_BYTES
        step = expires + 1 + _EXPIRES_BYTES * data[expires] - at
        rows = _alike(data, at, (start - at, expires - at), step, min(remaining, _WINDOW))
        if rows == _WINDOW:
            rows = _alike(data, at, (start - at, expires - at), step, remaining)
        runs.append((start, step, key, value, rows))
        at += step * rows
        remaining -= rows
        singles = few if rows >= few else min(2 * singles, _MANY)
        for _ in range(min(singles, remaining) if rows < few else 0):
            key = length_at(data, at)[0]
            start = at + key + 8
            value = length_at(data, start - 4)[0]
            runs.append((start, 0, key, value, 1))
            at = start + value + _SEQ_AND_CREATED_BYTES + 1
            at += _EXPIRES_BYTES * data[at - 1]
            remaining -= 1
    if at != len(data):
        raise ValueError("a batch of rows from SlateDB does not decode")
    return Rows(data, runs, count)


def _alike(data: bytes, at: int, places: tuple[int, int], step: int, limit: int) -> int:
    """Return the number of consecutive rows that have the same lengths as the first, and an expiry if it has one.

    Args:
        places: the offsets in the row of the value and of the flag for an expiry.
        step: the size of the row.
        limit: the number of rows to compare.
    """
    value, expires = places
    for place in (value - 1, value - 2, 3, 2, expires, 0, 1, value - 3, value - 4):  # of lengths, low bytes differ most
        if limit == 1:
            break
        column = data[at + place : at + step * limit : step]
        limit = len(column) - len(column.lstrip(column[:1]))
    return limit
