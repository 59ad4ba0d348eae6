"""Byte-by-byte check of SlateDB's sorted tables: every part of a file has a checksum, and the parts form the file.

==============  ==============================================================================
part            content
==============  ==============================================================================
blocks          contiguous rows from the file's start
filter          a Bloom filter; may be absent
index           FlatBuffer: start and first key of each block
stats           counts of rows; absent in WAL files
info            FlatBuffer: positions of filter, index and stats; first and last key
footer          start of info u64, version u16
==============  ==============================================================================

Each part but the footer ends with the CRC-32 (u32) of its other bytes. Integers are big endian. If the info names a
codec, blocks, filter, index and stats are compressed separately, before the checksum is added; with LZ4, the only codec
read here, the length of the plain bytes (u32, little endian) precedes them.

In versions 1 and 2 of the format, a block has rows, then the u16 offsets of its restart points and their u16 count.

===============  =============================================================================
field of a row   type
===============  =============================================================================
shared           varint, the number of bytes of the key that it shares with the previous key
unshared         varint, the number of other bytes of the key
value size       varint
key              the bytes that are not shared
value            bytes
sequence number  u64
flags            u8
expiry           i64, depending on the flags
creation         i64, depending on the flags
===============  =============================================================================

A FlatBuffer's table begins with an i32, the distance back to its vtable. The vtable contains its own size, the size of
the table, and the position of each field, all as u16; 0 means that a field is absent. Its integers are little endian.

Sources: SlateDB 0.17, ``format/sst.rs``, ``format/row_codec_v2.rs``; ``schemas/sst.fbs``. FlatBuffers' documentation,
"FlatBuffer Internals".
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lz4.block

_U16 = struct.Struct("<H")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
#: exceptions of reading a damaged FlatBuffer
DAMAGED = (struct.error, ValueError)
_FOOTER = struct.Struct(">QH")
_CRC = struct.Struct(">I")
_SEQ_FLAGS = struct.Struct(">QB")
_VERSIONS = (1, 2)
_HAS_EXPIRY, _HAS_CREATION = 2, 4
# fields of SsTableInfo, of the index, and of its blocks
_FIRST, _INDEX_AT, _INDEX_BYTES, _FILTER_AT, _FILTER_BYTES, _CODEC, _KIND, _LAST, _STATS_AT, _STATS_BYTES = range(10)
_PLAIN, _LZ4 = 0, 3
_LZ4_LARGEST_RATIO = 255
_BLOCKS = 0
_BLOCK_AT, _BLOCK_FIRST = range(2)


@dataclass(frozen=True, slots=True)
class Info:
    """Description of a table in its file, which the manifest repeats."""

    first_entry: bytes | None
    last_entry: bytes | None
    index_offset: int
    index_len: int
    filter_offset: int
    filter_len: int
    codec: int
    stats_offset: int
    stats_len: int


class TableFile:
    """Check of every byte of a table's file. The file is mapped, so the system can free the memory of checked parts.

    Attributes:
        damage: the errors, with their positions; empty if every byte is correct.
        lost: ranges of keys whose rows can't be read; an end of None means the table's last key.
        first_seq, last_seq: sequence numbers of the rows; 0 if there are no rows, or they were not examined.

    Raises:
        OSError: the file can't be read.
    """

    def __init__(self, path: Path, *, with_rows: bool = False) -> None:
        self.path = path
        self.size = path.stat().st_size
        self.info: Info | None = None
        self.damage: list[str] = []
        self.lost: list[tuple[bytes, bytes | None]] = []
        self.first_seq = self.last_seq = self.rows = 0
        self._with_rows = with_rows
        if self.size <= _FOOTER.size:  # an empty file can't be mapped
            self._all_lost(f"it has {self.size} bytes")
            return
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                self._check(data)
            except (*DAMAGED, lz4.block.LZ4BlockError) as exc:
                self._all_lost(f"its index does not decode ({exc})")

    def _all_lost(self, problem: str) -> None:
        self.damage.append(problem)
        self.lost = [(b"", None)]

    def _check(self, data: mmap.mmap) -> None:
        info_at, version = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
        if version not in _VERSIONS:
            self._all_lost(f"its footer (byte {len(data) - 2}) has version {version}")
            return
        end = len(data) - _FOOTER.size
        if info_at >= end or not _is_whole(data, info_at, end):
            self._all_lost(f"its info (bytes {info_at} to {end}) does not match its checksum")
            return
        info = self.info = parse_info(data[info_at : end - _CRC.size])
        blocks_end = self._check_parts(info, data, info_at)
        if not self.damage or _is_whole(data, info.index_offset, info.index_offset + info.index_len):
            self._check_blocks(info, data, blocks_end)
        else:
            self.lost = [(info.first_entry or b"", None)]

    def _check_parts(self, info: Info, data: mmap.mmap, info_at: int) -> int:
        """Check the parts after the blocks, which must follow each other without a gap; return their start."""
        parts = [
            ("filter", info.filter_offset, info.filter_len),
            ("index", info.index_offset, info.index_len),
            ("stats", info.stats_offset, info.stats_len),
        ]
        parts = sorted((part for part in parts if part[2]), key=lambda part: part[1])
        start = parts[0][1] if parts else info_at
        position = start
        for name, at, size in parts:
            if at != position:
                self.damage.append(f"its {name} begins at byte {at} instead of {position}")
            if not _is_whole(data, at, at + size):
                self.damage.append(f"its {name} (bytes {at} to {at + size}) does not match its checksum")
            position = at + size
        if position != info_at:
            self.damage.append(f"bytes {position} to {info_at} belong to no part")
        return start

    def _check_blocks(self, info: Info, data: mmap.mmap, end: int) -> None:
        index = FlatTable(_plain(info, data[info.index_offset : info.index_offset + info.index_len - _CRC.size]))
        blocks = [(block.u64(_BLOCK_AT), block.blob(_BLOCK_FIRST) or b"") for block in index.tables(_BLOCKS)]
        if end and (not blocks or blocks[0][0] != 0):
            self.damage.append(f"bytes 0 to {blocks[0][0] if blocks else end} belong to no block")
        for number, (at, first) in enumerate(blocks):
            following = blocks[number + 1] if number + 1 < len(blocks) else None
            until = following[0] if following else end
            if not _is_whole(data, at, until):
                self.damage.append(f"its block {number} (bytes {at} to {until}) does not match its checksum")
                self.lost.append((first, following[1] if following else None))
            elif self._with_rows:
                self._read_rows(_plain(info, data[at : until - _CRC.size]))

    def _read_rows(self, block: bytes) -> None:
        for seq in _sequences(block):
            self.first_seq = min(self.first_seq or seq, seq)
            self.last_seq = max(self.last_seq, seq)
            self.rows += 1


def parse_info(data: bytes) -> Info:
    """Decode the info of a table; raise ValueError or struct.error if it does not decode."""
    table = FlatTable(data)
    u64 = table.u64
    return Info(
        first_entry=table.blob(_FIRST),
        last_entry=table.blob(_LAST),
        index_offset=u64(_INDEX_AT),
        index_len=u64(_INDEX_BYTES),
        filter_offset=u64(_FILTER_AT),
        filter_len=u64(_FILTER_BYTES),
        codec=table.u8(_CODEC),
        stats_offset=u64(_STATS_AT),
        stats_len=u64(_STATS_BYTES),
    )


def _plain(info: Info, part: bytes) -> bytes:
    """Return a part without its checksum, decompressed."""
    if info.codec == _PLAIN:
        return part
    if info.codec != _LZ4:
        raise ValueError(f"codec {info.codec} is not known")
    size = int.from_bytes(part[:4], "little")
    if size > _LZ4_LARGEST_RATIO * len(part):  # its memory would be allocated before the decompression
        raise ValueError(f"{len(part)} bytes that are compressed can't be {size}")
    return bytes(lz4.block.decompress(part))


def _sequences(block: bytes) -> Iterator[int]:
    """Yield the sequence number of each row of a block."""
    (restarts,) = struct.unpack_from(">H", block, len(block) - 2)
    end = len(block) - 2 - 2 * restarts
    at = 0
    while at < end:
        _shared, at = _varint(block, at)
        unshared, at = _varint(block, at)
        value, at = _varint(block, at)
        at += unshared + value
        seq, flags = _SEQ_FLAGS.unpack_from(block, at)
        at += _SEQ_FLAGS.size + 8 * bool(flags & _HAS_EXPIRY) + 8 * bool(flags & _HAS_CREATION)
        yield seq


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data):
            raise ValueError("a number that extends beyond the end of its block")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _is_whole(data: mmap.mmap, start: int, end: int) -> bool:
    """Return True if the checksum at the end of a part is correct."""
    if not 0 <= start <= end - _CRC.size or end > len(data):
        return False
    (crc,) = _CRC.unpack_from(data, end - _CRC.size)
    with memoryview(data) as whole, whole[start : end - _CRC.size] as part:
        return bool(zlib.crc32(part) == crc)


# ---- FlatBuffers: tables, numbers, byte vectors and vectors of tables
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
