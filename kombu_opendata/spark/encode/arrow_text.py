"""Texts and bytes of many rows, joined by Arrow in one call.

A piece is the same for all rows (``bytes``), or a column of strings or binaries. Joining pieces row by row in Python
takes ten times as long, and would dominate the time of a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import InvalidMessage

Piece: TypeAlias = "bytes | pa.Array"

#: characters that neither JSON nor ``repr`` escapes
_PLAIN = bytes(set(range(0x20, 0x7F)) - set(b'"\\'))

# msgpack's types with a length of one byte; the types for two and four bytes follow each of them
_STR8 = 0xD9
_BIN8 = 0xC4
_MAX_16 = 0xFFFF


def join(pieces: Sequence[Piece], rows: int) -> pa.Array:
    """Return the joined pieces of each row as binaries; raise InvalidMessage if the result has over 2 GiB."""
    merged: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += piece
        else:
            merged.append(piece)
    if all(isinstance(piece, bytes) for piece in merged):
        return pa.array([b"".join(merged)] * rows, pa.binary())
    columns = [pa.scalar(piece) if isinstance(piece, bytes) else pc.cast(piece, pa.binary()) for piece in merged]
    try:
        return pc.binary_join_element_wise(*columns, pa.scalar(b""))
    except pa.ArrowException as exc:
        raise InvalidMessage(f"rows that are too large to be joined: {exc}") from exc


def strings(values: Sequence[str]) -> pa.Array:
    return pa.array(values, pa.string())


def content(column: pa.Array) -> bytes:
    """Return the joined bytes of all texts of a column."""
    if not len(column):
        return b""
    _valid, offsets, data = column.buffers()
    if data is None:
        return b""
    places = memoryview(offsets).cast("i")
    return memoryview(data)[places[column.offset] : places[column.offset + len(column)]].tobytes()


def is_plain(column: pa.Array) -> bool:
    """Return True if JSON needs no escapes: all characters are printable ASCII except quotes and backslashes."""
    return not content(column).translate(None, _PLAIN)


def packed_texts(column: pa.Array) -> pa.Array:
    return _packed(column, _STR8)


def packed_bytes(column: pa.Array) -> pa.Array:
    return _packed(column, _BIN8)


def _packed(column: pa.Array, type8: int) -> pa.Array:
    column = pc.cast(column, pa.binary())
    lengths = pc.binary_length(column)
    if len(column) and pc.max(lengths).as_py() > _MAX_16:
        heads = pa.array([_head(type8, length) for length in lengths.to_pylist()], pa.binary())
    else:
        heads = pc.take(_short_heads(type8), lengths)
    return pc.binary_join_element_wise(heads, column, pa.scalar(b""))


def _head(type8: int, length: int) -> bytes:
    """Return msgpack's prefix of a str or bin of this length."""
    if type8 == _STR8 and length < 32:
        return bytes((0xA0 | length,))
    if length <= 0xFF:
        return bytes((type8, length))
    if length <= _MAX_16:
        return bytes((type8 + 1,)) + length.to_bytes(2, "big")
    return bytes((type8 + 2,)) + length.to_bytes(4, "big")


@cache
def _short_heads(type8: int) -> pa.Array:
    return pa.array([_head(type8, length) for length in range(_MAX_16 + 1)], pa.binary())
