"""A store, read only, whether its broker runs or not.

A broker that runs is not fenced. So that it keeps what is read, a reader beside it holds a checkpoint (:mod:`.hold`);
nothing else is written. Commits that are in the journal only are replayed in memory.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType

from ...errors import CorruptRecord, NewerFormat, StoreChanged, StoreError
from ...storage.clock import Clock, SystemClock
from ...storage.records import header, journal_position, keys
from ...storage.records.header import StoreHeader
from ...storage.rows import Rows
from ...storage.slate_reader import ReadOnlyStore
from ...url import LOCK_NAME
from ..files.checkpoint_hold import Hold
from ..files.journal_files import JournalTail, read_tail
from ..files.location import StoreLocation, find_store
from ..findings import Finding, finding
from .journal_overlay import Changes, replayed

Pair = tuple[bytes, bytes]
Range = tuple[bytes, bytes | None]

_TRIES = 5
#: a run of the journal's record numbers that looks interrupted while the broker goes on
_UNSETTLED = frozenset({"journal-gap", "journal-sequence", "journal-behind", "journal-record"})


class OfflineStore:
    """The records of one instance as they were when it was opened. Use :func:`open_store`.

    Attributes:
        location: where it is.
        header: what the store says of itself; None where that is missing or damaged (see ``problems``).
        journal: what the journal has besides; None where a store has none.
        broker_pid: of the broker that runs on it; 0 for an unknown one, None when there is none.
        problems: what was wrong when it was opened, if damage is tolerated.
        unreadable: ranges of keys that are left out by scans, as they can't be read.
        is_readable: False when not one record can be read.
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
        self._changed: list[bytes] = []

    @property
    def is_readable(self) -> bool:
        return self._reader is not None

    @property
    def unheld(self) -> str | None:
        """Why nothing keeps the files that are read, though a broker may delete them; None when that is not so."""
        return None if self.hold is None else self.hold.why_not

    # ------------------------------------------------------------------ reading
    async def get(self, key: bytes) -> bytes | None:
        """The value of ``key``; None when there is none.

        Raises:
            StoreChanged: a broker has deleted what holds it.
            CorruptRecord: what holds it is damaged.
            StoreError: it can't be read.
        """
        if key in self._changes:
            return self._changes[key]
        try:
            return await self._base.get(key)
        except StoreError as exc:
            self._check_deleted(exc)
            raise

    async def scan_batches(self, start: bytes, end: bytes | None, *, batch: int = 1000) -> AsyncIterator[list[Pair]]:
        """The pairs with ``start <= key < end`` by key, in lists; none is empty.

        Ranges that are known as unreadable are left out, and one that turns out to be is added to ``unreadable``.

        Raises:
            StoreChanged: a broker has deleted what holds it.
            StoreError: it can't be read, for a reason that is no damage.
        """
        async for rows in self.scan_rows(start, end, batch=batch):
            yield rows.pairs()

    async def scan_rows(self, start: bytes, end: bytes | None, *, batch: int = 1000) -> AsyncIterator[Rows]:
        """As :meth:`scan_batches`, each batch in one piece."""
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
        """Tell a file that is gone as a broker has replaced it, which may have begun meanwhile, from a lost one."""
        is_kept = self.hold is not None and self.hold.why_not is None
        if is_kept or "not found" not in str(exc.__cause__):
            return
        root, database = self.location.root, self.location.database
        if root is None or running_broker(root) is not None or _newest_manifest(database) != self._manifest:
            text = f"{self.location} was written while it was read, and files that it reads are gone; open it again"
            raise StoreChanged(text) from exc

    def _is_damage(self, exc: StoreError) -> bool:
        """Whether this is damage that is tolerated."""
        return self._tolerant and _is_damage(exc, self.location, self.broker_pid)

    async def scan(self, start: bytes, end: bytes | None, *, limit: int | None = None) -> list[Pair]:
        """The pairs with ``start <= key < end``, at most ``limit``; for small ranges."""
        found: list[Pair] = []
        async for rows in self.scan_batches(start, end, batch=min(limit or 1000, 1000)):
            found += rows
            if limit is not None and len(found) >= limit:
                return found[:limit]
        return found

    def can_tell(self, key: bytes) -> bool:
        """Whether a record that was not found is really not there, and not just unreadable."""
        return not any(low <= key and (high is None or key < high) for low, high in self.unreadable)

    async def _merged(self, start: bytes, end: bytes | None, batch: int) -> AsyncIterator[Rows]:
        """The reader's rows with the journal's changes."""
        changed = self._changed
        at = bisect_left(changed, start)
        last = len(changed) if end is None else bisect_left(changed, end)
        async for rows in self._base.scan_rows(start, end, batch=batch):
            until = min(bisect_right(changed, rows.last_key), last)
            merged = self._merge(rows, changed[at:until])
            at = max(at, until)
            if merged:
                yield merged
        for low in range(at, last, batch):
            rest = self._merge(Rows.of([]), changed[low : min(low + batch, last)])
            if rest:
                yield rest

    def _merge(self, rows: Rows, changed: Sequence[bytes]) -> Rows:
        if not changed:
            return rows
        merged = dict(rows.pairs())
        for key in changed:
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
            StoreChanged: the broker was too fast; open the store again.
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
                self.header = header.decode(keys.STORE_HEADER_KEY, value)
                return
            text = f"there is no store header in {self.location}: it is another program's database, or damaged"
            failure: StoreError = CorruptRecord(text, key=keys.STORE_HEADER_KEY, offset=0)
        except (NewerFormat, StoreChanged):
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
        try:
            value = await self.get(keys.JOURNAL_POSITION_KEY)
            if value is None and not folder.is_dir():
                return
            position = 0 if value is None else journal_position.decode(keys.JOURNAL_POSITION_KEY, value)
        except StoreError as exc:
            self._journal_problem(finding("journal-position", exc.text, key=keys.JOURNAL_POSITION_KEY), exc)
            return
        self.journal = tail = read_tail(folder, position)
        if self.broker_pid is not None:
            tail.findings = [found for found in tail.findings if found.code != "journal-torn"]
            if not self._settle_for_less and any(found.code in _UNSETTLED for found in tail.findings):
                raise StoreChanged(f"the journal of {self.location} changed while it was read")
        if not tail.is_whole and not self._tolerant:
            wrong = next(found for found in tail.findings if found.code in _UNSETTLED or found.code == "journal-header")
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
        self._changed = sorted(self._changes)

    def _journal_problem(self, found: Finding, failure: StoreError) -> None:
        if not self._is_damage(failure):
            raise failure
        self.problems.append(found)

    async def close(self) -> None:
        """Close the reader."""
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


