"""The bytes of a segment of the journal (docs/rfcs/0003-journal.md).

==========  =====  =======================================================
segment     bytes  file ``<number, 16 digits>.journal``, preallocated
==========  =====  =======================================================
magic       4      ``ODQJ``
version     2      u16, 1
reserved    2
number      8      u64, the segment's number
first       8      u64, sequence number of its first record
==========  =====  =======================================================

==========  =====  =======================================================
record      bytes  back to back after the header
==========  =====  =======================================================
length      4      u32, of the payload
crc         4      u32, CRC-32 of the sequence number and the payload
sequence    8      u64, one more than the record before
payload     n
==========  =====  =======================================================

All integers little endian. The log ends at the first record that is not whole or does not follow its predecessor:
segments are reused, so old bytes may follow the end.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

_HEADER = struct.Struct("<4sHHQQ")
#: length of the payload, checksum, sequence number
RECORD = struct.Struct("<IIQ")
SEQUENCE = struct.Struct("<Q")
HEADER_BYTES = _HEADER.size
RECORD_BYTES = RECORD.size
MAGIC = b"ODQJ"
VERSION = 1


class SegmentHeader(NamedTuple):
    """The first bytes of a segment."""

    version: int
    reserved: int
    number: int
    first: int


def parse_header(data: bytes) -> SegmentHeader | None:
    """The header at the start of a segment's bytes; None when there is none."""
    if len(data) < HEADER_BYTES or data[:4] != MAGIC:
        return None
    return SegmentHeader(*_HEADER.unpack_from(data)[1:])


def record_at(data: bytes, offset: int) -> tuple[int, int, bytes] | None:
    """(sequence, where the next record starts, payload) of the whole record at ``offset``; None where there is none."""
    if offset + RECORD_BYTES > len(data):
        return None
    length, crc, sequence = RECORD.unpack_from(data, offset)
    start = offset + RECORD_BYTES
    if start + length > len(data):
        return None
    payload = data[start : start + length]
    if checksum(sequence, payload) != crc:
        return None
    return sequence, start + length, payload


def whole_records(data: bytes, first: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield (sequence, end offset, payload) of a segment's records, the first of which has the sequence ``first``.

    Ends at the first record that is not whole or does not follow its predecessor.
    """
    offset, expected = HEADER_BYTES, first
    while (found := record_at(data, offset)) is not None and found[0] == expected:
        yield found
        offset, expected = found[1], expected + 1


def segment_header(number: int, first: int) -> bytes:
    """The header of segment ``number``, whose first record has the sequence number ``first``."""
    return _HEADER.pack(MAGIC, VERSION, 0, number, first)


def record_header(sequence: int, payload: bytes) -> bytes:
    """What stands before the payload of a record."""
    return RECORD.pack(len(payload), checksum(sequence, payload), sequence)


def checksum(sequence: int, payload: bytes) -> int:
    """Of a record."""
    return zlib.crc32(payload, zlib.crc32(SEQUENCE.pack(sequence)))
