"""The segments of the journal: their files and headers (docs/rfcs/0003-journal.md).

==========  =====  =======================================================
segment     bytes  file ``<number, 16 digits>.journal``, preallocated
==========  =====  =======================================================
magic       4      ``ODQJ``
version     2      u16, 1
reserved    2
number      8      u64, the segment's number
first       8      u64, sequence number of its first record
==========  =====  =======================================================

All integers are little endian. Records follow, back to back; :mod:`.journal_records` defines their bytes.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

from ...errors import CorruptRecord, NewerFormat
from ...file_system import sync_folder

_HEADER = struct.Struct("<4sHHQQ")
HEADER_BYTES = _HEADER.size
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
        """Create a file full of zeros: overwriting written blocks needs no change of file metadata at a sync.

        Raises:
            OSError: the disk is full or failed; there is no file then.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        segment = cls(path, fd, 0, 0, size)
        try:
            for offset in range(0, size, len(_ZEROS)):
                remainder = memoryview(_ZEROS)[: size - offset]
                while remainder:
                    written = os.pwrite(fd, remainder, offset)
                    offset += written
                    remainder = remainder[written:]
            if sync:
                os.fsync(fd)
        except OSError:
            segment.discard()
            raise
        return segment

    @classmethod
    def open(cls, path: Path) -> Segment | None:
        """Open the segment in a file; remove the file and return None if it was never used.

        Raises:
            OSError: the file can't be opened.
            NewerFormat: it was written by a newer version.
            CorruptRecord: its header is damaged.
        """
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        size = os.fstat(fd).st_size
        header = parse_header(os.pread(fd, HEADER_BYTES, 0))
        if header is not None and header.is_sound(path):
            return cls(path, fd, header.number, header.first, size)
        is_blank = not os.pread(fd, size, 0).strip(b"\0")
        os.close(fd)
        if header is not None and header.version > VERSION and header.is_sound(path, header.version):
            text = f"{path} has journal format {header.version}; this version reads up to {VERSION}: upgrade"
            raise NewerFormat(text, version=header.version, supported=VERSION)
        if not is_blank:
            raise CorruptRecord(
                f"the journal is damaged: the header of {path}, at byte 0, is not valid; restore the file, or run: "
                f"opendata-queue store repair --drop-damaged {path.parent.parent}",
                key=path.name.encode(),
                offset=0,
            )
        path.unlink()
        return None

    def begin(self, folder: Path, number: int, first: int, *, sync: bool) -> None:
        """Make the file segment ``number`` of a journal, with ``first`` as the sequence number of its first record."""
        self.number, self.first = number, first
        os.pwrite(self.fd, encode_header(number, first), 0)
        if sync:
            os.fdatasync(self.fd)
        path = folder / file_name(number)
        self.path.rename(path)
        self.path = path
        if sync:
            sync_folder(folder)

    def discard(self) -> None:
        """Close and delete the file."""
        os.close(self.fd)
        self.path.unlink(missing_ok=True)


def file_name(number: int) -> str:
    """Return the name of a segment's file."""
    return f"{number:016d}.journal"


def encode_header(number: int, first: int) -> bytes:
    """Encode the header of a segment."""
    return _HEADER.pack(MAGIC, VERSION, 0, number, first)


class SegmentHeader(NamedTuple):
    """The first bytes of a segment."""

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
