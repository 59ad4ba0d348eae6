"""The encoding of the SlateDB binding's arguments and results, as in the generated module of slatedb 0.17 (big-endian).

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

from .rows import Pair, Rows, Run

LENGTH = struct.Struct(">i")
LARGEST = 2**31 - 1 - LENGTH.size
_SEQ_AND_CREATED_BYTES = 16
_EXPIRES_BYTES = 8
#: the fewest rows that are worth a search for a run, and the most that are read individually after a failed search
_FEW = 8
_MANY = 512
#: rows that are compared first; all others are compared only if these are alike
_WINDOW = 64


def encode_bytes(data: bytes) -> bytes:
    """Encode `data` with its length in front."""
    if len(data) > LARGEST:
        raise ValueError(f"{len(data)} bytes are too many for one value: at most {LARGEST}")
    return LENGTH.pack(len(data)) + data


def encode_range(start: bytes, end: bytes | None) -> bytes:
    """Encode ``start <= key < end``; an empty `start` and no `end` mean unbounded."""
    low = b"\1" + encode_bytes(start) if start else b"\0"
    high = b"\0" if end is None else b"\1" + encode_bytes(end)
    return low + b"\1" + high + b"\0"


def decode_optional_bytes(data: bytes) -> bytes | None:
    """Decode optional bytes."""
    if data == b"\0":
        return None
    if data[:1] != b"\1" or LENGTH.unpack_from(data, 1)[0] != len(data) - 5:
        raise ValueError("an optional value from SlateDB does not decode")
    return data[5:]


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


def decode_rows(data: bytes) -> Rows:
    """Decode the places of the keys and values of a sequence of KeyValue, without copies.

    Consecutive rows are mostly alike, so one comparison of a column finds a run of them. Where they are not, an
    increasing number of rows is read individually before the next comparison.
    """
    length_at = LENGTH.unpack_from
    at = LENGTH.size
    count: int = length_at(data)[0]
    remaining, singles = count, _FEW
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
        singles = _FEW if rows >= _FEW else min(2 * singles, _MANY)
        for _ in range(min(singles, remaining) if rows < _FEW else 0):
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
    """Return the number of rows from this place on with the lengths of the first, and an expiry if it has one.

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
