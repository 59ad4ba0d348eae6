"""Effects of staged jobs: their commit, and the routing of their rows (docs/rfcs/0008-staged-batches.md).

The rows of a piece of a job are columns, as in the batch object; they become entries of queues and records of messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import Any, ClassVar

import msgspec

from ...staging.batch_block import IndexBlock
from ..records import field_types, metadata
from ..records.payload import MAX_INLINE_BYTES, NewMessage
from ..state.history_log import HeaderColumns
from ..state.queue_buckets import MAX_DEADLINE_MS, TTL_HEADER, is_exact, retention_of
from ..state.staged_state import NO_OPTIONS, JobOptions, StagedBatch
from ..state.store_state import StoreState
from . import Effect
from .publishes import add_message, partition_buckets

_decoder = msgspec.msgpack.Decoder(IndexBlock)
_URI = b"\x02"


class StagedChunk(msgspec.Struct, array_like=True, gc=False):
    """Some rows of a staged job, all of one batch.

    Attributes:
        first_id: the message id of the first row.
        at_ms: the time of routing.
        received_at_ms: the time of the job's commit, which counts as the time of receipt.
        path: the batch object; empty if the batch is inline.
        offset: the offset in the object of the frame with the envelopes, or of the first one if there is no frame.
        rows: the number of rows.
        block: the rows' columns: :class:`kombu_opendata.staging.batch_block.IndexBlock`; empty if they are damaged.
        payload: the envelopes of an inline batch; else empty.
    """

    job_id: str
    first_id: int
    at_ms: int
    received_at_ms: int
    path: str
    offset: int
    rows: int
    block: bytes
    payload: bytes


def decode(chunk: StagedChunk) -> IndexBlock:
    """Decode the chunk's block, which was checked before it became part of the chunk."""
    return _decoder.decode(chunk.block)


def each(value: Any) -> Iterable[Any]:
    """Return the value of each row; a single value for all rows is repeated without end."""
    return value if isinstance(value, list) else repeat(value)


