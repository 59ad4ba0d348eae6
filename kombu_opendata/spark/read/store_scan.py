"""How records of a store become columns: what an executor reads is one state of it, as of the opening of its part."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from ...offline import OfflineStore, open_store
from ...storage.records import keys
from ...storage.records.keys import RecordKind

#: rows of a batch; each batch has its price, in Spark's JVM most of all
ROWS = 16_384

#: column → values, a list or an Arrow array
Columns = dict[str, Any]
Source = Callable[[OfflineStore], AsyncIterator[Columns]]

#: of metadata: message id, created at, received at, visible at, retention, number of headers
METADATA_HEAD = struct.Struct("<QqqqIB")


def read(store: str, instance: str | None, source: Source) -> Iterator[Columns]:
    """What ``source`` finds in a store, a batch at a time; the store is closed at the end.

    Raises:
        StoreError, CorruptRecord: it can't be read.
    """
    loop = asyncio.new_event_loop()
    try:
        opened = loop.run_until_complete(open_store(store, instance, who="Spark"))
        try:
            batches = source(opened)
            while True:
                try:
                    columns = loop.run_until_complete(_next(batches))
                except StopAsyncIteration:
                    return
                yield columns
        finally:
            loop.run_until_complete(opened.close())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _next(batches: AsyncIterator[Columns]) -> Columns:
    return await batches.__anext__()


def ask(store: str, instance: str | None, question: Callable[[OfflineStore], Awaitable[Any]]) -> Any:
    """What one question about a store is answered."""

    async def asked() -> Any:
        async with await open_store(store, instance, who="Spark") as opened:
            return await question(opened)

    return asyncio.run(asked())


# ---------------------------------------------------------------------- ranges of numbers
def number_of(key: bytes) -> int:
    """The message id of a metadata key, or the attempt of a key of the history log."""
    return int.from_bytes(key[-8:] if keys.parse(key).kind is RecordKind.METADATA else key[2:10], "big")


async def number_range(store: OfflineStore, kind: RecordKind) -> tuple[int, int] | None:
    """The lowest and the highest number that a record of this kind has, METADATA or HISTORY_LOG."""
    low, high = keys.kind_range(kind)
    first = await store.scan(low, high, limit=1)
    if not first:
        return None
    lower, upper = number_of(first[0][0]), keys.MAX_MESSAGE_ID - 1
    start = lower
    while lower < upper:  # by halving, as scans go upwards only
        middle = (lower + upper + 1) // 2
        key = keys.metadata_key(middle) if kind is RecordKind.METADATA else keys.history_log_key(middle, 0)
        found = await store.scan(key, high, limit=1)
        if found:
            lower = number_of(found[0][0])
        else:
            upper = middle - 1
    return start, lower


async def first_received(store: OfflineStore, first: int, last: int, at_ms: int) -> int:
    """The first id from ``first`` to ``last`` that was received at this time or later; ids ascend with time.

    One more than ``last`` if there is none, ``first`` where the range is empty.
    """
    if first > last:
        return first
    high = keys.metadata_key(last) + b"\0"
    while first <= last:
        middle = (first + last) // 2
        found = await store.scan(keys.metadata_key(middle), high, limit=1)
        if found and METADATA_HEAD.unpack_from(found[0][1])[2] < at_ms:
            first = number_of(found[0][0]) + 1
        else:
            last = middle - 1
    return first
