"""Scans of a store by an executor. Each sees the state of the store at its start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

from ...bucket_credentials import bucket_settings
from ...offline import OfflineStore, open_store
from ...storage.records import keys, metadata
from ...storage.records.keys import RecordKind

#: rows of a batch; the cost of each batch arises mainly in Spark's JVM
ROWS = 16_384

#: values of each column, as a list or an Arrow array
Columns = dict[str, Any]
Source = Callable[[OfflineStore], AsyncIterator[Columns]]


def read(
    store: str, instance: str | None, source: Source, bucket: Mapping[str, str] | None = None
) -> Iterator[Columns]:
    """Yield the batches of ``source`` from a store, which is open during the iteration.

    ``bucket`` has the settings of the store's bucket.

    Raises StoreError or CorruptRecord if the store can't be read.
    """
    with bucket_settings(bucket or {}), asyncio.Runner() as runner:
        opened = runner.run(open_store(store, instance, who="Spark"))
        try:
            batches = source(opened)
            while (columns := runner.run(_next(batches))) is not None:
                yield columns
        finally:
            runner.run(opened.close())


async def _next(batches: AsyncIterator[Columns]) -> Columns | None:
    return await anext(batches, None)


def run(
    store: str,
    instance: str | None,
    function: Callable[[OfflineStore], Awaitable[Any]],
    bucket: Mapping[str, str],
    *,
    holds_files: bool = True,
) -> Any:
    """Return the result of a coroutine function about a store, which is open during the call."""

    async def call() -> Any:
        async with await open_store(store, instance, who="Spark", holds_files=holds_files) as opened:
            return await function(opened)

    with bucket_settings(bucket):
        return asyncio.run(call())


def number_of(key: bytes) -> int:
    """Return the message id in a key of metadata, or the attempt's number in a key of the history log."""
    return int.from_bytes(key[-8:] if keys.parse(key).kind is RecordKind.METADATA else key[2:10], "big")


async def number_range(store: OfflineStore, kind: RecordKind) -> tuple[int, int] | None:
    """Return the lowest and the highest number of records of this kind, METADATA or HISTORY_LOG."""
    low, high = keys.kind_range(kind)
    first, last = await store.scan(low, high, limit=1), await store.last_key(low, high)
    return (number_of(first[0][0]), number_of(last)) if first and last is not None else None


async def first_received(store: OfflineStore, first: int, last: int, at_ms: int) -> int:
    """Return the first id from ``first`` to ``last`` that was received at this time or later; ids ascend with time.

    The result is ``last + 1`` if there is none, and ``first`` if the range is empty.
    """
    if first > last:
        return first
    high = keys.metadata_key(last) + b"\0"
    while first <= last:
        middle = (first + last) // 2
        records = await store.scan(keys.metadata_key(middle), high, limit=1)
        if records and metadata.received_at(*records[0]) < at_ms:
            first = number_of(records[0][0]) + 1
        else:
            last = middle - 1
    return first
