"""Rows of a staged job on their way into queues: what the journal says of them, and the records that they become.

The effect STAGED_ROUTE says all that routing some rows changed, with every choice made, and holds the block of the
index that the rows are in, as it is in the batch object. So replaying it needs no object.

==================  ================================================================================================
field               meaning
==================  ================================================================================================
job id, first id    whose rows; the id of the first of them
at, received        ms since the epoch: now; the job's commit, which is when the messages were received
path, offset        the batch object, and where in it the block's first envelope is; no path: inline
skip, rows          the rows of the block that are meant
block               the columns, as :class:`kombu_opendata.staging.format.Block`; empty for rows that are damaged
payload             of an inline batch, the envelopes of the whole block; else empty
targets             lists of queues
runs                flat list target, rows, target, rows, …; -1 for rows that no queue takes
places              queue → flat list bucket, rows, bucket, rows, …
==================  ================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from ..staging.format import Block
from .limits import MAX_DEADLINE_MS
from .records import metadata, types

_decoder = msgspec.msgpack.Decoder(Block)
_URI = b"\x02"
_MAX_RETENTION_SECONDS = 0xFFFF_FFFF


class Chunk(NamedTuple):
    """The fields of the effect up to the block and its payload; the rest is what routing decided."""

    job_id: str
    first_id: int
    at: int
    received_at: int
    path: str
    offset: int
    skip: int
    rows: int
    block: bytes
    payload: bytes


class Row(NamedTuple):
    """What a queue must know of a message."""

    priority: int  # the stored one, lower first
    visible_at: int
    deadline: int
    size: int


class Record(NamedTuple):
    """What the store must know of a message: its metadata, and where the payload is or the payload."""

    id: int
    metadata: bytes
    uri: bytes  # the payload record; empty if the envelope is here
    envelope: bytes


def decode(chunk: Chunk) -> Block:
    """The chunk's block, which was checked before it came to be in a chunk."""
    return _decoder.decode(chunk.block)


def rows_of(chunk: Chunk, block: Block) -> list[Row]:
    """The chunk's rows, in order."""
    received = chunk.received_at
    rows = range(chunk.skip, chunk.skip + chunk.rows)
    priorities, visible, ttls = (_column(v) for v in (block.priority, block.visible_at_ms, block.ttl_ms))
    lengths = block.lengths
    return [
        Row(
            255 - priorities(row), max(visible(row), received), _deadline(received, ttls(row)), lengths[row]
        )
        for row in rows
    ]  # fmt: skip


def _deadline(received: int, ttl_ms: int) -> int:
    return min(received + ttl_ms, MAX_DEADLINE_MS) if ttl_ms >= 0 else 0


def _column(value: Any) -> Any:
    """The value of a row."""
    return value.__getitem__ if isinstance(value, list) else lambda _row: value


def records_of(chunk: Chunk, block: Block, runs: list[int]) -> Iterator[Record]:
    """The records of the chunk's rows, but for those that no queue takes.

    Raises:
        InvalidMessage: a header that no record can hold; checked blocks have none.
    """
    taken = [target >= 0 for target, count in zip(runs[::2], runs[1::2], strict=True) for _ in range(count)]
    created, visible, ttls = (_column(v) for v in (block.created_at_ms, block.visible_at_ms, block.ttl_ms))
    constants = metadata.encode_pairs(block.constants.items())
    columns = [_pairs(name, column) for name, column in block.columns.items()]
    fixed, received = len(block.constants), chunk.received_at
    offsets = list(accumulate(block.lengths, initial=0))
    start = f"batch:{chunk.path}:"
    encode = metadata.encode_with
    for number, is_taken in enumerate(taken):
        if not is_taken:
            continue
        row, id = chunk.skip + number, chunk.first_id + number
        varying = [column[row] for column in columns]
        count = fixed + len(columns) - varying.count(b"")
        ttl = ttls(row)
        retention = 0 if ttl < 0 else max(1, min(-(-ttl // 1000), _MAX_RETENTION_SECONDS))
        created_at = created(row)
        value = encode(
            id, created_at if created_at > 0 else received, received, max(visible(row), received), retention, count,
            constants + b"".join(varying),
        )  # fmt: skip
        offset, length = offsets[row], block.lengths[row]
        if chunk.path:
            uri = f"{start}{chunk.offset + offset}:{length}:{block.checksums[row]:08x}".encode()
            yield Record(id, value, _URI + types.COUNT.pack(len(uri)) + uri, b"")
        else:
            yield Record(id, value, b"", chunk.payload[offset : offset + length])


def _pairs(name: str, column: list[str | None]) -> list[bytes]:
    """A column of headers, encoded; empty where a row does not have it."""
    key, pack = types.utf8(name), types.COUNT.pack
    return [b"" if text is None else key + pack(len(raw := text.encode())) + raw for text in column]


class PlaceRuns(dict[str, list[int]]):
    """Queue → flat list bucket, rows, …, as it grows row by row."""

    def add(self, queue: str, bucket: int) -> None:
        """One more row of a queue is in this bucket."""
        runs = self.get(queue)
        if runs is None:
            self[queue] = [bucket, 1]
        elif runs[-2] == bucket:
            runs[-1] += 1
        else:
            runs += bucket, 1


def spread(runs: list[int]) -> Iterator[int]:
    """The first of each pair of a flat list, as often as the second says."""
    for value, count in zip(runs[::2], runs[1::2], strict=True):
        for _ in range(count):
            yield value
