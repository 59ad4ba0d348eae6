"""Columns: sequences of integers of one size, without a count; always little endian.

A column is packed and read by one call: a Python call per integer would cost more than all other work of the history.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

from ...errors import RequestError
from . import types

#: bytes of one integer, by the code of :mod:`array`
SIZES = {"B": 1, "H": 2, "I": 4, "Q": 8, "q": 8}
_SWAPS = sys.byteorder == "big"


def pack(code: str, values: Iterable[int]) -> bytes:
    """Pack the column of these integers.

    Raises:
        RequestError: an integer does not fit.
    """
    try:
        column = array(code, values)
    except (OverflowError, TypeError) as error:
        raise RequestError(f"an integer that does not fit its column: {error}") from error
    if _SWAPS:
        column.byteswap()
    return column.tobytes()


def pack_all(codes: str, columns: Iterable[Iterable[int]]) -> bytes:
    """Pack these columns, one after the other; a code each."""
    return b"".join(pack(code, values) for code, values in zip(codes, columns, strict=True))


def read_all(codes: str, key: bytes, value: bytes, offset: int, count: int) -> tuple[list[array[int]], int]:
    """Return the columns of ``count`` integers each from ``offset`` on, and the offset of the next field."""
    arrays = []
    for code in codes:
        column, offset = read(code, key, value, offset, count)
        arrays.append(column)
    return arrays, offset


def read(code: str, key: bytes, value: bytes, offset: int, count: int) -> tuple[array[int], int]:
    """Return the column of ``count`` integers at ``offset``, and the offset of the next field.

    Raises:
        CorruptRecord: the record ends before the column does.
    """
    end = offset + count * SIZES[code]
    if end > len(value):
        raise types.corrupt(key, offset, f"a column of {count} integers where {len(value) - offset} bytes are left")
    column = array(code)
    column.frombytes(value[offset:end])
    if _SWAPS:
        column.byteswap()
    return column, end
