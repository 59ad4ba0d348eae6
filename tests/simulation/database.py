"""A double of SlateDB in memory: one writer, which a later one fences; a WAL; and what a power loss leaves of it.

The package's own classes read and write through their interface to the binding (:class:`.SlateBinding`), so only the
database behind it is simulated. ``visible`` has all writes of the writer, ``durable`` those that a flush has written,
``synced`` those that survive a power loss.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, cast
from weakref import WeakSet

from sortedcontainers import SortedDict

from kombu_opendata.broker.standby.active_record import ActiveRecord, BucketRecord, RecordChanged, VersionedRecord
from kombu_opendata.errors import StoreError, StoreFenced
from kombu_opendata.staging.folder import LocalFolder
from kombu_opendata.staging.folder_url import StagedFolder
from kombu_opendata.storage.clock import Clock
from kombu_opendata.storage.commit import recovery
from kombu_opendata.storage.commit.file_calls import FileCalls
from kombu_opendata.storage.commit.journal import Journal
from kombu_opendata.storage.commit.payload_segments import BucketSegments, LocalSegments, Segments
from kombu_opendata.storage.commit.store_files import StoreFiles
from kombu_opendata.storage.databases import Databases, OpenDatabase
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.slatedb import ffi
from kombu_opendata.storage.slatedb.caches import BlockCache
from kombu_opendata.storage.slatedb.ffi import Range, ScanSettings, SlateBinding, WriteBatch
from kombu_opendata.storage.slatedb.object_store import Location, translated
from kombu_opendata.storage.slatedb.rows import Pair
from kombu_opendata.storage.slatedb.slate_admin import DiskUse, Manifest
from kombu_opendata.storage.slatedb.slate_settings import SlateSettings
from kombu_opendata.storage.slatedb.store_writer import MayOpen, SlateStore

from .disk import Disk
from .loop import current_process

Rows = dict[bytes, bytes]
#: the time limit of a request to an active record, as of the package's
_RECORD_SECONDS = 5.0


class Bucket:
    """The files of one database, wherever they are, and the store's active record.

    Attributes:
        slow_seconds: the longest delay of the requests of a process, by its name.
        silent: names of the processes whose requests get no answer until they are removed.
        failures: kinds of the next requests that fail: "write" before it has an effect, "answer" after it.
        flipped: keys whose stored bytes were changed, which a checksum detects.
        damaged_until: a broker may refuse the store or its journal until then.
    """

    def __init__(self, random_numbers: random.Random, count: Callable[[str], None], *, is_remote: bool) -> None:
        self.random, self._count, self.is_remote = random_numbers, count, is_remote
        self.durable: Rows = {}
        self.synced: Rows = {}
        self.epoch = 0
        self.seq = 0
        self.slow_seconds: dict[str, float] = {}
        self.silent: set[str] = set()
        self.failures: list[str] = []
        self.flipped: set[bytes] = set()
        self.damaged_until = 0.0
        self.record: tuple[ActiveRecord, int] | None = None

    async def request(self) -> None:
        """Take the time of a request."""
        self._count("store")
        name = current_process().name
        seconds = self.random.uniform(0.002, 0.03) if self.is_remote else self.random.uniform(0.0, 0.002)
        await asyncio.sleep(seconds + self.random.uniform(0.0, self.slow_seconds.get(name, 0.0)))
        while name in self.silent:  # noqa: ASYNC110 - an event would wake all together
            await asyncio.sleep(0.2)

    def fault(self, kind: str) -> bool:
        """Return True if a fault of this kind is planned for now."""
        if kind in self.failures:
            self.failures.remove(kind)
            return True
        return False

    @property
    def is_damaged(self) -> bool:
        return asyncio.get_running_loop().time() < self.damaged_until

    def lose_power(self) -> None:
        self.durable = dict(self.synced)


class Database:
    """The handle of a writer.

    Args:
        disk: with the files of the database; None if these are in a bucket.
    """

    def __init__(self, bucket: Bucket, disk: Disk | None) -> None:
        self.bucket, self._disk = bucket, disk
        bucket.epoch += 1
        self.epoch = bucket.epoch
        self.visible: SortedDict[bytes, bytes] = SortedDict(bucket.durable)
        self._pending: list[list[tuple[bytes, bytes | None]]] = []
        self.scans: WeakSet[Scan] = WeakSet()
        self._closed: Any = None

    @property
    def is_fenced(self) -> bool:
        return self.bucket.epoch != self.epoch

    def check(self) -> None:
        if self._closed is not None:
            raise self._closed

    def _close(self, reason: str, text: str) -> Exception:
        u = ffi.public()
        self._closed = u.Error.Closed(u.CloseReason[reason], text)
        return self._closed  # type: ignore[no-any-return]

    async def write(self, changes: list[tuple[bytes, bytes | None]]) -> None:
        self.check()
        for scan in self.scans:
            scan.freeze()
        for key, value in changes:
            if value is None:
                self.visible.pop(key, None)
            else:
                self.visible[key] = value
        self._pending.append(changes)

    async def flush_with_options(self, _options: Any) -> None:
        self.check()
        bucket = self.bucket
        pending = len(self._pending)
        await bucket.request()
        while self._disk is not None and self._disk.is_full:  # noqa: ASYNC110 - SlateDB tries again and again
            await asyncio.sleep(0.05)
        self.check()
        if self.is_fenced:
            raise self._close("FENCED", "a newer writer has the database")
        if bucket.fault("write"):
            raise self._close("UNKNOWN", "a write failed")
        for changes in self._pending[:pending]:
            bucket.seq += 1
            for key, value in changes:
                bucket.flipped.discard(key)
                if value is None:
                    bucket.durable.pop(key, None)
                else:
                    bucket.durable[key] = value
        del self._pending[:pending]
        if bucket.fault("answer"):
            raise self._close("UNKNOWN", "a write was not answered")
        if bucket.is_remote:
            await asyncio.sleep(bucket.random.uniform(0.001, 0.01))

    async def shutdown(self) -> None:
        if self._closed is None:
            await self.flush_with_options(None)
            self._close("CLEAN", "closed")
        self.check_closed()

    def check_closed(self) -> None:
        u = ffi.public()
        if self._closed.reason not in (u.CloseReason.CLEAN, u.CloseReason.FENCED):
            raise self._closed

    def status(self) -> Any:
        return self

    @property
    def durable_seq(self) -> int:
        return self.bucket.seq

    def value(self, key: bytes) -> bytes | None:
        if key in self.bucket.flipped:
            raise ffi.public().Error.Data("a checksum does not match")
        return cast("bytes | None", self.visible.get(key))


class Scan:
    """An iterator over rows, as they were when it was made."""

    def __init__(self, db: Database, start: bytes, end: bytes | None, *, descending: bool) -> None:
        self._db, self._start, self._end, self._descending = db, start, end, descending
        self._rows: list[Pair] | None = None
        self._keys = db.visible.irange(start or None, end, (True, False), reverse=descending)
        db.scans.add(self)

    def freeze(self) -> None:
        """Read the remaining rows before they change."""
        if self._rows is None:
            self._rows = [(key, self._db.visible[key]) for key in self._keys]
            self._rows.reverse()

    def next(self, limit: int) -> list[Pair]:
        rows: list[Pair] = []
        while len(rows) < limit:
            if self._rows is not None:
                if not self._rows:
                    break
                rows.append(self._rows.pop())
                continue
            key = next(self._keys, None)
            if key is None:
                break
            if key in self._db.bucket.flipped:
                raise ffi.public().Error.Data("a checksum does not match")
            rows.append((key, self._db.visible[key]))
        return rows


class _Batch:
    def __init__(self) -> None:
        self.changes: list[tuple[bytes, bytes | None]] = []

    def put(self, key: bytes, value: bytes) -> None:
        self.changes.append((bytes(key), bytes(value)))

    def delete(self, key: bytes) -> None:
        self.changes.append((bytes(key), None))


class SimulatedBinding(SlateBinding):
    """The calls that carry bytes, to a simulated database."""

    def batch(self) -> WriteBatch:
        return WriteBatch(_Batch())

    async def _read(self, db: Database) -> None:
        db.check()
        random_numbers = db.bucket.random
        if random_numbers.random() < 0.2:  # the others are in a cache
            await db.bucket.request()
            db.check()

    async def get(self, db: Any, key: bytes) -> bytes | None:
        await self._read(db)
        found: bytes | None = db.value(key)
        return found

    async def get_many(self, db: Any, keys: Sequence[bytes]) -> list[bytes | None]:
        await self._read(db)
        return [db.value(key) for key in keys]

    async def scan(
        self, db: Any, start: bytes, end: bytes | None, settings: ScanSettings, *, in_thread: bool = False
    ) -> Scan:
        await self._read(db)
        return Scan(db, start, end, descending=settings.descending)

    async def next_batch(self, iterator: Any, limit: int, *, in_thread: bool = False) -> list[Pair]:
        return iterator.next(limit)  # type: ignore[no-any-return]

    async def scan_many(self, db: Any, ranges: Sequence[Range], limit: int, settings: ScanSettings) -> list[list[Pair]]:
        await self._read(db)
        return [Scan(db, *bounds, descending=settings.descending).next(limit) for bounds in ranges]


class SimulatedStore(SlateStore):
    """The package's writer on a simulated database."""

    def __init__(self, location: Location, db: Database, clock: Clock) -> None:
        super().__init__(location, db, SimulatedBinding())
        self.database = db
        self.admin = SimulatedAdmin(db)  # type: ignore[assignment]
        self.clock = clock

    async def write(self, batch: WriteBatch) -> None:
        if len(batch):
            with translated(self.url):
                await self.database.write(batch.raw.changes)

    async def reopen(self, settings: SlateSettings, may_open: MayOpen | None = None) -> bool:
        await self.flush_wal()
        if may_open is not None:
            await may_open()
        if self.database.is_fenced:
            raise StoreFenced(f"another process wrote to {self.url}", url=self.url)
        self.settings = settings
        return True

    async def collect_garbage(self, **_ages: Any) -> bool:
        await self.database.bucket.request()
        return True


