"""Building blocks of the formats: names, texts, arrays, columns, JSON, versions; checks and their errors.

====================  =====================================================================================
type                  bytes
====================  =====================================================================================
``TerminatedBytes``   the raw bytes with ``00 → 01 01``, ``01 → 01 02``, ``ff → 01 03``, then ``00``
``Utf8``              length u16 little endian, then that many bytes of UTF-8
``Array<T>``          count u16 little endian, then that many ``T`` without padding
JSON                  ``Utf8`` whose text is one JSON object
column                integers of one size, without a count; always little endian
====================  =====================================================================================

Sources: OpenData-Log (``TerminatedBytes``) and OpenData-Timeseries (``Utf8``, ``Array``), as RFC 0001 names them.
A column is packed and read by one call: a Python call per integer would cost more than all other work of the history.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from array import array
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ...errors import CorruptRecord, InvalidMessage, RequestError

#: the largest length or count
MAX_U16 = 0xFFFF
#: the count before an array
COUNT = struct.Struct("<H")
#: the version of each format of this package that begins with one; also the whole value of a record without fields
VERSION = 1
VERSION_ONLY = bytes((VERSION,))

#: bytes of one integer of a column, by the code of :mod:`array`
COLUMN_BYTES = {"B": 1, "H": 2, "I": 4, "Q": 8, "q": 8}
_SWAPS = sys.byteorder == "big"

T = TypeVar("T")

_ESCAPE = re.compile(rb"\x01(.?)", re.DOTALL)
_UNESCAPED = {b"\x01": b"\x00", b"\x02": b"\x01", b"\x03": b"\xff"}


def corrupt(key: bytes, offset: int, what: str) -> CorruptRecord:
    """Return the error for a record that does not decode; `what` describes the bytes at `offset`."""
    text = f"record {key.hex() or '(empty key)'}: {what} at byte {offset}; restore the record or remove it"
    return CorruptRecord(text, key=key, offset=offset)


def terminated(raw: bytes) -> bytes:
    # 01 comes first, as the other two replacements add 01 bytes, which must not be escaped.
    return raw.replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01").replace(b"\xff", b"\x01\x03") + b"\x00"


def read_terminated(key: bytes, offset: int) -> tuple[bytes, int]:
    """Decode the TerminatedBytes at `offset` of `key`; return the raw bytes and the offset of the next field."""
    end = key.find(b"\x00", offset)
    if end < 0:
        raise corrupt(key, len(key), "a name without its terminator")
    escaped = key[offset:end]
    if b"\xff" in escaped:
        raise corrupt(key, offset + escaped.index(b"\xff"), "an ff byte that is not escaped")
    if b"\x01" not in escaped:
        return escaped, end + 1
    try:
        return _ESCAPE.sub(lambda match: _UNESCAPED[match.group(1)], escaped), end + 1
    except KeyError as error:
        raise corrupt(key, offset, "a name with an unknown escape") from error


def utf8(text: str) -> bytes:
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"text that has no UTF-8 form ({error.reason}): {text[:40]!a}") from error
    if len(raw) > MAX_U16:
        raise InvalidMessage(
            f"a text of {len(raw)} bytes; at most {MAX_U16} can be stored: {text[:40]!r}…", limit=MAX_U16, size=len(raw)
        )
    return COUNT.pack(len(raw)) + raw


def read_utf8(key: bytes, value: bytes, offset: int) -> tuple[str, int]:
    """Decode the Utf8 at `offset` of `value`; return the text and the offset of the next field."""
    raw, end = _read_raw(key, value, offset)
    try:
        return raw.decode(), end
    except UnicodeDecodeError as error:
        raise corrupt(key, offset + 2 + error.start, "a text that is not UTF-8") from error


def _read_raw(key: bytes, value: bytes, offset: int) -> tuple[bytes, int]:
    (length,) = read(COUNT, key, value, offset)
    start = offset + 2
    end = start + length
    if end > len(value):
        raise corrupt(key, offset, f"a text of {length} bytes where {len(value) - start} are left")
    return value[start:end], end


def utf8_escaped(name: str) -> bytes:
    """Encode `name` as Utf8; surrogate escapes (see :mod:`.keys`) become the bytes that they represent."""
    raw = name.encode("utf-8", "surrogateescape")
    return pack(COUNT, "length of a name", len(raw)) + raw


def read_utf8_escaped(key: bytes, value: bytes, offset: int) -> tuple[str, int]:
    """Decode the name at `offset`, with surrogate escapes; return it and the offset of the next field."""
    raw, end = _read_raw(key, value, offset)
    return raw.decode("utf-8", "surrogateescape"), end


def read_many(
    read_one: Callable[[bytes, bytes, int], tuple[T, int]], key: bytes, value: bytes, offset: int, count: int
) -> tuple[list[T], int]:
    """Return ``count`` fields that `read_one` reads, from `offset` on, and the offset of the next field."""
    fields = []
    for _ in range(count):
        field, offset = read_one(key, value, offset)
        fields.append(field)
    return fields, offset


def read_texts(key: bytes, value: bytes, offset: int) -> tuple[list[str], int]:
    """Decode the ``Array<Utf8>`` at `offset`; return the texts and the offset of the next field."""
    (count,) = read(COUNT, key, value, offset)
    return read_many(read_utf8, key, value, offset + COUNT.size, count)


def json_utf8(arguments: dict[str, Any]) -> bytes:
    try:
        return utf8(json.dumps(arguments, allow_nan=False, ensure_ascii=False, separators=(",", ":")))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"arguments that JSON can't express: {error}") from error


def read_json(key: bytes, value: bytes, offset: int) -> tuple[dict[str, Any], int]:
    """Decode the JSON field at `offset` of `value`; return the object and the offset of the next field."""
    text, end = read_utf8(key, value, offset)
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise corrupt(key, offset + 2, "a text that is not JSON") from error
    if not isinstance(arguments, dict):
        raise corrupt(key, offset + 2, "JSON that is not an object")
    return arguments, end


def read_last_json(key: bytes, value: bytes, offset: int = 0) -> dict[str, Any]:
    """Decode the JSON field at `offset`, which is the last field of `value`."""
    arguments, end = read_json(key, value, offset)
    check_end(key, value, end)
    return arguments


# ---- columns
def pack_column(code: str, values: Iterable[int]) -> bytes:
    try:
        column = array(code, values)
    except (OverflowError, TypeError) as error:
        raise RequestError(f"an integer that does not fit its column: {error}") from error
    if _SWAPS:
        column.byteswap()
    return column.tobytes()


def pack_columns(codes: str, columns: Iterable[Iterable[int]]) -> bytes:
    """Pack these columns, one after the other; a code each."""
    return b"".join(pack_column(code, values) for code, values in zip(codes, columns, strict=True))


def read_column(code: str, key: bytes, value: bytes, offset: int, count: int) -> tuple[array[int], int]:
    """Return the column of ``count`` integers at ``offset``, and the offset of the next field."""
    end = offset + count * COLUMN_BYTES[code]
    if end > len(value):
        raise corrupt(key, offset, f"a column of {count} integers where {len(value) - offset} bytes are left")
    column = array(code)
    column.frombytes(value[offset:end])
    if _SWAPS:
        column.byteswap()
    return column, end


def read_columns(codes: str, key: bytes, value: bytes, offset: int, count: int) -> tuple[list[array[int]], int]:
    """Return the columns of ``count`` integers each from ``offset`` on, and the offset of the next field."""
    columns = []
    for code in codes:
        column, offset = read_column(code, key, value, offset, count)
        columns.append(column)
    return columns, offset


# ---- fixed layouts, versions, ends
def pack(layout: struct.Struct, fields: str, *values: int | bytes) -> bytes:
    """Pack `values` by `layout`; `fields` names them in the error."""
    try:
        return layout.pack(*values)
    except struct.error as error:
        raise RequestError(f"a value that does not fit its field in ({fields}) = {values}: {error}") from error


def read(layout: struct.Struct, key: bytes, value: bytes, offset: int) -> tuple[Any, ...]:
    if offset + layout.size > len(value):
        raise corrupt(key, offset, f"{layout.size} bytes expected, {max(len(value) - offset, 0)} found")
    return layout.unpack_from(value, offset)


def read_all(layout: struct.Struct, key: bytes, value: bytes) -> tuple[Any, ...]:
    """Return the fields of `layout`, which is the whole `value`."""
    fields = read(layout, key, value, 0)
    check_end(key, value, layout.size)
    return fields


def pack_versioned(layout: struct.Struct, fields: str, *values: int | bytes) -> bytes:
    """Pack values as :func:`pack`, by a layout that begins with the version of the record."""
    return pack(layout, f"version, {fields}", VERSION, *values)


def read_versioned(layout: struct.Struct, key: bytes, value: bytes) -> tuple[Any, ...]:
    """Return the fields at the start of `value` after the version, whose value is checked."""
    version, *fields = read(layout, key, value, 0)
    check_version(key, version)
    return tuple(fields)


def read_all_versioned(layout: struct.Struct, key: bytes, value: bytes) -> tuple[Any, ...]:
    """Return the fields as :func:`read_versioned`, where `layout` is the whole `value`."""
    fields = read_versioned(layout, key, value)
    check_end(key, value, layout.size)
    return fields


def read_version_only(key: bytes, value: bytes) -> None:
    check_version(key, value[0] if value else 0)
    check_end(key, value, 1)


def check_version(key: bytes, version: int) -> None:
    if version != VERSION:
        raise corrupt(key, 0, f"record version {version}")


def check_flags(key: bytes, offset: int, flags: int, mask: int) -> None:
    if flags & ~mask:
        raise corrupt(key, offset, f"unknown flags {flags:#04x}")


def array_count(entries: int, what: str) -> bytes:
    if entries > MAX_U16:
        raise RequestError(f"{entries} {what}; a record holds at most {MAX_U16}", limit=MAX_U16, size=entries)
    return COUNT.pack(entries)


def check_end(key: bytes, value: bytes, offset: int) -> None:
    if offset != len(value):
        raise corrupt(key, offset, f"{len(value) - offset} bytes after the end of the record")
