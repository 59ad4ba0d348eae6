"""Columns: many integers of one size one after the other, without a count; little endian on every machine.

Made and read in one go: a Python call per integer would cost more than everything else that history does.
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
    """The column of these integers.

    Raises:
        RequestError: one does not fit.
    """
    try:
        column = array(code, values)
    except (OverflowError, TypeError) as error:
        raise RequestError(f"an integer that does not fit its column: {error}") from error
    if _SWAPS:
        column.byteswap()
    return column.tobytes()


def read(code: str, key: bytes, value: bytes, offset: int, count: int) -> tuple[array[int], int]:
    """The column of ``count`` integers at ``offset``, and where the next field starts.

    Raises:
        CorruptRecord: the record ends before.
    """
    end = offset + count * SIZES[code]
    if end > len(value):
        raise types.corrupt(key, offset, f"a column of {count} integers where {len(value) - offset} bytes are left")
    column = array(code)
    column.frombytes(value[offset:end])
    if _SWAPS:
        column.byteswap()
    return column, end