async def open_store(
    folder_or_url: str | Path,
    instance: str | None = None,
    *,
    clock: Clock | None = None,
    tolerate_damage: bool = False,
    deadline_seconds: float = 30,
    who: str = "reader",
) -> OfflineStore:
    """Open an instance of a store for reading; ``async with await open_store(…) as store``.

    What is shown is one state, as of the opening: the one after some commit of the broker, with all commits before it.
    While a broker runs on a local folder, that is its last commit at the time when the journal was read; on an object
    store it is the last batch that was durable. Where SlateDB shows another state while the store is opened, that is
    noticed, and it is opened again.

    Beside a running broker of the same user, and in a bucket, the reader makes a checkpoint in SlateDB's manifest,
    which keeps the files that it reads until it is closed, or has been dead for three minutes. Where it may not write,
    ``unheld`` says so: the broker deletes files some 15 seconds after it has replaced them, and then reading fails
    with StoreChanged. So it may where a broker begins on a folder that had none. Nothing else is written to the store;
    no lock is taken.

    Args:
        folder_or_url: a store's folder, ``opendata:///folder``, ``file:///folder``, or a bucket's URL (``s3://…``).
        instance: None for the only one, or ``default``.
        who: of the checkpoint's name, as the broker's status shows it.
        tolerate_damage: open what can be opened, and say in ``problems`` what is wrong. A store that does not answer is
            an error all the same.

    Raises:
        StoreError: there is no such store or instance (the text lists those that are there), or it does not answer.
        StoreChanged: the broker wrote so fast that each of five tries saw two states; so may a later read, then.
        CorruptRecord: it is damaged.
        NewerFormat: it was written by a newer version of this package.
        InvalidURL: the URL is none of a store.
    """
    location = find_store(folder_or_url, instance)
    clock = clock or SystemClock()
    for _ in range(_TRIES - 1):
        with contextlib.suppress(StoreChanged):
            return await _open(location, clock, tolerate_damage, deadline_seconds, who)
    return await _open(location, clock, tolerate_damage, deadline_seconds, who, is_last_try=True)


async def _open(
    location: StoreLocation,
    clock: Clock,
    tolerant: bool,
    deadline_seconds: float,
    who: str,
    *,
    is_last_try: bool = False,
) -> OfflineStore:
    problems: list[Finding] = []
    reader = None
    hold = Hold(location, who) if location.root is None or running_broker(location.root) is not None else None
    if hold is not None:
        await hold.before()
    for skip_wal in (False, True):
        try:
            reader = await ReadOnlyStore.open(
                location.url, location.instance, frozen=True, skip_wal=skip_wal, deadline_seconds=deadline_seconds
            )
            break
        except StoreError as exc:
            if not tolerant or not _is_damage(exc, location, running_broker(location.root)):
                raise
            problems.append(finding("slatedb-open", _opening(skip_wal, exc), file=str(location.database or "")))
    store = OfflineStore(location, reader, clock)
    store.problems, store.skipped_wal = problems, bool(problems)
    if reader is None:
        return store
    store.hold = hold
    try:
        if hold is not None and not await hold.take():
            raise StoreChanged(f"tables of {location} were replaced while it was opened")
        await store.load(tolerant=tolerant, is_last_try=is_last_try)
    except BaseException:
        await store.close()
        raise
    return store


def _is_damage(exc: StoreError, location: StoreLocation, broker_pid: int | None) -> bool:
    """Whether a store can't be read as it is damaged.

    SlateDB says of some damage that the store is unavailable. A bucket may be that, and a folder whose broker changes
    files; any other folder never is.
    """
    if isinstance(exc, CorruptRecord):
        return True
    return location.root is not None and broker_pid is None and not isinstance(exc, StoreChanged)


def _opening(skip_wal: bool, exc: StoreError) -> str:
    return f"SlateDB can't open the database{' even without its WAL' if skip_wal else ''}: {exc.text}"


def _newest_manifest(database: Path | None) -> str:
    """The name of its file; empty where it can't be told."""
    try:
        return max(os.listdir(database / "manifest"), default="") if database is not None else ""
    except OSError:
        return ""


def running_broker(root: Path | None) -> int | None:
    """The process that holds the lock on a store's folder (0: it can't be told); None when nobody does, or not here."""
    if root is None:
        return None
    try:
        status = os.lstat(root / LOCK_NAME)  # a link may lead to the lock of any process
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in locks:
        fields = line.split()
        if "FLOCK" in fields and wanted in fields:
            return int(fields[4])
    return None


def _without(gaps: Sequence[Range], start: bytes, end: bytes | None) -> list[Range]:
    """The parts of a range that are in none of the gaps."""
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
