"""The rows of a staged job that are added to queues, and their conversion to records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import Any

import msgspec

from ...staging.batch_block import IndexBlock
from ..records import metadata, types
from ..records.payload import NewMessage
from .message_deadlines import TTL_HEADER, is_exact, retention_of

_decoder = msgspec.msgpack.Decoder(IndexBlock)
_URI = b"\x02"


class StagedChunk(msgspec.Struct, array_like=True, gc=False):
    """Some rows of a staged job, all of one batch.

    Attributes:
        first_id: the message id of the first row.
        at_ms, received_at_ms: the current time; the time of the job's commit, which counts as the time of receipt.
        path, offset: the batch object, and the offset of the first row's envelope in it; no path: inline.
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
    received, encode, join = chunk.received_at_ms, metadata.encode_with, b"".join
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
    """Yield the payload record of each row, or its envelope."""
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
    """Encode a column of headers; empty for a row without the header."""
    key, pack = types.utf8(name), types.COUNT.pack
    return [b"" if text is None else key + pack(len(raw := text.encode())) + raw for text in column]


def spread(runs: list[int]) -> Iterator[int]:
    """Yield the values of a flat list value, count, value, count, …, each repeated."""
    return chain.from_iterable(map(repeat, runs[::2], runs[1::2]))
