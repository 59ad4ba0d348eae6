"""The bytes of a batch object: envelopes first, an index of columns after each few thousand of them, a directory last.

==============  ===================================================================================================
part            content
==============  ===================================================================================================
header          magic ``ODQB``, version u16 (1), reserved u16 (0)
segment, each   payload: the envelopes, back to back; then its index: blocks, back to back
directory       an entry for each segment
identity        instance ``Utf8``, job id ``Utf8``
footer          see below; the object's last 40 bytes
==============  ===================================================================================================

=================  =======  ==================================================================================
index block        type
=================  =======  ==================================================================================
size               u32      bytes of the columns
columns            msgpack  an array: see :class:`Block`
=================  =======  ==================================================================================

=================  =======  ==================================================================================
directory entry    type     (32 bytes)
=================  =======  ==================================================================================
payload offset     u64      in the object; the index follows the payload, the next segment the index
payload bytes      u64
index bytes        u32
index CRC-32       u32
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

Integers are little endian. The footer's checksum covers the directory, that the checksums of the indexes, and those the
CRC-32 of each envelope; so what the commit was told of a batch covers every byte. The format is ours. A reader
checks each field before it relies on it: anybody who may write to the store's folder may have made the object.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from ..errors import CorruptRecord, InvalidMessage, NewerFormat

MAGIC = b"ODQB"
VERSION = 1
HEADER = struct.Struct("<4sHH")
ENTRY = struct.Struct("<QQIIII")
FOOTER = struct.Struct("<QQIIIII4s")
SIZE = struct.Struct("<I")
_UTF8 = struct.Struct("<H")

#: rows of a block; what is routed in one go
BLOCK_ROWS = 256
#: a segment ends after so many bytes of payload or rows
SEGMENT_BYTES = 4 << 20
SEGMENT_ROWS = 8192
#: a block of more bytes is cut in two, if it has several rows
BLOCK_BYTES = 1 << 20
#: what a reader takes: a row has up to 255 headers of two texts of up to 65,535 bytes
MAX_INDEX_BYTES = 64 << 20
MAX_DIRECTORY_BYTES = 32 << 20
MAX_ROWS = 1 << 31
MAX_HEADERS = 255
MAX_TEXT_BYTES = 0xFFFF
#: most of a batch's end is in so many bytes
TAIL_BYTES = 64 << 10

_FOOTER_FIELDS = FOOTER.size - 8  # what its checksum covers
_SURELY_FITS = MAX_TEXT_BYTES // 4
_MAX_MS = 1 << 53

HEADER_BYTES = HEADER.pack(MAGIC, VERSION, 0)


class Block(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """The columns of some rows. What is one value counts for each row.

    Attributes:
        offset: of the first envelope, bytes from the segment's start.
        lengths: of the envelopes, which lie back to back.
        checksums: their CRC-32s.
        priority: Kombu's, 0 to 255.
        created_at_ms, visible_at_ms: ms since the epoch; visible 0 is at once.
        ttl_ms: -1 is none.
        constants: metadata headers that all rows have.
        columns: the other metadata headers; None where a row does not have it.
    """

    offset: int
    lengths: list[int]
    checksums: list[int]
    exchange: str | list[str]
    routing_key: str | list[str]
    priority: int | list[int]
    created_at_ms: int | list[int]
    visible_at_ms: int | list[int]
    ttl_ms: int | list[int]
    constants: dict[str, str]
    columns: dict[str, list[str | None]]

    @property
    def rows(self) -> int:
        """How many messages."""
        return len(self.lengths)

    def headers_of(self, row: int) -> dict[str, str]:
        """The metadata headers of one row."""
        own = ((name, column[row]) for name, column in self.columns.items())
        return {**self.constants, **{name: text for name, text in own if text is not None}}


class Segment(NamedTuple):
    """A directory entry."""

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
    """What the end of an object says of it; ``checksum`` is what the commit is told."""

    instance: str
    job_id: str
    partition: int
    attempt: int
    rows: int
    segments: list[Segment]
    checksum: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Block)


# ---------------------------------------------------------------------- encoding
def encode_block(block: Block) -> bytes:
    """The columns as msgpack, without the size in front.

    Raises:
        InvalidMessage: a text that has no UTF-8 form.
    """
    try:
        return _encoder.encode(block)
    except (UnicodeEncodeError, TypeError, ValueError, OverflowError) as exc:
        raise InvalidMessage(f"a header, exchange or routing key can't be encoded: {exc}") from exc


def encode_tail(
    segments: list[Segment], instance: str, job_id: str, partition: int, attempt: int, offset: int
) -> tuple[bytes, int]:
    """Directory, identity and footer of an object whose segments end at ``offset``; and the checksum."""
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
    """Where the directory of an object of ``size`` bytes starts, by its footer at the end of ``tail``.

    Raises:
        CorruptRecord: there is no such place.
        NewerFormat: never here; the version is in the header.
    """
    if size < HEADER.size + FOOTER.size or len(tail) < FOOTER.size:
        raise corrupt(path, size, "an object of that size holds no footer")
    offset, rows, segments, identity, _partition, _attempt, _crc, magic = FOOTER.unpack(tail[-FOOTER.size :])
    if magic != MAGIC:
        raise corrupt(path, size - 4, "it does not end as a batch does: it was cut off, or is none")
    if rows > MAX_ROWS:
        raise corrupt(path, size - FOOTER.size + 8, f"{rows} rows claimed, at most {MAX_ROWS} are possible")
    directory = segments * ENTRY.size + identity + FOOTER.size
    if directory > MAX_DIRECTORY_BYTES or offset != size - directory or offset < HEADER.size:
        raise corrupt(path, size - FOOTER.size, f"a directory of {segments} segments is not at byte {offset}")
    return int(offset)


def decode_tail(data: bytes, offset: int, path: str) -> Tail:
    """Directory, identity and footer, which are all of ``data``; they start at ``offset`` of the object.

    Raises:
        CorruptRecord: a field that can't be.
    """
    size = offset + len(data)
    _offset, rows, count, identity_bytes, partition, attempt, crc, _magic = FOOTER.unpack(data[-FOOTER.size :])
    if crc32(data[:-8]) != crc:
        raise corrupt(path, size - 8, "the checksum of the directory does not match")
    directory_bytes = count * ENTRY.size
    segments = [Segment(*fields) for fields in ENTRY.iter_unpack(data[:directory_bytes])]
    _check_segments(segments, offset, rows, path)
    identity = data[directory_bytes : directory_bytes + identity_bytes]
    instance, at = _read_utf8(identity, 0, offset, path)
    job_id, at = _read_utf8(identity, at, offset, path)
    if at != len(identity):
        raise corrupt(path, offset + directory_bytes + at, "bytes after the job id")
    return Tail(instance, job_id, partition, attempt, rows, segments, crc)


def _check_segments(segments: list[Segment], end: int, rows: int, path: str) -> None:
    at = HEADER.size
    for segment in segments:
        if segment.payload_offset != at:
            raise corrupt(path, end, f"a segment at byte {segment.payload_offset}, expected at {at}")
        # a row has a length and a checksum in the index, so it can't have less than two bytes there
        if not 0 < segment.rows <= segment.index_bytes // 2 or not 0 < segment.blocks <= segment.rows:
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


def check_header(data: bytes, path: str) -> None:
    """The first bytes of an object.

    Raises:
        CorruptRecord: it is no batch.
        NewerFormat: a newer version wrote it.
    """
    if len(data) < HEADER.size or data[:4] != MAGIC:
        raise corrupt(path, 0, "it does not begin as a batch does")
    _magic, version, reserved = HEADER.unpack(data[: HEADER.size])
    if version > VERSION:
        raise NewerFormat(
            f"batch {path} has format version {version}, this broker knows {VERSION}: update the broker", path=path
        )
    if version != VERSION or reserved:
        raise corrupt(path, 4, f"format version {version}, reserved {reserved}")


def split_index(data: bytes, segment: Segment, path: str) -> list[bytes]:
    """The encoded blocks of a segment's index.

    Raises:
        CorruptRecord: it is damaged.
    """
    if len(data) != segment.index_bytes or crc32(data) != segment.index_crc:
        raise corrupt(path, segment.index_offset, "the checksum of an index does not match")
    blocks = []
    at = 0
    while at < len(data):
        if at + SIZE.size > len(data):
            raise corrupt(path, segment.index_offset + at, "an index that ends within a block")
        (size,) = SIZE.unpack_from(data, at)
        at += SIZE.size
        if size > len(data) - at:
            raise corrupt(path, segment.index_offset + at, f"a block of {size} bytes where {len(data) - at} are left")
        blocks.append(data[at : at + size])
        at += size
    if len(blocks) != segment.blocks:
        raise corrupt(path, segment.index_offset, f"{segment.blocks} blocks claimed, there are {len(blocks)}")
    return blocks


def decode_block(data: bytes, path: str, payload_bytes: int, max_message_bytes: int) -> Block:
    """One block of an index.

    Args:
        payload_bytes: of its segment; no envelope may end after them.

    Raises:
        CorruptRecord: a field that can't be.
    """
    try:
        block = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise corrupt(path, 0, f"an index block does not decode ({exc})") from exc
    rows = block.rows
    if len(data) > BLOCK_BYTES and rows > 1:
        raise corrupt(path, 0, f"a block of {len(data)} bytes with {rows} rows")
    if not 0 < rows <= BLOCK_ROWS or len(block.checksums) != rows:
        raise corrupt(path, 0, f"a block of {rows} rows with {len(block.checksums)} checksums")
    if min(block.lengths) < 0 or max(block.lengths) > max_message_bytes:
        raise corrupt(path, 0, f"an envelope of {max(block.lengths)} bytes; the limit is {max_message_bytes}")
    if block.offset < 0 or block.offset + sum(block.lengths) > payload_bytes:
        raise corrupt(path, 0, f"an envelope that ends after the segment's {payload_bytes} bytes")
    if min(block.checksums) < 0 or max(block.checksums) > 0xFFFF_FFFF:
        raise corrupt(path, 0, "a checksum out of range")
    _check_numbers(block, path)
    _check_texts(block, path)
    return block


def _check_numbers(block: Block, path: str) -> None:
    for name, value, low, high in (
        ("priority", block.priority, 0, 255),
        ("created_at_ms", block.created_at_ms, -1, _MAX_MS),
        ("visible_at_ms", block.visible_at_ms, -1, _MAX_MS),
        ("ttl_ms", block.ttl_ms, -1, _MAX_MS),
    ):
        if isinstance(value, int):
            value = [value]
        elif len(value) != block.rows:
            raise corrupt(path, 0, f"{len(value)} values of {name} for {block.rows} rows")
        if min(value) < low or max(value) > high:
            raise corrupt(path, 0, f"a {name} that is not within {low} and {high}")


def _check_texts(block: Block, path: str) -> None:
    names = len(block.constants) + len(block.columns)
    if names > MAX_HEADERS or block.constants.keys() & block.columns.keys():
        raise corrupt(path, 0, f"{names} headers, at most {MAX_HEADERS} different ones are possible")
    texts = (*block.constants, *block.constants.values(), *block.columns)
    if not _all_fit(texts):
        raise corrupt(path, 0, f"a header of over {MAX_TEXT_BYTES} bytes")
    for value in (block.exchange, block.routing_key):
        if isinstance(value, str):
            value = [value]
        elif len(value) != block.rows:
            raise corrupt(path, 0, f"{len(value)} exchanges or routing keys for {block.rows} rows")
        if not _all_fit(value):
            raise corrupt(path, 0, f"an exchange or a routing key of over {MAX_TEXT_BYTES} bytes")
    for name, column in block.columns.items():
        if len(column) != block.rows:
            raise corrupt(path, 0, f"{len(column)} values of header {name[:80]!r} for {block.rows} rows")
        if not _all_fit([text for text in column if text is not None]):
            raise corrupt(path, 0, f"a header of over {MAX_TEXT_BYTES} bytes")


def _all_fit(texts: object) -> bool:
    """Whether each text is short enough for a record."""
    sized: list[str] = list(texts)  # type: ignore[call-overload]
    if max(map(len, sized), default=0) <= _SURELY_FITS:
        return True
    return all(len(text.encode()) <= MAX_TEXT_BYTES for text in sized)


def cut(block: Block, start: int, rows: int) -> Block:
    """The columns of some of a block's rows."""
    part = slice(start, start + rows)

    def column(value: Any) -> Any:
        return value[part] if isinstance(value, list) else value

    return Block(
        block.offset + sum(block.lengths[:start]),
        block.lengths[part],
        block.checksums[part],
        column(block.exchange),
        column(block.routing_key),
        column(block.priority),
        column(block.created_at_ms),
        column(block.visible_at_ms),
        column(block.ttl_ms),
        block.constants,
        {name: values[part] for name, values in block.columns.items()},
    )


def corrupt(path: str, offset: int, what: str) -> CorruptRecord:
    """The error for an object that does not decode."""
    return CorruptRecord(f"batch {path}: {what} (byte {offset})", key=path.encode(), offset=offset)
