"""Binary format of a batch object: segments of envelopes, each with its index, and a directory at the end.

File names and URIs of batches are relative to the staged folder.

==============  ===================================================================================================
part            content
==============  ===================================================================================================
header          magic ``ODQB``, version u16 (2), reserved u16 (0)
each segment    its payload: contiguous frames; then its index: one frame, of contiguous blocks
directory       an entry for each segment
identity        instance ``Utf8``, job id ``Utf8``
footer          see below; the object's last 40 bytes
==============  ===================================================================================================

A frame is one of Zstandard (RFC 8878) that names the size of its contents. Each block of the index has one in the
payload, with the envelopes of its rows back to back: at most 1 MiB, unless the block has a single row. So the envelopes
of up to 256 rows are read and decompressed together, and a reader knows the memory that they take before it reads them.

=================  =======  ==================================================================================
index block        type     (in the index, after decompression)
=================  =======  ==================================================================================
size               u32      bytes of the columns
columns            msgpack  an array: :class:`.batch_block.IndexBlock`
=================  =======  ==================================================================================

=================  =======  ==================================================================================
directory entry    type     (32 bytes)
=================  =======  ==================================================================================
payload offset     u64      in the object; the index follows the payload, and the next segment follows the index
payload bytes      u64
index bytes        u32
index CRC-32       u32      of the index's frame
rows               u32
blocks             u32
=================  =======  ==================================================================================

=================  =======  ==================================================================================
footer             type     (40 bytes)
=================  =======  ==================================================================================
directory offset   u64
rows               u64      of all segments
segments           u32
identity bytes     u32
partition          u32
attempt            u32
CRC-32             u32      of directory, identity and the footer up to here
magic              4 bytes  ``ODQB``
=================  =======  ==================================================================================

Integers are little endian. The footer's checksum covers the directory, which holds the checksums of the indexes, which
hold those of the frames and of the envelopes. The checksum in the commit therefore covers every byte. The format is
specific to this package. A reader checks each field before use, because any user with write access to the folder may
have written the object.

In version 1, which is read but not written, nothing is compressed: the payload is contiguous envelopes, the index
contiguous blocks, and the blocks have no frames.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from typing import NamedTuple
from zlib import crc32

from ..errors import DamagedBatch, NewerFormat
from .compression import FrameError, decompress

MAGIC = b"ODQB"
VERSION = 2
#: the version without compression
PLAIN_VERSION = 1
HEADER = struct.Struct("<4sHH")
ENTRY = struct.Struct("<QQIIII")
FOOTER = struct.Struct("<QQIIIII4s")
SIZE = struct.Struct("<I")
_UTF8 = struct.Struct("<H")

#: a writer ends a segment when its payload or its index has this many bytes, or when it has this many rows
SEGMENT_BYTES = 4 << 20
SEGMENT_ROWS = 8192
#: the envelopes of a frame with several rows have at most this many bytes
FRAME_BYTES = 1 << 20
#: a reader refuses more; the index is large because a row may have 255 headers of up to 65,535 bytes each
MAX_INDEX_BYTES = 64 << 20
#: the largest limit of messages that a broker may have
MAX_ENVELOPE_BYTES = 512 << 20
MAX_DIRECTORY_BYTES = 32 << 20
MAX_ROWS = 1 << 31
#: size of the first read of an object's end, which contains the whole directory of most batches
TAIL_BYTES = 64 << 10

_FOOTER_FIELDS = FOOTER.size - 8  # covered by its checksum

HEADER_BYTES = HEADER.pack(MAGIC, VERSION, 0)

SCHEME = "batch:"
#: paths of batches, and of payload segments (:mod:`kombu_opendata.storage.records.payload_places`)
BATCH = r"[0-9a-f]{24}/[0-9]{1,10}-[0-9]{1,10}-[0-9a-f]{16}\.batch"
SEGMENT = r"segments/[0-9a-f]{16}-[0-9]{1,10}\.segment"
_OBJECT = re.compile(f"{SCHEME}({BATCH})", re.ASCII)
#: names of files that a sweep of the staged folder may remove: segments, batches and lists of bad rows, complete or not
FILE_NAME = re.compile(
    rf"{SEGMENT}|[0-9a-f]{{24}}/(([0-9]{{1,10}}-[0-9]{{1,10}}-)?[0-9a-f]{{16}}\.(batch|bad))(\.part)?", re.ASCII
)


class SegmentEntry(NamedTuple):
    payload_offset: int
    payload_bytes: int
    index_bytes: int
    index_crc: int
    rows: int
    blocks: int

    @property
    def index_offset(self) -> int:
        return self.payload_offset + self.payload_bytes


class Tail(NamedTuple):
    """Contents of header, directory, identity and footer; ``checksum`` is the one in the commit."""

    version: int
    instance: str
    job_id: str
    partition: int
    attempt: int
    rows: int
    segments: list[SegmentEntry]
    checksum: int


# ---------------------------------------------------------------------- encoding
def encode_tail(
    segments: list[SegmentEntry], instance: str, job_id: str, partition: int, attempt: int, offset: int
) -> tuple[bytes, int]:
    """Return directory, identity and footer of an object whose segments end at ``offset``, and the checksum."""
    directory = b"".join(ENTRY.pack(*segment) for segment in segments)
    identity = _utf8(instance) + _utf8(job_id)
    rows = sum(segment.rows for segment in segments)
    fields = FOOTER.pack(offset, rows, len(segments), len(identity), partition, attempt, 0, MAGIC)[:_FOOTER_FIELDS]
    checksum = crc32(directory + identity + fields)
    return directory + identity + fields + SIZE.pack(checksum) + MAGIC, checksum


def _utf8(text: str) -> bytes:
    raw = text.encode()
    return _UTF8.pack(len(raw)) + raw


# ---------------------------------------------------------------------- decoding
def directory_start(tail: bytes, size: int, path: str) -> int:
    """Return the offset of the directory of an object with ``size`` bytes. Its footer is at the end of ``tail``.

    Raises:
        DamagedBatch: the footer is missing or has an impossible field.
    """
    if size < HEADER.size + FOOTER.size or len(tail) < FOOTER.size:
        raise corrupt(path, size, "an object of this size has no footer")
    offset, rows, segments, identity, _partition, _attempt, _crc, magic = FOOTER.unpack(tail[-FOOTER.size :])
    if magic != MAGIC:
        raise corrupt(path, size - 4, "it does not end as a batch does: it was cut off, or is not a batch")
    if rows > MAX_ROWS:
        raise corrupt(path, size - FOOTER.size + 8, f"{rows} rows claimed, at most {MAX_ROWS} are possible")
    directory = segments * ENTRY.size + identity + FOOTER.size
    if directory > MAX_DIRECTORY_BYTES or offset != size - directory or offset < HEADER.size:
        raise corrupt(path, size - FOOTER.size, f"a directory of {segments} segments can't be at byte {offset}")
    return int(offset)


def decode_tail(data: bytes, offset: int, path: str, version: int) -> Tail:
    """Decode directory, identity and footer: all of ``data``, which starts at ``offset`` of the object.

    Raises:
        DamagedBatch: a checksum does not match, or a field is impossible.
    """
    size = offset + len(data)
    _offset, rows, count, identity_bytes, partition, attempt, crc, _magic = FOOTER.unpack(data[-FOOTER.size :])
    if crc32(data[:-8]) != crc:
        raise corrupt(path, size - 8, "the checksum of the directory does not match")
    directory_bytes = count * ENTRY.size
    segments = [SegmentEntry(*fields) for fields in ENTRY.iter_unpack(data[:directory_bytes])]
    _check_segments(segments, offset, rows, path, version)
    identity = data[directory_bytes : directory_bytes + identity_bytes]
    instance, at = _read_utf8(identity, 0, offset, path)
    job_id, at = _read_utf8(identity, at, offset, path)
    if at != len(identity):
        raise corrupt(path, offset + directory_bytes + at, "bytes after the job id")
    return Tail(version, instance, job_id, partition, attempt, rows, segments, crc)


def _check_segments(segments: list[SegmentEntry], end: int, rows: int, path: str, version: int) -> None:
    at = HEADER.size
    for segment in segments:
        if segment.payload_offset != at:
            raise corrupt(path, end, f"a segment at byte {segment.payload_offset}, expected at {at}")
        # the index has a length and a checksum for each row, so at least two bytes
        index_bytes = segment.index_bytes if version == PLAIN_VERSION else MAX_INDEX_BYTES
        if not 0 < segment.rows <= index_bytes // 2 or not 0 < segment.blocks <= segment.rows:
            raise corrupt(path, end, f"{segment.rows} rows claimed in an index of {segment.index_bytes} bytes")
        if segment.index_bytes > MAX_INDEX_BYTES:
            raise corrupt(path, end, f"an index of {segment.index_bytes} bytes, at most {MAX_INDEX_BYTES} are possible")
        at = segment.index_offset + segment.index_bytes
    if at != end:
        raise corrupt(path, at, f"the segments end at byte {at} and the directory starts at {end}")
    if sum(segment.rows for segment in segments) != rows:
        raise corrupt(path, end, f"{rows} rows claimed, the segments have {sum(segment.rows for segment in segments)}")


def _read_utf8(data: bytes, at: int, offset: int, path: str) -> tuple[str, int]:
    try:
        (size,) = _UTF8.unpack_from(data, at)
        raw = data[at + 2 : at + 2 + size]
        if len(raw) == size:
            return raw.decode(), at + 2 + size
    except (struct.error, UnicodeDecodeError):
        pass
    raise corrupt(path, offset + at, "a name that can't be read")


def read_header(data: bytes, path: str) -> int:
    """Return the format version of an object from its first bytes.

    Raises:
        DamagedBatch: the object is not a batch.
        NewerFormat: a newer version of this package wrote it.
    """
    if len(data) < HEADER.size or data[:4] != MAGIC:
        raise corrupt(path, 0, "it does not begin as a batch does")
    _magic, version, reserved = HEADER.unpack(data[: HEADER.size])
    if version > VERSION:
        text = f"batch {path} has format version {version}, this broker knows {VERSION}: update the broker"
        raise NewerFormat(text, path=path)
    if version < PLAIN_VERSION or reserved:
        raise corrupt(path, 4, f"format version {version}, reserved {reserved}")
    return int(version)


def split_index(
    data: bytes, segment: SegmentEntry, path: str, version: int, limit: int = MAX_INDEX_BYTES
) -> list[bytes]:
    """Return the encoded blocks of a segment's index, which must have at most ``limit`` bytes.

    Raises:
        DamagedBatch: the index is damaged.
    """
    if len(data) != segment.index_bytes or crc32(data) != segment.index_crc:
        raise corrupt(path, segment.index_offset, "the checksum of an index does not match")
    if version != PLAIN_VERSION:
        data = contents(data, limit, path, segment.index_offset)
    blocks = []
    at = 0
    while at < len(data):
        if at + SIZE.size > len(data):
            raise corrupt(path, segment.index_offset + at, "an index that ends within a block")
        (size,) = SIZE.unpack_from(data, at)
        at += SIZE.size
        if size > len(data) - at:
            raise corrupt(path, segment.index_offset + at, f"a block of {size} bytes, {len(data) - at} are left")
        blocks.append(data[at : at + size])
        at += size
    if len(blocks) != segment.blocks:
        raise corrupt(path, segment.index_offset, f"{segment.blocks} blocks claimed, there are {len(blocks)}")
    return blocks


def contents(frame: bytes, limit: int, path: str, offset: int) -> bytes:
    """Return the contents of the frame at ``offset``; raise DamagedBatch if it is damaged, or larger than the limit."""
    try:
        return decompress(frame, limit)
    except FrameError as exc:
        raise corrupt(path, offset, str(exc)) from exc


def corrupt(path: str, offset: int, problem: str) -> DamagedBatch:
    return DamagedBatch(f"batch {path}: {problem} (byte {offset})", key=path.encode(), offset=offset, batch=path)


# ---------------------------------------------------------------------- names and URIs
def job_folder(job_id: str) -> str:
    """Return the name of a job's folder of batches: a digest, because a job id may be any text."""
    return hashlib.blake2b(job_id.encode(), digest_size=12).hexdigest()


