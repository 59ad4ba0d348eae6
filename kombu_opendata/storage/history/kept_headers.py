"""Headers of messages that are collected before the stored index has their attempts.

Attempts are searched by the headers of their messages, which the indexer reads from the metadata, again after a crash.
So the checkpoint that deletes the metadata of such messages writes their headers into separate records, and the
checkpoint that stores the index up to their attempts deletes these. Nearly all messages were indexed long before; they
cost only a few set operations.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from ...errors import CorruptRecord
from ..clock import TimeSlice
from ..engine_sizes import EngineSizes
from ..messages.payloads import Payloads
from ..read.stored_messages import read_metadata_records
from ..records import history_headers, keys, metadata
from ..records.history_headers import HeaderTable
from ..records.metadata import Pairs
from ..slatedb.ffi import WriteBatch
from ..slatedb.store_writer import SlateStore
from ..state.history_log import HistoryLog
from .history_index import Index

#: records that remain in memory after a search
_TABLES = 4


class _Stored(NamedTuple):
    """A record: its key, a number above all attempts of its messages, its first and its last message."""

    key: bytes
    attempt: int
    first: int
    last: int


class CollectedHeaders:
    """The kept headers of one engine."""

    def __init__(
        self, store: SlateStore, payloads: Payloads, log: HistoryLog, index: Index, sizes: EngineSizes
    ) -> None:
        self._sizes = sizes
        self._store, self._payloads = store, payloads
        self._log, self._index = log, index
        self._records: deque[_Stored] = deque()  # in order of their attempts
        self._tables: OrderedDict[bytes, HeaderTable] = OrderedDict()
        self._end = 0

    @property
    def are_many(self) -> bool:
        """True if the records use so much space that the index should be stored soon, which deletes them."""
        return len(self._records) >= self._sizes.header_records

    async def load(self) -> None:
        """Load the list of records in the store.

        Raises:
            CorruptRecord: a record does not decode.
        """
        kind = keys.kind_range(keys.RecordKind.HISTORY_HEADERS)
        async for rows in self._store.scan_batches(*kind, batch=_TABLES, read_ahead_bytes=self._sizes.header_bytes):
            for key, value in rows:
                self._note(key, HeaderTable(key, value).ids)

    def _note(self, key: bytes, ids: Sequence[int]) -> None:
        attempt, _first = keys.parse(key).numbers or (0, 0)
        self._records.append(_Stored(key, attempt, ids[0], ids[-1]))

    # ------------------------------------------------------------------ checkpoints
    def snapshot(self, batch: WriteBatch) -> None:
        """Delete the records that are not needed after this checkpoint, whose batch has the log and the index."""
        self._end = self._log.open.first_attempt
        upto = self._index.stored_head.attempt
        while self._records and self._records[0].attempt <= upto:
            key = self._records.popleft().key
            self._tables.pop(key, None)
            batch.delete(key)

    async def keep(self, deleted_ids: Set[int], batch: WriteBatch) -> None:
        """Store the headers of the deleted messages that the stored index may still need.

        Args:
            deleted_ids: the messages that ``batch`` deletes. They no longer change, so all their attempts are before
                the end of the log at the snapshot.

        Raises:
            StoreError: the store can't be read.
        """
        ids = sorted(self._needed(deleted_ids))
        entries: list[tuple[int, bytes]] = []
        size = 0
        piece = TimeSlice()
        sizes = self._sizes
        for start in range(0, len(ids), sizes.header_reads):
            batch_ids = ids[start : start + sizes.header_reads]
            records = await read_metadata_records(self._store, self._payloads, batch_ids)
            for id in batch_ids:
                part = _headers_of(id, records.get(id))
                if not part:
                    continue
                entries.append((id, part))
                size += len(part)
                if len(entries) >= sizes.header_messages or size >= sizes.header_bytes:
                    self._put(entries, batch)
                    entries, size = [], 0
            await piece.pause()
        if entries:
            self._put(entries, batch)

    def _needed(self, deleted_ids: Set[int]) -> set[int]:
        """Return the messages with attempts that the index may not have when the checkpoint is stored."""
        if not deleted_ids:
            return set()
        needed = self._log.attempted(deleted_ids)
        for part in self._index.unstored:
            needed.update(deleted_ids & part.attempted)
        return needed

    def _put(self, entries: list[tuple[int, bytes]], batch: WriteBatch) -> None:
        """Add a record.

        It is registered before it is written, as a reader that misses the metadata searches here next.
        """
        key = keys.history_headers_key(self._end, entries[0][0])
        batch.put(key, history_headers.encode(entries))
        self._note(key, [id for id, _part in entries])

    # ------------------------------------------------------------------ search
    async def find(self, ids: Iterable[int]) -> dict[int, Pairs]:
        """Return the kept headers of these messages, by id.

        Raises:
            CorruptRecord: a record does not decode.
        """
        wanted_ids = set(ids)
        in_order = sorted(wanted_ids)
        headers: dict[int, Pairs] = {}
        piece = TimeSlice()
        for record in [record for record in self._records if _overlaps(record, in_order)]:
            table = await self._table(record.key)
            if table is None:
                continue
            for id in wanted_ids.intersection(table.ids):
                headers[id] = table.find(id)
                await piece.pause()
        return headers

    async def _table(self, key: bytes) -> HeaderTable | None:
        """Return a record; None until the checkpoint that writes it is complete, as the metadata exists until then."""
        table = self._tables.get(key)
        if table is None:
            value = await self._store.get(key)
            if value is None:
                return None
            table = self._tables[key] = HeaderTable(key, value)
            if len(self._tables) > _TABLES:
                self._tables.popitem(last=False)
        return table


def _overlaps(record: _Stored, ids: Sequence[int]) -> bool:
    """Return True if one of these sorted messages may be in the record."""
    at = bisect_left(ids, record.first)
    return at < len(ids) and ids[at] <= record.last


def _headers_of(id: int, record: bytes | None) -> bytes:
    """Return the headers in a metadata record; empty if there are none or the record is damaged."""
    if record is None:
        return b""
    try:
        part = metadata.headers_part(keys.metadata_key(id), record)
    except CorruptRecord:
        return b""
    return part if part[0] else b""