def records_of(chunk: StagedChunk, block: IndexBlock, runs: list[int]) -> Iterator[NewMessage]:
    """Yield the records of the chunk's rows, except those without a queue.

    Raises:
        InvalidMessage: a header that no record can contain; checked blocks have none.
    """
    created, visible, ttls = map(each, (block.created_at_ms, block.visible_at_ms, block.ttl_ms))
    constants = metadata.encode_pairs(block.constants.items())
    columns = [_pairs(name, column) for name, column in block.columns.items()]
    fixed = len(block.constants)
    varying = zip(*columns, strict=True) if columns else repeat(())
    received = chunk.received_at_ms
    encode = metadata.encode_with
    join = b"".join
    id = chunk.first_id - 1
    for target, created_at, visible_at, ttl, texts, place in zip(
        spread(runs), created, visible, ttls, varying, _places(chunk, block), strict=False
    ):
        id += 1
        if target < 0:
            continue
        retention = retention_of(ttl)
        count = fixed + len(texts) - texts.count(b"")
        pairs = constants + join(texts)
        if not is_exact(ttl):
            if count < metadata.MAX_HEADERS:
                pairs += metadata.encode_pairs([(TTL_HEADER, str(ttl))])
                count += 1
            else:  # there is no room for another header
                retention = max(ttl // 1000, 1)
        created_at = created_at if created_at > 0 else received
        value = encode(id, created_at, received, max(visible_at, received), retention, count, pairs)
        yield NewMessage(id, value, *place)


def _places(chunk: StagedChunk, block: IndexBlock) -> Iterator[tuple[bytes, bytes]]:
    """Yield the payload record and the envelope of each row, one of which is empty."""
    if not chunk.path:
        at = 0
        for length in block.lengths:
            yield b"", chunk.payload[at : at + length]
            at += length
        return
    is_framed = bool(block.frame_bytes)
    start = f"batch:{chunk.path}:{chunk.offset}:{block.frame_bytes}:" if is_framed else f"batch:{chunk.path}:"
    pack = field_types.COUNT.pack
    at = block.start if is_framed else chunk.offset
    for length, checksum in zip(block.lengths, block.checksums, strict=True):
        uri = f"{start}{at}:{length}:{checksum:08x}".encode()
        yield _URI + pack(len(uri)) + uri, b""
        at += length


def _pairs(name: str, column: list[str | None]) -> list[bytes]:
    """Encode a column of headers; empty for a row without the header."""
    key, pack = field_types.utf8(name), field_types.COUNT.pack
    return [b"" if text is None else key + pack(len(raw := text.encode())) + raw for text in column]


def spread(runs: list[int]) -> Iterator[int]:
    """Yield each value of a flat list value, count, value, count, … as often as its count."""
    return chain.from_iterable(map(repeat, runs[::2], runs[1::2]))


class CommitStagedEffect(Effect, tag=48):
    """The messages of a job's batches were created, with the ids from ``first_id`` on; none is routed yet."""

    job_id: str
    at_ms: int
    first_id: int
    batches: list[StagedBatch]
    options: ClassVar[JobOptions] = NO_OPTIONS

    def apply(self, state: StoreState) -> None:
        job = state.staged.commit(self.job_id, self.at_ms, self.first_id, self.batches, self.options)
        state.next_id = max(state.next_id, self.first_id + job.rows)


class CommitStagedJobEffect(CommitStagedEffect, tag=48):
    """A commit with options."""

    options: JobOptions = NO_OPTIONS  # type: ignore[misc]  # a field of the longer form


class CancelJobEffect(Effect, tag=76):
    """A job was cancelled, and its rows that were not routed are dropped."""

    job_id: str
    at_ms: int

    def apply(self, state: StoreState) -> None:
        state.staged.cancel(self.job_id, self.at_ms)


class DeleteJobEffect(Effect, tag=77):
    """The record of an ended job is deleted. In a replay, it may have ended at another time, if an effect has none."""

    job_id: str
    settled_at_ms: int

    def apply(self, state: StoreState) -> None:
        state.staged.forget(self.job_id, state.staged.existing(self.job_id).settled_at_ms)


class CompleteJobEffect(Effect, tag=78):
    """A job's message on completion was published in the same commit, or can't be published."""

    job_id: str
    at_ms: int

    def apply(self, state: StoreState) -> None:
        state.staged.complete(self.job_id, self.at_ms)


class RouteStagedEffect(StagedChunk, Effect, tag=49):
    """Rows of a job were added to queues: the fields of a chunk, and the routes.

    It contains the rows' block of the index, as in the batch object, so applying it needs no object.

    Attributes:
        targets: lists of queues.
        runs: flat list target, rows, target, rows, …; target -1 for rows without a queue.
        places: queue → flat list bucket, rows, bucket, rows, …
    """

    targets: list[list[str]]
    runs: list[int]
    places: dict[str, list[int]]

    @classmethod
    def of(
        cls, chunk: StagedChunk, targets: list[list[str]], runs: list[int], places: dict[str, list[int]]
    ) -> RouteStagedEffect:
        """Build the effect for a chunk's rows."""
        fields: list[Any] = [*msgspec.structs.astuple(chunk), targets, runs, places]
        return cls(*fields)

    def active_buckets(self) -> Iterable[tuple[str, int]]:
        return partition_buckets((name, bucket) for name, runs in self.places.items() for bucket in runs[::2])

    def apply(self, state: StoreState) -> None:
        self.apply_block(state, decode(self) if self.block else None)

    def apply_block(self, state: StoreState, block: IndexBlock | None) -> None:
        """Apply the effect with its decoded block; None if the block's rows are damaged."""
        id = self.first_id
        unroutable = 0
        received = self.received_at_ms
        is_inline, targets = bool(self.payload), self.targets
        numbers = {name: spread(buckets) for name, buckets in self.places.items()}
        rows = _rows(self, block) if block is not None else ()
        headers = _headers(id, block) if block is not None and state.history is not None else None
        for row, target in zip(rows, spread(self.runs), strict=block is not None):
            if target < 0:
                unroutable += 1
            else:
                places = [(name, next(numbers[name])) for name in targets[target]]
                priority, visible, deadline, size = row
                large = is_inline and size > MAX_INLINE_BYTES
                values = priority, visible, deadline, received
                add_message(state, id, places, *values, large=large, size=size, headers=headers)
            id += 1
        job = state.staged.jobs[self.job_id]
        for target, count in zip(self.runs[::2], self.runs[1::2], strict=True):
            if target >= 0:
                job.tasks += (len(targets[target]) - 1) * count
                for name in targets[target]:
                    job.add_routed(name, count)
        damaged = block is None
        state.staged.routed(self.job_id, self.rows, self.rows if damaged else unroutable, damaged, self.at_ms)

    def new_messages(self) -> Iterable[NewMessage]:
        return records_of(self, decode(self), self.runs) if self.block else ()


class FollowStagedEffect(Effect, tag=79):
    """A message that was published in the same commit follows another message of a task of a job."""

    id: int
    predecessor: int
    queues: list[str]

    def apply(self, state: StoreState) -> None:
        state.staged.follow(self.id, self.predecessor, self.queues)


def _headers(first_id: int, block: IndexBlock) -> HeaderColumns:
    """Return the metadata headers of a block's messages, as :func:`records_of` stores them."""
    columns: dict[str, list[str | None]] = block.columns
    ttls = block.ttl_ms if isinstance(block.ttl_ms, list) else [block.ttl_ms] * block.rows
    if not all(map(is_exact, ttls)):
        own = columns.get(TTL_HEADER, [block.constants.get(TTL_HEADER)] * block.rows)
        columns = columns | {
            TTL_HEADER: [old if is_exact(ttl) else str(ttl) for ttl, old in zip(ttls, own, strict=True)]
        }
    return HeaderColumns(first_id, block.rows, block.constants, columns)


def _rows(chunk: StagedChunk, block: IndexBlock) -> Iterator[tuple[int, int, int, int]]:
    """Yield the stored priority (lower first), visible time, deadline and size of each row."""
    received = chunk.received_at_ms
    priorities, visible, ttls = map(each, (block.priority, block.visible_at_ms, block.ttl_ms))
    for priority, visible_at, ttl, length in zip(priorities, visible, ttls, block.lengths, strict=False):
        deadline = min(received + ttl, MAX_DEADLINE_MS) if ttl >= 0 else 0
        yield 255 - priority, visible_at if visible_at > received else received, deadline, length
