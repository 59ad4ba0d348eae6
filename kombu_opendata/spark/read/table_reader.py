"""Spark's reader: ranges of keys, which executors read in parallel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition

from ...errors import StoreError
from ...offline import OfflineStore
from ...storage.records import keys
from ...storage.records.keys import RecordKind
from . import result_rows, store_scan, table_rows
from .tables import MAX_ID, STATES, Bounds

#: most messages or attempts of a partition, if the reader chooses their number
PARTITION_ROWS = 500_000
#: fewest of them, as opening the store and starting a task take as long as reading some 20,000
MIN_PARTITION_ROWS = 100_000
PARTITION_BUCKETS = 1024
#: cores, if their number is not known
PARALLELISM = 8
LAST_ROW = (1 << 64) - 1


@dataclass
class KeyRange(InputPartition):
    """Partition of a table: the records from key ``low`` to before key ``high``.

    It has no records if ``high`` is empty, except for the table ``queues``, which is always one partition. In tables of
    entries, ``state`` is the state of the entries. ``numbers`` are the first and the last attempt, if records at the
    ends have others, too. Fewer than ``rows`` rows are an error: the others were deleted.
    """

    low: bytes = b""
    high: bytes = b""
    state: str = ""
    numbers: tuple[int, int] = (0, MAX_ID)
    rows: int = 0


def message_range(first: int, last: int, rows: int = 0) -> KeyRange:
    return KeyRange(keys.metadata_key(first), keys.metadata_key(last) + b"\0", rows=rows)


class TableReader(DataSourceReader):
    """Reader of one table of one instance of a store.

    Args:
        schema: the Arrow schema with the wanted columns.
        partitions: the most partitions; 0 chooses by size.
        parallelism: the number of cores, for which there are enough partitions if their number is not given.
        min_rows: the fewest messages, attempts or results of a partition.
        bucket: settings of the store's bucket.
    """

    def __init__(
        self, table: str, store: str, instance: str | None, schema: pa.Schema, bounds: Bounds, partitions: int,
        parallelism: int = PARALLELISM, min_rows: int = MIN_PARTITION_ROWS, bucket: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._table = table
        self._store = store
        self._instance = instance
        self._schema = schema
        self._bounds = bounds
        self._count = partitions
        self._bucket = dict(bucket or {})
        self._parallelism = parallelism
        self._min_rows = 1 if table_rows.LARGE & set(schema.names) else min_rows

    def partitions(self) -> list[KeyRange]:
        ranges = [] if self._table == "queues" else self.run(self._ranges)
        return ranges or [KeyRange()]  # Spark needs at least one

    def run(self, function: Callable[[OfflineStore], Awaitable[Any]], *, holds_files: bool = True) -> Any:
        """Return the result of a coroutine function about the store."""
        return store_scan.run(self._store, self._instance, function, self._bucket, holds_files=holds_files)

    async def _ranges(self, store: OfflineStore) -> list[KeyRange]:
        if self._table == "messages" or self._bounds.job_id:
            return [message_range(low, high) for low, high in self.numbers(await self._wanted_ids(store))]
        if self._table == "results":
            ranges = await result_rows.result_ranges(store, self._count or self._parallelism)
            return [KeyRange(low, high) for low, high in ranges]
        if self._table == "attempts":
            numbers = self.numbers(await store_scan.number_range(store, RecordKind.HISTORY_LOG))
            return [
                KeyRange(keys.history_log_key(low, 0), keys.history_log_key(high, LAST_ROW) + b"\0")
                for low, high in numbers
            ]
        return await self._bucket_ranges(store)

    def numbers(self, whole: tuple[int, int] | None) -> Iterator[tuple[int, int]]:
        """Yield the parts of a range of numbers, both ends included."""
        first, last = whole or (0, -1)
        rows = last - first + 1
        count = min(self._count or self._parallelism, max(1, rows // self._min_rows))
        if not self._count:
            count = max(count, -(-rows // PARTITION_ROWS))
        step = max(1, -(-rows // count))
        for start in range(first, last + 1, step):
            yield start, min(start + step - 1, last)

    async def _wanted_ids(self, store: OfflineStore) -> tuple[int, int] | None:
        """Return the range of message ids that is within the bounds; None if the store has no messages."""
        bounds = self._bounds
        if bounds.job_id:
            return await result_rows.job_messages(store, bounds.job_id)
        id_range = await store_scan.number_range(store, RecordKind.METADATA)
        if id_range is None:
            return None
        first, last = max(id_range[0], bounds.first_id), min(id_range[1], bounds.last_id)
        if bounds.first_ms is not None:
            first = await store_scan.first_received(store, first, last, bounds.first_ms)
        if bounds.last_ms is not None:
            last = await store_scan.first_received(store, first, last, bounds.last_ms + 1) - 1
        return first, last

    async def _bucket_ranges(self, store: OfflineStore) -> list[KeyRange]:
        ranges = []
        for state in STATES if self._table == "entries" else (self._table,):
            if self._bounds.statuses is not None and state not in self._bounds.statuses:
                continue
            buckets = await table_rows.bucket_keys(store, state, self._bounds)
            step = max(1, -(-len(buckets) // self._count) if self._count else PARTITION_BUCKETS)
            for start in range(0, len(buckets), step):
                for _queue, group in groupby(buckets[start : start + step], itemgetter(0)):
                    bucket_keys = [key for _, key in group]  # all of one queue, so that no other key is between them
                    ranges.append(KeyRange(bucket_keys[0], bucket_keys[-1] + b"\0", state))
        return ranges

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        if not partition.high and self._table != "queues":
            return
        count = 0
        source = partial(self._columns, partition)
        for columns in store_scan.read(self._store, self._instance, source, self._bucket):
            batch = _batch(columns, self._schema)
            count += batch.num_rows
            yield batch
        if count < partition.rows:
            raise StoreError(
                f"{partition.rows - count} {self._table} were deleted before they were read. To continue with the rows "
                "that are left, set failOnDataLoss to false"
            )

    def _columns(self, partition: KeyRange, store: OfflineStore) -> AsyncIterator[store_scan.Columns]:
        low, high, bounds, wanted = partition.low, partition.high, self._bounds, frozenset(self._schema.names)
        if self._table == "queues":
            return table_rows.queues(store)
        if self._table == "messages":
            return table_rows.messages(store, low, high, wanted)
        if self._table == "results":
            return (result_rows.results_of_messages if bounds.job_id else result_rows.results_between)(store, low, high)
        if self._table == "attempts":
            return table_rows.attempts(store, low, high, wanted, bounds, partition.numbers)
        return table_rows.entries(store, partition.state, low, high, bounds)


def _batch(columns: store_scan.Columns, schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        values = columns.get(field.name, [])
        if isinstance(values, pa.Array):
            arrays.append(values if values.type == field.type else pc.cast(values, field.type))
        elif pa.types.is_timestamp(field.type):
            ms = pa.array(values, pa.int64())
            arrays.append(pc.cast(pc.cast(ms, pa.timestamp("ms", field.type.tz)), field.type))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
