"""Spark's reader: ranges of message ids or of buckets, which executors read in parallel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition

from ...offline import OfflineStore
from ...storage.records.keys import RecordKind
from . import attempts_table, messages_table, queue_tables, store_scan
from .bounds import Bounds
from .tables import STATES

#: typical size of a partition; opening the store for a partition takes as long as reading some 20,000 messages
PARTITION_MESSAGES = 500_000
PARTITION_BUCKETS = 1024
_MIN_PARTITIONS = 2


@dataclass
class IdRange(InputPartition):
    """Range of message ids or numbers of attempts, both ends included."""

    first: int
    last: int


@dataclass
class BucketRange(InputPartition):
    """Buckets of a state from key ``low`` to before key ``high``."""

    state: str
    low: bytes
    high: bytes


class EmptyPartition(InputPartition):
    """Partition without rows; Spark needs at least one partition."""


class WholeTable(InputPartition):
    """Partition with all rows of a small table."""


class TableReader(DataSourceReader):
    """Reader of one table of one instance of a store.

    Args:
        schema: the Arrow schema with the wanted columns.
        bounds: the bounds of the rows.
        partitions: the approximate number of partitions; 0 chooses by size.
    """

    def __init__(
        self, table: str, store: str, instance: str | None, schema: pa.Schema, bounds: Bounds, partitions: int
    ) -> None:
        self._table, self._store, self._instance = table, store, instance
        self._schema, self._bounds, self._count = schema, bounds, partitions

    def partitions(self) -> Sequence[InputPartition]:
        if self._table == "queues":
            return [WholeTable(None)]
        ranges: Sequence[InputPartition] = store_scan.ask(self._store, self._instance, self._plan)
        return list(ranges) or [EmptyPartition(None)]

    async def _plan(self, store: OfflineStore) -> Sequence[InputPartition]:
        if self._table in ("messages", "attempts"):
            return await self._id_ranges(store)
        return await self._bucket_ranges(store)

    async def _id_ranges(self, store: OfflineStore) -> list[IdRange]:
        id_range = await store_scan.number_range(
            store, RecordKind.METADATA if self._table == "messages" else RecordKind.HISTORY_LOG
        )
        if id_range is None:
            return []
        first, last = id_range if self._table == "attempts" else await self._wanted_ids(store, *id_range)
        if first > last:
            return []
        span = last - first + 1
        count = self._count or max(_MIN_PARTITIONS, span // PARTITION_MESSAGES)
        step = -(-span // count)
        return [IdRange(start, min(start + step - 1, last)) for start in range(first, last + 1, step)]

    async def _wanted_ids(self, store: OfflineStore, first: int, last: int) -> tuple[int, int]:
        """Return the part of this range of message ids that is within the bounds."""
        bounds = self._bounds
        first, last = max(first, bounds.first_id), min(last, bounds.last_id)
        if bounds.first_ms is not None:
            first = await store_scan.first_received(store, first, last, bounds.first_ms)
        if bounds.last_ms is not None:
            last = await store_scan.first_received(store, first, last, bounds.last_ms + 1) - 1
        return first, last

    async def _bucket_ranges(self, store: OfflineStore) -> list[BucketRange]:
        ranges = []
        for state in STATES if self._table == "entries" else (self._table,):
            if self._bounds.statuses is not None and state not in self._bounds.statuses:
                continue
            buckets = await queue_tables.bucket_keys(store, state, self._bounds)
            step = -(-len(buckets) // self._count) if self._count else PARTITION_BUCKETS
            for start in range(0, len(buckets), max(step, 1)):
                ranges += _runs(state, buckets[start : start + max(step, 1)])
        return ranges

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        source = self._source(partition)
        if source is None:
            return
        for columns in store_scan.read(self._store, self._instance, source):
            yield _batch(columns, self._schema)

    def _source(self, partition: Any) -> store_scan.Source | None:
        if isinstance(partition, WholeTable):
            return queue_tables.queue_rows()
        if isinstance(partition, BucketRange):
            return queue_tables.entries(partition.state, partition.low, partition.high, self._bounds)
        if isinstance(partition, IdRange) and self._table == "attempts":
            return attempts_table.attempt_rows(partition.first, partition.last, self._bounds)
        if isinstance(partition, IdRange):
            return messages_table.messages(partition.first, partition.last, frozenset(self._schema.names))
        return None


def _runs(state: str, found: list[tuple[str, bytes]]) -> list[BucketRange]:
    """Return ranges of keys that contain exactly these buckets: one range for each queue."""
    queues = [[key for _, key in group] for _, group in groupby(found, itemgetter(0))]
    return [BucketRange(state, own[0], own[-1] + b"\0") for own in queues]


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
