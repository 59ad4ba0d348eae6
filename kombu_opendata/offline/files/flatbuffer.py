"""Reader of FlatBuffers, as far as SlateDB's files need it: tables, numbers, byte vectors and vectors of tables.

A table begins with an i32, the distance back to its vtable. The vtable contains its own size, the size of the table,
and the position of each field, all as u16; 0 means that a field is absent. Integers are little endian. Source: the
FlatBuffers documentation, "FlatBuffer Internals".
"""

from __future__ import annotations

import struct

_U16 = struct.Struct("<H")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

#: exceptions of reading a damaged buffer
DAMAGED = (struct.error, ValueError)


class FlatTable:
    """Table in a buffer; its fields are identified by their number in the schema."""

    __slots__ = ("_at", "_data", "_fields")

    def __init__(self, data: bytes, at: int | None = None) -> None:
        """Read the table at ``at``, or the root table.

        Raises:
            ValueError, struct.error: there is no valid table.
        """
        self._data = data
        self._at = _read(_U32, data, 0) if at is None else at
        vtable = self._at - _read(_I32, data, self._at)
        size = _read(_U16, data, vtable)
        if size < 4 or size % 2:
            raise ValueError(f"a vtable of {size} bytes")
        self._fields = [_read(_U16, data, vtable + offset) for offset in range(4, size, 2)]

    def _where(self, field: int) -> int:
        offset = self._fields[field] if field < len(self._fields) else 0
        return self._at + offset if offset else 0

    def u64(self, field: int) -> int:
        at = self._where(field)
        return _read(_U64, self._data, at) if at else 0

    def u8(self, field: int) -> int:
        at = self._where(field)
        return self._data[_inside(self._data, at, 1)] if at else 0

    def blob(self, field: int) -> bytes | None:
        """Return a vector of bytes; None if it is absent."""
        at = self._where(field)
        if not at:
            return None
        start = at + _read(_U32, self._data, at)
        length = _read(_U32, self._data, start)
        _inside(self._data, start + 4, length)
        return self._data[start + 4 : start + 4 + length]

    def tables(self, field: int) -> list[FlatTable]:
        """Return a vector of tables; empty if it is absent."""
        at = self._where(field)
        if not at:
            return []
        start = at + _read(_U32, self._data, at)
        count = _read(_U32, self._data, start)
        _inside(self._data, start + 4, 4 * count)
        places = range(start + 4, start + 4 + 4 * count, 4)
        return [FlatTable(self._data, place + _read(_U32, self._data, place)) for place in places]


def _read(layout: struct.Struct, data: bytes, at: int) -> int:
    (value,) = layout.unpack_from(data, _inside(data, at, layout.size))
    return int(value)


def _inside(data: bytes, at: int, size: int) -> int:
    if at < 0 or at + size > len(data):
        raise ValueError(f"{size} bytes at {at} of {len(data)}")
    return at