class SimulatedAdmin:
    """The administration of a database without tables."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def disk_use(self, now_ms: int) -> DiskUse:
        await self._db.bucket.request()
        return DiskUse(now_ms, sum(map(len, self._db.bucket.durable.values())), {}, ())

    async def is_held(self, _now_ms: int) -> bool:
        return False

    async def manifest_at_rest(self) -> Manifest | None:
        return None

    async def checkpoints(self) -> list[Any]:
        return []


class SimulatedFiles(StoreFiles):
    """The sync of the files of a database in a folder."""

    def __init__(self, bucket: Bucket, disk: Disk) -> None:
        super().__init__(None, sync=False)
        self._bucket, self._disk = bucket, disk

    async def sync(self) -> bool:
        covered = dict(self._bucket.durable)
        await self._bucket.request()
        if self._disk.is_full:
            return False
        try:
            self._disk.check("sync of the store")
        except OSError as exc:
            raise StoreError("the files of the store can't be synced") from exc
        self._bucket.synced = covered
        return True

    async def end(self, admin: Any, seconds: float) -> None:
        await self.sync()


class SimulatedDatabases(Databases):
    """The databases of a simulated store with one instance.

    Args:
        disk: of the host; None if the store is a bucket.
        calls: for the journal, and for payload segments.
        new_token: returns the name of a broker's run.
    """

    def __init__(
        self,
        url: str,
        bucket: Bucket,
        disk: Disk | None,
        calls: tuple[FileCalls, FileCalls] | None,
        new_token: Callable[[], str],
    ) -> None:
        super().__init__(url, new_token)
        self._bucket, self._disk, self._calls = bucket, disk, calls

    async def exists(self, instance: str) -> bool:
        return instance in self.names()

    def names(self) -> list[str]:
        return ["default"]

    async def open(
        self, instance: str, clock: Clock, settings: EngineSettings, cache: BlockCache | None = None
    ) -> OpenDatabase:
        bucket, disk = self._bucket, self._disk
        power_lost, journal, sizes = False, None, settings.sizes
        staged = StagedFolder(self.url, instance)
        segments: Segments = BucketSegments(staged, self._new_token(), sizes.bucket_large_body_bytes)
        files: StoreFiles = StoreFiles(None, sync=False)
        await bucket.request()
        store = SimulatedStore(Location(self.url, None, instance, name=instance), Database(bucket, disk), clock)
        store.settings = settings.slate
        if disk is not None:
            power_lost = disk.power_lost
        await recovery.check_header(store, instance, clock.now_ms())
        if disk is not None:
            assert self._calls is not None
            journal_calls, segment_calls = self._calls
            files = SimulatedFiles(bucket, disk)
            journal = Journal(
                Path(f"/simulated/{instance}.journal"),
                segment_bytes=settings.journal_segment_bytes,
                max_bytes=settings.journal_max_bytes,
                calls=journal_calls,
            )
            local = cast("LocalFolder", staged.open())
            segments = LocalSegments(
                local,
                self._new_token(),
                sizes.large_body_bytes,
                sizes.segment_bytes,
                sizes.own_segment_bytes,
                calls=segment_calls,
            )
        return OpenDatabase(store, journal, files, settings, power_lost, segments)

    async def read_ahead(self, instance: str, settings: EngineSettings, clock: Clock) -> BlockCache:
        raise StoreError("there is nothing to read ahead in the simulation")


class SimulatedRecord(BucketRecord):
    """The active record of a simulated bucket. A write that is given up may have its effect later."""

    def __init__(self, bucket: Bucket) -> None:
        self.url = "s3://simulated"
        self._bucket = bucket

    async def _answer(self, request: Coroutine[Any, Any, Any]) -> Any:
        """Return the answer to a request that does not end with the wait for it."""
        work = asyncio.ensure_future(request)
        done, _ = await asyncio.wait([work], timeout=_RECORD_SECONDS)
        if not done:
            work.add_done_callback(asyncio.Future.exception)
            raise StoreError("no answer in time")
        return work.result()

    async def read(self) -> VersionedRecord | None:
        await self._answer(self._bucket.request())
        if self._bucket.fault("record read"):
            raise StoreError("no answer")
        if self._bucket.record is None:
            return None
        record, version = self._bucket.record
        return VersionedRecord(record, {"e_tag": str(version)})

    async def write(self, record: ActiveRecord, replacing: VersionedRecord | None) -> VersionedRecord:
        written: VersionedRecord = await self._answer(self._write(record, replacing))
        return written

    async def _write(self, record: ActiveRecord, replacing: VersionedRecord | None) -> VersionedRecord:
        await self._bucket.request()
        if self._bucket.fault("record write"):
            raise StoreError("no answer")
        current = self._bucket.record
        if (None if replacing is None else replacing.version) != (
            None if current is None else {"e_tag": str(current[1])}
        ):
            raise RecordChanged
        version = 1 if current is None else current[1] + 1
        self._bucket.record = record, version
        if self._bucket.fault("record answer"):
            raise StoreError("no answer")
        return VersionedRecord(record, {"e_tag": str(version)})
