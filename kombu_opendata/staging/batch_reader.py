"""Reader of batch objects: validation for a commit, and blocks to route. Calls block: use threads in asyncio."""

from __future__ import annotations

from typing import NamedTuple, Protocol
from zlib import crc32

from ..errors import RequestError
from . import batch_format as fmt
from .batch_block import IndexBlock, decode_block
from .batch_format import SegmentEntry, Tail, job_folder, parse_batch_uri
from .folder import Folder
from .job import INLINE_BYTES, BatchInfo


class BatchSource(Protocol):
    """Source of batches. ``read`` is as :meth:`.Folder.read`."""

    def read(self, path: str, ranges: list[tuple[int, int]], /) -> list[bytes]: ...


def read_tail(folder: BatchSource, path: str, size: int) -> Tail:
    """Return the directory of an object of ``size`` bytes, after validating it and the header.

    Raises:
        DamagedBatch: the object is missing or damaged.
        NewerFormat: a newer version of this package wrote it.
        StoreError: the object can't be read now.
    """
    length = min(size, fmt.TAIL_BYTES)
    head, tail = folder.read(path, [(0, fmt.HEADER.size), (size - length, length)])
    version = fmt.read_header(head, path)
    start = fmt.directory_start(tail, size, path)
    if start < size - length:
        (tail,) = folder.read(path, [(start, size - start)])
    return fmt.decode_tail(tail[-(size - start) :], start, path, version)


def read_index(
    folder: BatchSource, path: str, segment: SegmentEntry, version: int, limit: int = fmt.MAX_INDEX_BYTES
) -> list[bytes]:
    """Return the encoded blocks of a segment's index. Errors are those of :func:`read_tail`."""
    (data,) = folder.read(path, [(segment.index_offset, segment.index_bytes)])
    return fmt.split_index(data, segment, path, version, limit)


def read_envelopes(folder: BatchSource, path: str, offset: int, block: IndexBlock) -> bytes:
    """Return the contiguous envelopes of a block whose segment begins at ``offset``. Errors are those of `read_tail`.

    Checksums of envelopes are not checked. Without a frame, missing bytes are zeros.
    """
    size, at = sum(block.lengths), offset + block.offset
    (data,) = folder.read(path, [(at, block.frame_bytes or size)])
    return contents_of(data, block, path, at) if block.frame_bytes else data.ljust(size, b"\0")


def contents_of(frame: bytes, block: IndexBlock, path: str, offset: int) -> bytes:
    """Return the contiguous envelopes in the frame of a block; raise DamagedBatch if the frame is not as described."""
    if crc32(frame) != block.frame_checksum:
        raise fmt.corrupt(path, offset, "the checksum of a frame does not match")
    size = sum(block.lengths)
    data = fmt.contents(frame, size, path, offset)
    if len(data) != size:
        raise fmt.corrupt(path, offset, f"a frame of {len(data)} bytes with envelopes of {size}")
    return data


def check_batch(folder: Folder, info: BatchInfo, instance: str, job_id: str) -> str:
    """Check that an object is the batch that the commit names; return its path. Errors are those of :func:`read_tail`.

    Raises:
        RequestError: the object is another batch.
    """
    path = path_of(info, job_id)
    size = folder.size(path)
    if size != info.bytes:
        raise fmt.corrupt(path, size, f"{info.bytes} bytes claimed, there are {size}")
    _check_same(read_tail(folder, path, size), info, instance, job_id)
    return path


def path_of(info: BatchInfo, job_id: str) -> str:
    """Return the path of a batch in the staged folder.

    Raises:
        RequestError: the URI is not that of a batch of this job.
    """
    path = parse_batch_uri(info.uri)
    if path is None or not path.startswith(f"{job_folder(job_id)}/"):
        text = f"{info.uri[:200]!r} is not a batch of job {job_id!r}: give what the job's writers returned"
        raise RequestError(text, uri=info.uri[:200])
    return path


def _check_same(tail: Tail, info: BatchInfo, instance: str, job_id: str) -> None:
    for name, actual, ours in (
        ("instance", tail.instance, instance), ("job id", tail.job_id, job_id), ("rows", tail.rows, info.rows),
        ("checksum", tail.checksum, info.checksum),
    ):  # fmt: skip
        if actual != ours:
            raise RequestError(f"batch {info.uri}: its {name} is {actual!r}, the commit has {ours!r}", uri=info.uri)


class _Inline:
    """Source that reads from the bytes in the commit."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, _path: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        return [self._data[offset : offset + length] for offset, length in ranges]


class InlineBlock(NamedTuple):
    """Block in the commit, and its contiguous envelopes."""

    encoded: bytes
    block: IndexBlock
    payload: bytes


def read_inline(
    info: BatchInfo, instance: str, job_id: str, max_message_bytes: int, room: int = INLINE_BYTES
) -> list[InlineBlock]:
    """Return the blocks of an inline batch. Errors are those of :func:`check_batch`.

    Raises:
        RequestError: the contents have more than ``room`` bytes.
    """
    path_of(info, job_id)
    path = info.uri
    if len(info.data) != info.bytes:
        raise fmt.corrupt(path, len(info.data), f"{info.bytes} bytes claimed, there are {len(info.data)}")
    folder = _Inline(info.data)
    tail = read_tail(folder, path, info.bytes)
    _check_same(tail, info, instance, job_id)
    blocks = []
    for segment in tail.segments:
        for encoded in read_index(folder, path, segment, tail.version, INLINE_BYTES):
            block = decode_block(encoded, path, segment.payload_bytes, max_message_bytes)
            room -= inline_bytes(encoded, block)
            if room < 0:
                raise RequestError(
                    f"job {job_id!r}: its messages are too large to be inline (the limit is {INLINE_BYTES} bytes): "
                    "write them as objects",
                    limit=INLINE_BYTES,
                )
            payload = read_envelopes(folder, path, segment.payload_offset, block)
            if (row := next(block.damaged_rows(payload), None)) is not None:
                raise fmt.corrupt(path, sum(block.lengths[:row]), "an envelope whose checksum does not match")
            blocks.append(InlineBlock(encoded, block, payload))
    if sum(inline.block.rows for inline in blocks) != tail.rows:
        raise fmt.corrupt(path, 0, f"{tail.rows} rows claimed, the blocks have another number")
    return blocks


def inline_bytes(encoded: bytes, block: IndexBlock) -> int:
    """Return the bytes of a block that count for the limit of inline batches: of its columns and envelopes."""
    return fmt.SIZE.size + len(encoded) + sum(block.lengths)