def batch_path(job_id: str, partition: int, attempt: int, token: str) -> str:
    """Return the path of a batch; ``token`` is 16 hexadecimal digits, unique among attempts."""
    return f"{job_folder(job_id)}/{partition}-{attempt}-{token}.batch"


def bad_rows_path(job_id: str, partition: int, attempt: int, token: str) -> str:
    """Return the path of the rows of a partition that can't be sent, one a line as JSON."""
    return f"{job_folder(job_id)}/{partition}-{attempt}-{token}.bad"


def bad_rows_index(job_id: str, rows: int, batches: int, size: int, digest: str) -> str:
    """Return the path of the list of the paths of bad rows, of a job with these messages, batches, bytes and digest.

    The driver writes it before the commit. Another driver's list for the same job id, which was not committed, has
    another name, unless the jobs are alike.
    """
    token = hashlib.blake2b(f"{rows} {batches} {size} {digest}".encode(), digest_size=8).hexdigest()
    return f"{job_folder(job_id)}/{token}.bad"


def random_token() -> str:
    """Return the 16 hexadecimal digits that make the name of a new file unique."""
    return os.urandom(8).hex()


def batch_uri(path: str) -> str:
    return SCHEME + path


def with_token(uri: str, token: str) -> str:
    """Return the URI of a copy of a batch."""
    return f"{uri.rsplit('-', 1)[0]}-{token}.batch"


def parse_batch_uri(uri: str) -> str | None:
    """Return the path of a batch; None if the URI is not one of a batch."""
    match = _OBJECT.fullmatch(uri)
    return match[1] if match else None
