"""The journal's segments and records: their bytes, and the search for complete ones (docs/rfcs/0003-journal.md).

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

All integers are little endian. A segment ends at its last complete record, followed by zeros or by an incomplete
record. An earlier version reused segments, so older records may follow, too: the store contains all of these, so their
sequence numbers are not above the store's position.

A damaged record does not end the segment: its length may be wrong, so the reader searches the bytes behind it for the
next complete record. The caller sees a gap in the sequence numbers, and decides whether records are lost. A message in
the damaged record may contain the bytes of records, so a record from the search never replaces the damaged one: it can
only show a gap.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...errors import CorruptRecord, NewerFormat
from .file_calls import SYSTEM, FileCalls

_HEADER = struct.Struct("<4sHHQQ")
HEADER_BYTES = _HEADER.size
MAGIC = b"ODQJ"
VERSION = 1
_ZEROS = bytes(1 << 20)


class Segment:
    """The file of a segment. ``first`` is the sequence number of its first record, ``size`` its length in bytes."""

    __slots__ = ("calls", "fd", "first", "number", "path", "size")

    def __init__(self, calls: FileCalls, path: Path, fd: int, number: int, first: int, size: int) -> None:
        self.calls = calls
        self.path = path
        self.fd = fd
        self.number = number
        self.first = first
        self.size = size

    @classmethod
    def allocate(cls, path: Path, size: int, *, sync: bool, calls: FileCalls = SYSTEM) -> Segment:
        """Create a file full of zeros: overwriting written blocks needs no change of file metadata at a sync.

        Raises:
            OSError: the disk is full or failed; there is no file then.
        """
        fd = calls.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        segment = cls(calls, path, fd, 0, 0, size)
        try:
            for offset in range(0, size, len(_ZEROS)):
                remainder = memoryview(_ZEROS)[: size - offset]
                while remainder:
                    count = calls.write(fd, remainder, offset)
                    offset += count
                    remainder = remainder[count:]
            if sync:
                calls.sync(fd)
        except OSError:
            segment.discard()
            raise
        return segment

    @classmethod
    def open(cls, path: Path, calls: FileCalls = SYSTEM) -> Segment | None:
        """Open the segment in a file; remove the file and return None if it was never used.

        Raises:
            OSError: the file can't be opened.
            NewerFormat: it was written by a newer version.
            CorruptRecord: its header is damaged.
        """
        fd = calls.open(path, os.O_RDWR | os.O_CLOEXEC)
        size = calls.size(fd)
        header = parse_header(calls.read(fd, HEADER_BYTES, 0))
        if header is not None and header.is_sound(path):
            return cls(calls, path, fd, header.number, header.first, size)
        is_blank = not calls.read(fd, size, 0).strip(b"\0")
        calls.close(fd)
        if header is not None and header.version > VERSION and header.is_sound(path, header.version):
            text = f"{path} has journal format {header.version}; this version reads up to {VERSION}: upgrade"
            raise NewerFormat(text, version=header.version, supported=VERSION)
        if not is_blank:
            raise CorruptRecord(
                f"the journal is damaged: the header of {path}, at byte 0, is not valid; restore the file, or run: "
                f"opendata-queue store repair --delete-damaged {path.parent.parent}",
                key=path.name.encode(),
                offset=0,
            )
        calls.unlink(path)
        return None

    def begin(self, folder: Path, number: int, first: int, *, sync: bool) -> None:
        """Make the file segment ``number`` of a journal, with ``first`` as the sequence number of its first record."""
        self.number, self.first = number, first
        self.calls.write(self.fd, encode_header(number, first), 0)
        if sync:
            self.calls.sync_data(self.fd)
        path = folder / file_name(number)
        self.calls.rename(self.path, path)
        self.path = path
        if sync:
            self.calls.sync_folder(folder)

    def discard(self) -> None:
        """Close and delete the file."""
        self.calls.close(self.fd)
        self.calls.unlink(self.path)


def file_name(number: int) -> str:
    return f"{number:016d}.journal"


def encode_header(number: int, first: int) -> bytes:
    return _HEADER.pack(MAGIC, VERSION, 0, number, first)


class SegmentHeader(NamedTuple):
    version: int
    reserved: int
    number: int
    first: int

    def is_sound(self, path: Path, version: int = VERSION) -> bool:
        """Return True if this version could have written the header to this file.

        The other fields are checked with the records.
        """
        return self.version == version and not self.reserved and path.name == file_name(self.number)


def parse_header(data: bytes) -> SegmentHeader | None:
    """Decode the header at the start of a segment's bytes; return None if there is none."""
    if len(data) < HEADER_BYTES or data[:4] != MAGIC:
        return None
    return SegmentHeader(*_HEADER.unpack_from(data)[1:])


