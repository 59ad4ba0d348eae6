"""Headers of messages that are collected before the stored index has their attempts.

Attempts are found by the headers of their messages, and the index gets those from the metadata, also once more after a
crash. So the checkpoint that deletes the metadata of such messages puts their headers into records of their own, and
the checkpoint that stores the index up to their attempts deletes these. Messages whose attempts have long been indexed,
nearly all, cost a look at a few sets.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from ....errors import CorruptRecord
from ...messages.payloads import Payloads
from ...read.stored_messages import read_metadata_records
from ...records import history_headers, keys, metadata
from ...records.history_headers import Pairs, Table
from ...slatedb.ffi import Batch
from ...slatedb.store_writer import SlateStore
from ...state.history_log import HistoryLog
from .history_index import Index

#: messages of one record, and bytes of headers after which it ends
RECORD_MESSAGES = 4096
_RECORD_BYTES = 1 << 20
#: messages whose metadata is read in one turn of the event loop
_READ_AT_ONCE = 256
#: messages whose headers are decoded in one turn
_FOUND_AT_ONCE = 128
#: records that stay in memory after they were looked into
_TABLES = 4
#: records that are so many that the index is not to wait for more rows before it is stored
_MANY = 16


class _Stored(NamedTuple):
    """A record: its key, the number of the first attempt that is not of its messages, its first and last message."""

    key: bytes
    attempt: int
    first: int
    last: int


class CollectedHeaders:
    """The records of one engine."""

    def __init__(self, store: SlateStore, payloads: Payloads, log: HistoryLog, index: Index) -> None:
        self._store, self._payloads = store, payloads
        self._log, self._index = log, index
        self._records: deque[_Stored] = deque()  # in order of their attempts
        self._tables: OrderedDict[bytes, Table] = OrderedDict()
        self._end = 0

    @property
    def are_many(self) -> bool:
        """Whether they take so much space that they should go soon."""
        return len(self._records) >= _MANY

    async def load(self) -> None:
        """Take note of what the store has.

        Raises:
            CorruptRecord: a record does not decode.
        """
        kind = keys.kind_range(keys.RecordKind.HISTORY_HEADERS)
        async for rows in self._store.scan_batches(*kind, batch=_TABLES, read_ahead_bytes=_RECORD_BYTES):
            for key, value in rows:
                self._note(key, Table(key, value).ids)

    def _note(self, key: bytes, ids: Sequence[int]) -> None:
        attempt, _first = keys.parse(key).numbers or (0, 0)
        self._records.append(_Stored(key, attempt, ids[0], ids[-1]))

    # ------------------------------------------------------------------ checkpoints
    def snapshot(self, batch: Batch) -> None:
        """Delete what is needed no more once this checkpoint is stored; right after the log and the index are in it."""
        self._end = self._log.open.first_attempt
        upto = self._index.stored_head.attempt
        while self._records and self._records[0].attempt <= upto:
            key = self._records.popleft().key
            self._tables.pop(key, None)
            batch.delete(key)

    async def keep(self, gone: Set[int], batch: Batch) -> None:
        """Have the headers stored of those of these messages that the stored index may still need.

        Args:
            gone: what ``batch`` deletes. Nothing happens to these messages any more, so all their attempts are before
                the end of the log as of the snapshot.

        Raises:
            StoreError: the store can't be read.
        """
        ids = sorted(self._needed(gone))
        found: list[tuple[int, bytes]] = []
        size = 0
        for start in range(0, len(ids), _READ_AT_ONCE):
            some = ids[start : start + _READ_AT_ONCE]
            stored = await read_metadata_records(self._store, self._payloads, some)
            for id in some:
                part = _headers_of(id, stored.get(id))
                if not part:
                    continue
                found.append((id, part))
                size += len(part)
                if len(found) >= RECORD_MESSAGES or size >= _RECORD_BYTES:
                    self._put(found, batch)
                    found, size = [], 0
            await asyncio.sleep(0)
        if found:
            self._put(found, batch)

    def _needed(self, gone: Set[int]) -> set[int]:
        """Those that may have attempts in the log that the index will not have when the checkpoint is stored."""
        if not gone:
            return set()
        needed = self._log.attempted(gone)
        for part in self._index.unstored:
            needed.update(gone & part.attempted)
        return needed

    def _put(self, found: list[tuple[int, bytes]], batch: Batch) -> None:
        """Noted before it is written: who looks for the metadata from then on looks here next."""
        key = keys.history_headers_key(self._end, found[0][0])
        batch.put(key, history_headers.encode(found))
        self._note(key, [id for id, _part in found])

    # ------------------------------------------------------------------ looking
    async def find(self, ids: Iterable[int]) -> dict[int, Pairs]:
        """The headers of those of these messages that have some here.

        Raises:
            CorruptRecord: a record does not decode.
        """
        wanted = set(ids)
        in_order = sorted(wanted)
        found: dict[int, Pairs] = {}
        for record in [record for record in self._records if _overlaps(record, in_order)]:
            table = await self._table(record.key)
            if table is None:
                continue
            for id in wanted.intersection(table.ids):
                found[id] = table.find(id)
                if len(found) % _FOUND_AT_ONCE == 0:
                    await asyncio.sleep(0)
        return found

    async def _table(self, key: bytes) -> Table | None:
        """A record; None where the checkpoint that writes it is under way: then the metadata is still there."""
        table = self._tables.get(key)
        if table is None:
            value = await self._store.get(key)
            if value is None:
                return None
            table = self._tables[key] = Table(key, value)
            if len(self._tables) > _TABLES:
                self._tables.popitem(last=False)
        return table


def _overlaps(record: _Stored, ids: Sequence[int]) -> bool:
    """Whether one of these messages, in order, may be in the record."""
    at = bisect_left(ids, record.first)
    return at < len(ids) and ids[at] <= record.last


def _headers_of(id: int, record: bytes | None) -> bytes:
    """The headers in a metadata record; empty if there are none. What is damaged has none for its attempts either."""
    if record is None:
        return b""
    try:
        part = metadata.headers_part(keys.metadata_key(id), record)
    except CorruptRecord:
        return b""
    return part if part[0] else b""
