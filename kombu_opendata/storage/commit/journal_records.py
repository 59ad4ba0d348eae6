"""The records of the journal's segments, and the search for complete ones (docs/rfcs/0003-journal.md).

==========  =====  ======================================================= record      bytes  back to back after a
segment's header ==========  =====  ======================================================= length      4      u32, of
the payload crc         4      u32, CRC-32 of the sequence number and the payload sequence    8      u64, one more than
the record before payload     n ==========  =====  =======================================================

All integers are little endian. A segment ends at its last complete record, followed by zeros or by an incomplete
record. An earlier version reused segments, so older records may follow, too: the store contains all of these, so their
sequence numbers are not above the store's position.

A damaged record does not end the segment: its length may be wrong, so the reader searches the bytes behind it for the
next complete record. The caller sees a gap in the sequence numbers, and decides whether records are lost. A message in
the damaged record may contain the bytes of records, so a record from the search never replaces the damaged one: it can
only show a gap.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from .journal_segment import HEADER_BYTES

#: length of the payload, checksum, sequence number
RECORD = struct.Struct("<IIQ")
SEQUENCE = struct.Struct("<Q")
RECORD_BYTES = RECORD.size
_SEQUENCE_OFFSET = RECORD_BYTES - SEQUENCE.size
#: all records in reach have the same upper bytes of the sequence number, so the search looks for these
_LOW_BYTES = 2
_HIGH_BYTES = SEQUENCE.size - _LOW_BYTES
_ZEROS = re.compile(rb"\0" * _HIGH_BYTES + rb"+")


class JournalRecord(NamedTuple):
    """A complete record; ``start`` and ``end`` are its offsets in the segment."""

    sequence: int
    start: int
    end: int
    payload: bytes


def checksum(sequence: int, payload: bytes) -> int:
    """Return the checksum of a record."""
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


def _next_record(data: bytes, start: int, lowest: int, damaged: int | None) -> JournalRecord | None:
    """Return the first complete record from ``start`` on with a sequence number of at least ``lowest``.

    Args:
        damaged: the sequence number of the damaged record at ``start``, which no other record can have.
    """
    highest = lowest + len(data) // RECORD_BYTES
    end = len(data.rstrip(b"\0"))  # the header of a record does not consist of zeros
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
        for run in _ZEROS.finditer(data, start, end + SEQUENCE.size):
            yield from range(max(run.start() - _LOW_BYTES, start), min(run.start(), end))
        return
    needle = high.to_bytes(_HIGH_BYTES, "little")
    at = data.find(needle, start + _LOW_BYTES, end + SEQUENCE.size)
    while at >= 0:
        yield at - _LOW_BYTES
        at = data.find(needle, at + 1, end + SEQUENCE.size)