#: length of the payload, checksum, sequence number
RECORD = struct.Struct("<IIQ")
SEQUENCE = struct.Struct("<Q")
RECORD_BYTES = RECORD.size
_SEQUENCE_OFFSET = RECORD_BYTES - SEQUENCE.size
#: the low bytes of a sequence number; the search looks for the others, which records near each other share
_LOW_BYTES = 2
_HIGH_BYTES = SEQUENCE.size - _LOW_BYTES
_ZERO_RUN = re.compile(rb"\0" * _HIGH_BYTES + rb"+")


class JournalRecord(NamedTuple):
    """A complete record; ``start`` and ``end`` are its offsets in the segment."""

    sequence: int
    start: int
    end: int
    payload: bytes


def checksum(sequence: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(SEQUENCE.pack(sequence)))


def record_at(data: bytes, offset: int) -> JournalRecord | None:
    """Return the complete record at ``offset``; None if there is none."""
    if offset < 0 or offset + RECORD_BYTES > len(data):
        return None
    length, crc, sequence = RECORD.unpack_from(data, offset)
    start = offset + RECORD_BYTES
    if start + length > len(data):
        return None
    payload = data[start : start + length]
    if checksum(sequence, payload) != crc:
        return None
    return JournalRecord(sequence, offset, start + length, payload)


def complete_records(
    data: bytes, first: int, position: int, until: int | None = None, offset: int = HEADER_BYTES
) -> Iterator[JournalRecord]:
    """Yield the complete records of a segment in order, those behind damaged ones included.

    Args:
        first: the sequence number of the first record, as the segment's header has it.
        position: the last sequence number that the store holds.
        until: the sequence number with which the next segment begins. A segment that ends just before it is not
            searched any further: an earlier recovery has left out any record that follows.
        offset: the offset of the first record.
    """
    expected = first
    while True:
        record = record_at(data, offset)
        if record is None or record.sequence != expected:
            if expected == until:
                return
            damaged = expected if record is None else None
            record = _next_record(data, offset, min(expected, position + 1), damaged)
            if record is None:
                return
        yield record
        offset, expected = record.end, record.sequence + 1


def begun_record(data: bytes, offset: int, sequence: int) -> str:
    """Return the state of the record at a segment's end: "damaged", "incomplete", or an empty text if there is none.

    An incomplete record can't be distinguished from a complete one whose length, checksum or payload was changed later.
    If only its sequence number was changed, the checksum shows it.
    """
    if offset + RECORD_BYTES > len(data):
        return "incomplete" if data[offset:].strip(b"\0") else ""
    length, crc, stored_sequence = RECORD.unpack_from(data, offset)
    payload = data[offset + RECORD_BYTES : offset + RECORD_BYTES + length]
    if length and len(payload) == length and checksum(sequence, payload) == crc:
        return "damaged"
    return "incomplete" if stored_sequence == sequence else ""


def _content_end(data: bytes) -> int:
    """Return the offset after the last byte that is not zero. Comparing blocks is ten times as fast as ``rstrip``."""
    end = len(data)
    while end >= len(_ZEROS) and data[end - len(_ZEROS) : end] == _ZEROS:
        end -= len(_ZEROS)
    start = max(0, end - len(_ZEROS))
    return start + len(data[start:end].rstrip(b"\0"))


def _next_record(data: bytes, start: int, lowest: int, damaged: int | None) -> JournalRecord | None:
    """Return the first complete record from ``start`` on with a sequence number of at least ``lowest``.

    Args:
        damaged: the sequence number of the damaged record at ``start``, which no other record can have.
    """
    highest = lowest + len(data) // RECORD_BYTES
    end = _content_end(data)  # the header of a record does not consist of zeros
    records = []
    for high in range(lowest >> 8 * _LOW_BYTES, (highest >> 8 * _LOW_BYTES) + 1):
        for place in _places(data, start + _SEQUENCE_OFFSET, end, high):
            (sequence,) = SEQUENCE.unpack_from(data, place)
            if not lowest <= sequence <= highest or sequence == damaged:
                continue
            if (record := record_at(data, place - _SEQUENCE_OFFSET)) is not None:
                records.append(record)
                break
    return min(records, key=lambda record: record.start, default=None)


def _places(data: bytes, start: int, end: int, high: int) -> Iterator[int]:
    """Yield the offsets at which a sequence number with this upper part may begin, in order."""
    end = min(end, len(data) - SEQUENCE.size)
    if high == 0:  # zeros are frequent: only the start of a run of zeros can be the upper part
        for run in _ZERO_RUN.finditer(data, start, end + SEQUENCE.size):
            yield from range(max(run.start() - _LOW_BYTES, start), min(run.start(), end))
        return
    needle = high.to_bytes(_HIGH_BYTES, "little")
    at = data.find(needle, start + _LOW_BYTES, end + SEQUENCE.size)
    while at >= 0:
        yield at - _LOW_BYTES
        at = data.find(needle, at + 1, end + SEQUENCE.size)
