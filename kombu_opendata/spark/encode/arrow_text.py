"""Texts and bytes for many rows at once, put together by Arrow.

A piece is the same for all rows (``bytes``) or a column of strings or binaries. Doing this in Python, row by row, costs
ten times as much and would be most of what a job does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import InvalidMessage

#: characters that JSON and ``repr`` both write as they are
_PLAIN = bytes(set(range(0x20, 0x7F)) - set(b'"\\'))
_MAX_STR16 = 0xFFFF
#: a column that is joined may have so many bytes: Arrow counts them in 32 bits
MAX_COLUMN_BYTES = (1 << 31) - 1


def join(pieces: Sequence[bytes | pa.Array], rows: int) -> pa.Array:
    """The pieces of each row, one after the other, as a column of binaries.

    Raises:
        InvalidMessage: over 2 GiB in all.
    """
    if all(isinstance(piece, bytes) for piece in pieces):
        return pa.array([b"".join(pieces)] * rows, pa.binary())
    scalars = [pa.scalar(piece) if isinstance(piece, bytes) else binary(piece) for piece in pieces]
    try:
        return pc.binary_join_element_wise(*scalars, pa.scalar(b""))
    except pa.ArrowException as exc:
        raise InvalidMessage(f"rows that are too large to be joined: {exc}") from exc


def binary(column: pa.Array) -> pa.Array:
    """A column of strings as binaries; nothing is copied."""
    return column if column.type == pa.binary() else pc.cast(column, pa.binary())


def strings(values: Sequence[str]) -> pa.Array:
    """Texts as a column."""
    return pa.array(values, pa.string())


def content(column: pa.Array) -> bytes:
    """The bytes of all of a column's texts, back to back."""
    if not len(column):
        return b""
    _valid, offsets, data = column.buffers()
    if data is None:
        return b""
    places = memoryview(offsets).cast("i")
    return memoryview(data)[places[column.offset] : places[column.offset + len(column)]].tobytes()


def is_plain(column: pa.Array) -> bool:
    """Whether the texts are of printable ASCII without quotation marks and backslashes, so JSON needs no escapes."""
    return not content(column).translate(None, _PLAIN)


# ---- msgpack
def packed_texts(column: pa.Array) -> pa.Array:
    """Each text as a msgpack str."""
    return _packed(column, _str_header, _str_headers)


def packed_bytes(column: pa.Array) -> pa.Array:
    """Each binary as a msgpack bin."""
    return _packed(column, _bin_header, _bin_headers)


def _packed(column: pa.Array, header: Callable[[int], bytes], headers: Callable[[], pa.Array]) -> pa.Array:
    column = binary(column)
    lengths = pc.binary_length(column)
    if len(column) and pc.max(lengths).as_py() > _MAX_STR16:
        heads = pa.array([header(length) for length in lengths.to_pylist()], pa.binary())
    else:
        heads = pc.take(headers(), lengths)
    return pc.binary_join_element_wise(heads, column, pa.scalar(b""))


def _str_header(length: int) -> bytes:
    if length < 32:
        return bytes((0xA0 | length,))
    if length <= 0xFF:
        return bytes((0xD9, length))
    if length <= _MAX_STR16:
        return b"\xda" + length.to_bytes(2, "big")
    return b"\xdb" + length.to_bytes(4, "big")


def _bin_header(length: int) -> bytes:
    if length <= 0xFF:
        return bytes((0xC4, length))
    if length <= _MAX_STR16:
        return b"\xc5" + length.to_bytes(2, "big")
    return b"\xc6" + length.to_bytes(4, "big")


@cache
def _str_headers() -> pa.Array:
    return pa.array([_str_header(length) for length in range(_MAX_STR16 + 1)], pa.binary())


@cache
def _bin_headers() -> pa.Array:
    return pa.array([_bin_header(length) for length in range(_MAX_STR16 + 1)], pa.binary())
