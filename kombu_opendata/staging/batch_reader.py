"""Reads batch objects: what a commit checks, and blocks to route. Calls block: use threads in asyncio."""

from __future__ import annotations

from typing import NamedTuple, Protocol
from zlib import crc32

from ..errors import RequestError
from . import batch_format as fmt
from .batch_block import IndexBlock, decode_block
from .batch_format import SegmentEntry, Tail
from .batch_uri import job_folder, parse_batch_uri
from .folder import Folder
from .job import BatchInfo


class BatchSource(Protocol):
    """What batches are read from. ``read`` is as :meth:`.Folder.read`."""

    def read(self, path: str, ranges: list[tuple[int, int]], /) -> list[bytes]: ...


def read_tail(folder: BatchSource, path: str, size: int) -> Tail:
    """The directory of an object of ``size`` bytes; checks it and the header.

    Raises:
        DamagedBatch: the object is missing or damaged.
        NewerFormat: a newer version of this package wrote it.
        StoreError: the object can't be read now.
    """
    length = min(size, fmt.TAIL_BYTES)
    head, tail = folder.read(path, [(0, fmt.HEADER.size), (size - length, length)])
    fmt.check_header(head, path)
    start = fmt.directory_start(tail, size, path)
    if start < size - length:
        (tail,) = folder.read(path, [(start, size - start)])
    return fmt.decode_tail(tail[-(size - start) :], start, path)


def read_index(folder: BatchSource, path: str, segment: SegmentEntry) -> list[bytes]:
    """The encoded blocks of a segment's index; raises as :func:`read_tail`."""
    (data,) = folder.read(path, [(segment.index_offset, segment.index_bytes)])
    return fmt.split_index(data, segment, path)


def check_batch(folder: Folder, info: BatchInfo, instance: str, job_id: str) -> str:
    """Check that an object is the batch that the commit names; returns its path.

    Raises:
        RequestError: it is another batch.
        DamagedBatch, NewerFormat, StoreError: as :func:`read_tail`.
    """
    path = path_of(info, job_id)
    size = folder.size(path)
    if size != info.bytes:
        raise fmt.corrupt(path, size, f"{info.bytes} bytes claimed, there are {size}")
    _check_same(read_tail(folder, path, size), info, instance, job_id)
    return path


def path_of(info: BatchInfo, job_id: str) -> str:
    """The path of a batch in the staged folder.

    Raises:
        RequestError: the URI is not one of a batch of this job.
    """
    path = parse_batch_uri(info.uri)
    if path is None or not path.startswith(f"{job_folder(job_id)}/"):
        raise RequestError(
            f"{info.uri[:200]!r} is not a batch of job {job_id!r}: give what the job's writers returned",
            uri=info.uri[:200],
        )
    return path


def _check_same(tail: Tail, info: BatchInfo, instance: str, job_id: str) -> None:
    for what, theirs, ours in (
        ("instance", tail.instance, instance),
        ("job id", tail.job_id, job_id),
        ("rows", tail.rows, info.rows),
        ("checksum", tail.checksum, info.checksum),
    ):
        if theirs != ours:
            raise RequestError(f"batch {info.uri}: its {what} is {theirs!r}, the commit says {ours!r}", uri=info.uri)


class _Inline:
    """Reads from the bytes that came with the commit."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, _path: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        return [self._data[offset : offset + length] for offset, length in ranges]


class InlineBlock(NamedTuple):
    """A block that came with the commit, and its envelopes back to back."""

    encoded: bytes
    block: IndexBlock
    payload: bytes


def read_inline(info: BatchInfo, instance: str, job_id: str, max_message_bytes: int) -> list[InlineBlock]:
    """The blocks of a batch that came with the commit.

    Raises:
        RequestError, DamagedBatch, NewerFormat: the batch is another one than the commit says, or damaged.
    """
    path_of(info, job_id)
    path = info.uri
    if len(info.data) != info.bytes:
        raise fmt.corrupt(path, len(info.data), f"{info.bytes} bytes claimed, there are {len(info.data)}")
    folder = _Inline(info.data)
    tail = read_tail(folder, path, info.bytes)
    _check_same(tail, info, instance, job_id)
    found = []
    for segment in tail.segments:
        for encoded in read_index(folder, path, segment):
            block = decode_block(encoded, path, segment.payload_bytes, max_message_bytes)
            at = segment.payload_offset + block.offset
            payload = info.data[at : at + sum(block.lengths)]
            _check_payload(block, payload, path)
            found.append(InlineBlock(encoded, block, payload))
    if sum(inline.block.rows for inline in found) != tail.rows:
        raise fmt.corrupt(path, 0, f"{tail.rows} rows claimed, the blocks have another number")
    return found


def _check_payload(block: IndexBlock, payload: bytes, path: str) -> None:
    at = 0
    for length, checksum in zip(block.lengths, block.checksums, strict=True):
        if crc32(payload[at : at + length]) != checksum:
            raise fmt.corrupt(path, at, "an envelope whose checksum does not match")
        at += length
