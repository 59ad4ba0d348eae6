"""The segments of the journal: their files and bytes (docs/rfcs/0003-journal.md).

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

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_HEADER = struct.Struct("<4sHHQQ")
#: length of the payload, checksum, sequence number
RECORD = struct.Struct("<IIQ")
SEQUENCE = struct.Struct("<Q")
HEADER_BYTES = _HEADER.size
RECORD_BYTES = RECORD.size
MAGIC = b"ODQJ"
VERSION = 1
_ZEROS = bytes(1 << 20)


class Segment:
    """The file of a segment. ``first`` is the sequence number of its first record, ``size`` its length in bytes."""

    __slots__ = ("fd", "first", "number", "path", "size")

    def __init__(self, path: Path, fd: int, number: int, first: int, size: int) -> None:
        self.path, self.fd, self.number, self.first, self.size = path, fd, number, first, size

    @classmethod
    def allocate(cls, path: Path, size: int, *, sync: bool) -> Segment:
        """A new file full of zeros: overwriting written blocks needs no change of file metadata at a sync.

        Raises:
            OSError: the disk is full or failed; there is no file then.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        segment = cls(path, fd, 0, 0, size)
        try:
            for offset in range(0, size, len(_ZEROS)):
                wanted = memoryview(_ZEROS)[: size - offset]
                while wanted:
                    written = os.pwrite(fd, wanted, offset)
                    offset += written
                    wanted = wanted[written:]
            if sync:
                os.fsync(fd)
        except OSError:
            segment.discard()
            raise
        return segment

    def discard(self) -> None:
        """Close and remove the file."""
        os.close(self.fd)
        self.path.unlink(missing_ok=True)


class SegmentHeader(NamedTuple):
    """The first bytes of a segment."""

    version: int
    reserved: int
    number: int
    first: int


def parse_header(data: bytes) -> SegmentHeader | None:
    """The header at the start of a segment's bytes; None if there is none."""
    if len(data) < HEADER_BYTES or data[:4] != MAGIC:
        return None
    return SegmentHeader(*_HEADER.unpack_from(data)[1:])


def record_at(data: bytes, offset: int) -> tuple[int, int, bytes] | None:
    """(sequence, offset of the next record, payload) of the whole record at ``offset``; None if there is none."""
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
    """The bytes before the payload of a record."""
    return RECORD.pack(len(payload), checksum(sequence, payload), sequence)


def checksum(sequence: int, payload: bytes) -> int:
    """The checksum of a record."""
    return zlib.crc32(payload, zlib.crc32(SEQUENCE.pack(sequence)))
