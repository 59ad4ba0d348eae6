"""Rows of a staged job on their way into queues: what the journal says of them, and the records that they become.

The effect STAGED_ROUTE says all that routing some rows changed, with every choice made, and holds the block of the
index that the rows are in, as it is in the batch object. So replaying it needs no object.

==================  ================================================================================================
field               meaning
==================  ================================================================================================
job id, first id    whose rows; the id of the first of them
at, received        ms since the epoch: now; the job's commit, which is when the messages were received
path, offset        the batch object, and where in it the first row's envelope is; no path: inline
rows                how many
block               the rows' columns: :class:`kombu_opendata.staging.batch_block.Block`; empty if they are damaged
payload             of an inline batch, the envelopes; else empty
targets             lists of queues
runs                flat list target, rows, target, rows, …; -1 for rows that no queue takes
places              queue → flat list bucket, rows, bucket, rows, …
==================  ================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..staging.batch_block import Block
from .limits import MAX_DEADLINE_MS, TTL_HEADER, is_exact, retention_of
from .records import metadata, types
from .records.payload import MAX_INLINE_BYTES

if TYPE_CHECKING:
    from .state import StoreState

_decoder = msgspec.msgpack.Decoder(Block)
_URI = b"\x02"


class Chunk(NamedTuple):
    """The fields of the effect up to the block and its payload; the rest is what routing decided."""

    job_id: str
    first_id: int
    at: int
    received_at: int
    path: str
    offset: int
    rows: int
    block: bytes
    payload: bytes


#: what a queue must know of a message: stored priority (lower first), visible at, deadline, size
Row = tuple[int, int, int, int]


class Record(NamedTuple):
    """What the store must know of a message: its metadata, and where the payload is or the payload."""

    id: int
    metadata: bytes
    uri: bytes  # the payload record; empty if the envelope is here
    envelope: bytes


def decode(chunk: Chunk) -> Block:
    """The chunk's block, which was checked before it came to be in a chunk."""
    return _decoder.decode(chunk.block)


def rows_of(chunk: Chunk, block: Block) -> Iterator[Row]:
    """The chunk's rows, in order."""
    received = chunk.received_at
    priorities, visible, ttls = map(_each, (block.priority, block.visible_at_ms, block.ttl_ms))
    for priority, visible_at, ttl, length in zip(priorities, visible, ttls, block.lengths, strict=False):
        deadline = min(received + ttl, MAX_DEADLINE_MS) if ttl >= 0 else 0
        yield 255 - priority, visible_at if visible_at > received else received, deadline, length


def _each(value: Any) -> Iterable[Any]:
    """The values of the rows, endless where it is one for all."""
    return value if isinstance(value, list) else repeat(value)


def records_of(chunk: Chunk, block: Block, runs: list[int]) -> Iterator[Record]:
    """The records of the chunk's rows, but for those that no queue takes.

    Raises:
        InvalidMessage: a header that no record can hold; checked blocks have none.
    """
    created, visible, ttls = map(_each, (block.created_at_ms, block.visible_at_ms, block.ttl_ms))
    constants = metadata.encode_pairs(block.constants.items())
    columns = [_pairs(name, column) for name, column in block.columns.items()]
    fixed = len(block.constants)
    varying = zip(*columns, strict=True) if columns else repeat(())
    received, encode, join = chunk.received_at, metadata.encode_with, b"".join
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
            else:  # there is no place for it
                retention = max(ttl // 1000, 1)
        created_at = created_at if created_at > 0 else received
        value = encode(id, created_at, received, max(visible_at, received), retention, count, pairs)
        yield Record(id, value, *place)


def _places(chunk: Chunk, block: Block) -> Iterator[tuple[bytes, bytes]]:
    """Of each row the payload record, or else the envelope."""
    if not chunk.path:
        at = 0
        for length in block.lengths:
            yield b"", chunk.payload[at : at + length]
            at += length
        return
    start, pack, at = f"batch:{chunk.path}:", types.COUNT.pack, chunk.offset
    for length, checksum in zip(block.lengths, block.checksums, strict=True):
        uri = f"{start}{at}:{length}:{checksum:08x}".encode()
        yield _URI + pack(len(uri)) + uri, b""
        at += length


def _pairs(name: str, column: list[str | None]) -> list[bytes]:
    """A column of headers, encoded; empty where a row does not have it."""
    key, pack = types.utf8(name), types.COUNT.pack
    return [b"" if text is None else key + pack(len(raw := text.encode())) + raw for text in column]


def restored(effect: Sequence[Any]) -> Iterator[Record]:
    """The records of the rows that an effect routed; a row without a ``uri`` has its envelope."""
    chunk, runs = Chunk(*effect[1:10]), effect[11]
    if chunk.block:
        yield from records_of(chunk, decode(chunk), runs)


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
    return chain.from_iterable(map(repeat, runs[::2], runs[1::2]))


# ---------------------------------------------------------------------- what the effect does
def apply(
    state: StoreState,
    chunk: Chunk,
    rows: Iterable[Row],
    targets: list[list[str]],
    runs: list[int],
    place: Callable[[str], int],
) -> None:
    """Put the rows of a chunk into queues; ``place`` gives the bucket for a queue's next one of them."""
    id, dropped = chunk.first_id, 0
    received, is_inline = chunk.received_at, bool(chunk.payload)
    for row, target in zip(rows, spread(runs), strict=bool(chunk.block)):
        if target < 0:
            dropped += 1
        else:
            places = [(name, place(name)) for name in targets[target]]
            priority, visible, deadline, size = row
            large = is_inline and size > MAX_INLINE_BYTES
            state.publish(id, places, priority, visible, deadline, received, large=large, size=size)
        id += 1
    for target, count in zip(runs[::2], runs[1::2], strict=True):
        for name in targets[target] if target >= 0 else ():
            state.staged.add_routed(chunk.job_id, name, count)
    damaged = not chunk.block
    state.staged.routed(chunk.job_id, chunk.rows, chunk.rows if damaged else dropped, damaged, chunk.at)


def replay(state: StoreState, effect: Sequence[Any]) -> None:
    """Apply the effect as the journal has it."""
    chunk, (targets, runs, places) = Chunk(*effect[1:10]), effect[10:]
    numbers = {name: spread(buckets) for name, buckets in places.items()}
    rows: Iterable[Row] = rows_of(chunk, decode(chunk)) if chunk.block else ()
    apply(state, chunk, rows, targets, runs, lambda name: next(numbers[name]))
