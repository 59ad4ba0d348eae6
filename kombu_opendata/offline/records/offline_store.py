"""Read-only access to a store, with or without a running broker.

A running broker is not fenced. A concurrent reader holds a checkpoint (:mod:`..files.checkpoint_hold`), so that the
broker keeps the files that are read; nothing else is written. Commits that are only in the journal are replayed in
memory.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType

from ...errors import CorruptRecord, StoreChanged, StoreError, UnsupportedFormat
from ...storage.clock import Clock
from ...storage.records import keys, store_records
from ...storage.records.store_records import StoreHeader
from ...storage.slatedb.rows import Rows
from ...storage.slatedb.store_reads import ReadOnlyStore
from ..files.checkpoint_hold import Hold
from ..files.journal_files import Changes, JournalTail, replayed
from ..files.store_location import StoreLocation, power_lost, running_broker
from ..findings import Finding, finding

Pair = tuple[bytes, bytes]
Range = tuple[bytes, bytes | None]

#: rows of one read for the highest key, of which the journal may have deleted some
_LAST_PAGE = 16

#: findings that a write of the broker to the journal during the read may cause
_UNSETTLED = frozenset({"journal-gap", "journal-sequence", "journal-behind", "journal-record"})


class OfflineStore:
    """Records of one instance, as of the time when it was opened. Use :func:`open_store`.

    Attributes:
        header: the store's header; None if it is missing or damaged (see ``problems``).
        journal: the end of the journal; None if the store has no journal.
        broker_pid: the broker that runs on it; 0 if it is unknown, None if there is none.
        problems: the findings at the opening of the store, if damage is tolerated.
        unreadable: the ranges of keys that scans omit because they can't be read.
    """

    def __init__(self, location: StoreLocation, reader: ReadOnlyStore | None, clock: Clock) -> None:
        self.location = location
        self.clock = clock
        self.header: StoreHeader | None = None
        self.journal: JournalTail | None = None
        self.broker_pid: int | None = None
        self.problems: list[Finding] = []
        self.unreadable: list[Range] = []
        self.skipped_wal = False
        self.hold: Hold | None = None
        self._reader = reader
        self._changes: Changes = {}
        self._changed_keys: list[bytes] = []

    @property
    def is_readable(self) -> bool:
        """False if no record at all can be read."""
        return self._reader is not None

    @property
    def unheld(self) -> str | None:
        """Reason why a broker may delete files during a read; None if a checkpoint holds them or no broker runs."""
        return None if self.hold is None else self.hold.why_not

    # ------------------------------------------------------------------ reading
    async def get(self, key: bytes) -> bytes | None:
        """Return the value of ``key``; None if there is no such record.

        Raises:
            StoreChanged: a broker has deleted the file of the record.
            CorruptRecord: the file of the record is damaged.
            StoreError: the record can't be read.
        """
        if key in self._changes:
            return self._changes[key]
        try:
            return await self._base.get(key)
        except StoreError as exc:
            self._check_deleted(exc)
            raise

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of ``keys``, in their order; raise as :meth:`get`."""
        return [await self.get(key) for key in keys]

    async def scan_batches(self, start: bytes, end: bytes | None, *, batch: int = 1000) -> AsyncIterator[list[Pair]]:
        """Yield the pairs with ``start <= key < end`` by key, in lists that are not empty.

        Unreadable ranges are omitted; a range that can't be read is added to ``unreadable``.

        Raises:
            StoreChanged: a broker has deleted a required file.
            StoreError: the records can't be read, for a reason other than damage.
        """
        async for rows in self.scan_rows(start, end, batch=batch):
            yield rows.pairs()

    async def scan_rows(self, start: bytes, end: bytes | None, *, batch: int = 1000) -> AsyncIterator[Rows]:
        """Yield the pairs of :meth:`scan_batches`, with each batch in one piece."""
        for low, high in _without(self.unreadable, start, end):
            position = low
            try:
                async for rows in self._merged(low, high, batch):
                    position = rows.last_key + b"\0"
                    yield rows
            except StoreError as exc:
                self._check_deleted(exc)
                if not self._is_damage(exc):
                    raise
                self.unreadable.append((position, high))
                text = f"what follows the key {position.hex() or '(the first)'} can't be read: {exc.text}"
                self.problems.append(finding("slatedb-unreadable", text, key=position))

    def _check_deleted(self, exc: StoreError) -> None:
        """Raise StoreChanged if a file is missing because a broker replaced it, and not because it was lost."""
        has_checkpoint = self.hold is not None and self.hold.why_not is None
        if has_checkpoint or "not found" not in str(exc.__cause__):
            return
        root, database = self.location.root, self.location.database
        if root is None or running_broker(root) is not None or _newest_manifest(database) != self._manifest:
            text = f"{self.location} was written while it was read, and required files were deleted; open it again"
            raise StoreChanged(text) from exc

    def _is_damage(self, exc: StoreError) -> bool:
        """Return True if damage is tolerated and the cause of the error."""
        return self._tolerant and is_damage(exc, self.location, self.broker_pid)

    async def scan(self, start: bytes, end: bytes | None, *, limit: int | None = None) -> list[Pair]:
        """Return the pairs with ``start <= key < end``, at most ``limit``; for small ranges."""
        pairs: list[Pair] = []
        async for rows in self.scan_batches(start, end, batch=min(limit or 1000, 1000)):
            pairs += rows
            if limit is not None and len(pairs) >= limit:
                return pairs[:limit]
        return pairs

    async def last_key(self, start: bytes, end: bytes) -> bytes | None:
        """Return the highest key with ``start <= key < end``; None if there is no record."""
        changed = self._changed_keys[bisect_left(self._changed_keys, start) : bisect_left(self._changed_keys, end)]
        newest = next((key for key in reversed(changed) if self._changes[key] is not None), None)
        while page := await self._base.scan(start, end, limit=_LAST_PAGE, descending=True):
            for key, _value in page:
                if self._changes.get(key, key) is not None:
                    return key if newest is None else max(key, newest)
            end = page[-1][0]
        return newest

    def can_tell(self, key: bytes) -> bool:
        """Return False if the record may exist in an unreadable range, so that None from :meth:`get` proves nothing."""
        return not any(low <= key and (high is None or key < high) for low, high in self.unreadable)

    async def _merged(self, start: bytes, end: bytes | None, batch: int) -> AsyncIterator[Rows]:
        """Yield the reader's rows, with the journal's changes applied."""
        changed_keys = self._changed_keys
        at = bisect_left(changed_keys, start)
        last = len(changed_keys) if end is None else bisect_left(changed_keys, end)
        async for rows in self._base.scan_rows(start, end, batch=batch):
            until = min(bisect_right(changed_keys, rows.last_key), last)
            merged = self._merge(rows, changed_keys[at:until])
            at = max(at, until)
            if merged:
                yield merged
        for low in range(at, last, batch):
            merged_rows = self._merge(Rows.of([]), changed_keys[low : min(low + batch, last)])
            if merged_rows:
                yield merged_rows

    def _merge(self, rows: Rows, changed_keys: Sequence[bytes]) -> Rows:
        if not changed_keys:
            return rows
        merged = dict(rows.pairs())
        for key in changed_keys:
            value = self._changes[key]
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = value
        return Rows.of(sorted(merged.items()))

    @property
    def _base(self) -> ReadOnlyStore:
        if self._reader is None:
            raise StoreError(f"no record of {self.location} can be read", url=self.location.url)
        return self._reader

    # ------------------------------------------------------------------ opening, closing
    _tolerant = False
    _settle_for_less = False
    _manifest = ""

    async def load(self, *, tolerant: bool, is_last_try: bool) -> None:
        """Read the header, and replay the journal.

        Raises:
            StoreChanged: the broker wrote during the read; open the store again.
        """
        self._tolerant = tolerant
        self._settle_for_less = tolerant and is_last_try
        self.broker_pid = running_broker(self.location.root)
        self._manifest = _newest_manifest(self.location.database)
        await self._load_header()
        await self._load_journal()

    async def _load_header(self) -> None:
        try:
            value = await self.get(keys.STORE_HEADER_KEY)
            if value is not None:
                self.header = store_records.decode_header(keys.STORE_HEADER_KEY, value)
                return
            text = f"there is no store header in {self.location}: it is damaged, or another program's database"
            failure: StoreError = CorruptRecord(text, key=keys.STORE_HEADER_KEY, offset=0)
        except (UnsupportedFormat, StoreChanged):
            raise
        except StoreError as exc:
            failure = exc
        if not self._is_damage(failure):
            raise failure
        self.problems.append(finding("header-damaged", failure.text, key=keys.STORE_HEADER_KEY))

    async def _load_journal(self) -> None:
        folder = self.location.journal
        if folder is None:
            return
        key = keys.JOURNAL_POSITION_KEY
        try:
            value = await self.get(key)
            if value is None and not folder.is_dir():
                return
            position = 0 if value is None else store_records.decode_journal_position(key, value)
        except StoreError as exc:
            self._journal_problem(finding("journal-position", exc.text, key=key), exc)
            return
        self.journal = tail = JournalTail(folder, position, power_lost=power_lost(self.location))
        if self.broker_pid is not None:
            tail.findings = [item for item in tail.findings if item.code != "journal-torn"]
            if not self._settle_for_less and any(item.code in _UNSETTLED for item in tail.findings):
                raise StoreChanged(f"the journal of {self.location} changed while it was read")
        if not tail.is_whole and not self._tolerant:
            wrong = next(item for item in tail.findings if item.code in _UNSETTLED or item.code == "journal-header")
            raise CorruptRecord(f"{wrong.text}; verify the store", key=b"", offset=0)
        if tail.commits:
            await self._replay(tail)

    async def _replay(self, tail: JournalTail) -> None:
        try:
            self._changes = await replayed(self._base, tail.commits, tail.last, self.clock)
        except StoreError as exc:
            text = f"{len(tail.commits)} commits of the journal could not be applied: {exc.text}"
            self._journal_problem(finding("journal-replay", text, key=exc.values.get("key", b"")), exc)
            return
        self._changed_keys = sorted(self._changes)

    def _journal_problem(self, problem: Finding, failure: StoreError) -> None:
        if not self._is_damage(failure):
            raise failure
        self.problems.append(problem)

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()
        if self.hold is not None:
            await self.hold.release()

    async def __aenter__(self) -> OfflineStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def is_damage(exc: StoreError, location: StoreLocation, broker_pid: int | None) -> bool:
    """Return True if a store can't be read because it is damaged.

    SlateDB reports some damage as "unavailable". A bucket may really be unavailable, and so may files of a folder whose
    broker is changing them; in any other folder it means damage.
    """
    if isinstance(exc, CorruptRecord):
        return True
    return location.root is not None and broker_pid is None and not isinstance(exc, StoreChanged)


def _newest_manifest(database: Path | None) -> str:
    """Return the name of the newest manifest's file; empty if it can't be read."""
    try:
        return max(os.listdir(database / "manifest"), default="") if database is not None else ""
    except OSError:
        return ""


def _without(gaps: Sequence[Range], start: bytes, end: bytes | None) -> list[Range]:
    """Return the parts of a range that are outside the gaps."""
    parts: list[Range] = []
    low = start
    for gap_start, gap_end in sorted(gaps, key=lambda gap: gap[0]):
        if (end is not None and gap_start >= end) or (gap_end is not None and gap_end <= low):
            continue
        if gap_start > low:
            parts.append((low, gap_start))
        if gap_end is None:
            return parts
        low = max(low, gap_end)
    if end is None or low < end:
        parts.append((low, end))
    return parts
