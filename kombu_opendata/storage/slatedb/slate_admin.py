"""Administration of a SlateDB database: its checkpoints, its tables, and the deletion of unneeded files.

When SlateDB's compactor replaces tables, it creates a checkpoint without a name, which keeps the old tables for
:attr:`~.slate_settings.SlateSettings.replaced_seconds`. Readers of this package create checkpoints with a name. A
table may be deleted if neither the current manifest nor a checkpoint that has not expired refers to it. The caller must
check that this process does not read from it: see :meth:`~.store_writer.SlateStore.collect_garbage`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import ffi
from .object_store import Location, translated


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint, which keeps the files of an earlier manifest.

    Attributes:
        name: its creator; empty for SlateDB's compactor.
        expires_at_ms: the time of its expiry; None for no expiry.
    """

    id: str
    name: str
    manifest_id: int
    created_at_ms: int
    expires_at_ms: int | None


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of a database's content.

    Attributes:
        tables: id → approximate bytes.
        runs: the numbers of the sorted runs; a compaction adds one run, or reduces their number.
        unsorted: the tables that are not in a run yet, newest first.
        replay_after_wal: the last WAL file whose rows are all in the tables.
    """

    id: int
    tables: dict[str, int]
    runs: tuple[int, ...]
    unsorted: tuple[str, ...]
    checkpoints: tuple[Checkpoint, ...]
    replay_after_wal: int


class Compaction(NamedTuple):
    """One compaction.

    Attributes:
        status: ``submitted``, ``scheduled``, ``running``, ``compacted``, ``completed`` or ``failed``.
        sources: the number of tables and runs that it merges.
        processed_bytes: the number of bytes that it has read.
    """

    status: str
    planned_at_ms: int
    sources: int
    processed_bytes: int
    is_active: bool

    def report(self) -> dict[str, Any]:
        return dict(zip(self._fields, self[:4], strict=False))


@dataclass(frozen=True, slots=True)
class DiskUse:
    """The disk space of a database's tables.

    Attributes:
        live_bytes: the size of the tables in use. Some of their records may have been overwritten or deleted since.
        held: replaced tables that a checkpoint keeps: id → bytes.
        checkpoints: the checkpoints that have not expired.
        tables, runs, unsorted: the number of tables in use, of sorted runs, and of tables that are in no run yet.
        compactions: the compactions that run or wait, and the last compaction that ended.
    """

    at_ms: int
    live_bytes: int
    held: dict[str, int]
    checkpoints: tuple[Checkpoint, ...]
    tables: int = 0
    runs: int = 0
    unsorted: int = 0
    compactions: tuple[Compaction, ...] = ()


class SlateAdmin:
    """The administration of one database, which does not fence its writer.

    All methods raise StoreError if the store fails.
    """

    def __init__(self, location: Location) -> None:
        self._url = location.url
        self._is_local = location.folder is not None
        self._admin: Any = ffi.public().AdminBuilder(location.path, location.store).build()
        self._tables: dict[int, dict[str, int]] = {}  # tables of the manifests that checkpoints keep

    # ------------------------------------------------------------------ checkpoints
    async def checkpoints(self) -> list[Checkpoint]:
        """Return all checkpoints of the current manifest, expired ones included."""
        with translated(self._url):
            return [_checkpoint(record) for record in await self._admin.list_checkpoints(None)]

    async def is_held(self, now_ms: int) -> bool:
        """Return True if a reader keeps an earlier state."""
        return any(
            checkpoint.name and (checkpoint.expires_at_ms or now_ms) >= now_ms
            for checkpoint in await self.checkpoints()
        )

    async def create_checkpoint(self, name: str, lifetime_seconds: float) -> tuple[str, int]:
        """Keep the tables of the current manifest for this time; return the checkpoint's and the manifest's id."""
        options = ffi.public().CheckpointOptions(lifetime_ms=int(lifetime_seconds * 1000), source=None, name=name)
        with translated(self._url):
            created = await self._admin.create_detached_checkpoint(options)
        return created.id, created.manifest_id

    async def refresh_checkpoint(self, id: str, lifetime_seconds: float) -> None:
        """Set the expiry of a checkpoint to this time from now."""
        with translated(self._url):
            await self._admin.refresh_checkpoint(id, int(lifetime_seconds * 1000))

    async def delete_checkpoint(self, id: str) -> None:
        """Delete a checkpoint, if there is one with this id."""
        with translated(self._url):
            await self._admin.delete_checkpoint(id)

    # ------------------------------------------------------------------ tables
    async def manifest(self, id: int | None = None) -> Manifest | None:
        """Return a manifest, by default the current one; None if it was deleted.

        A thread decodes it, at 12 µs per table.
        """

        def read() -> Manifest | None:
            record = asyncio.run(self._admin.read_manifest(id))
            return None if record is None else _manifest(record)

        with translated(self._url):
            return await asyncio.to_thread(read)

    async def disk_use(self, now_ms: int) -> DiskUse:
        """Return the current disk space of the tables."""
        current = await self.manifest()
        if current is None:
            return DiskUse(now_ms, 0, {}, ())
        holding = tuple(held for held in current.checkpoints if (held.expires_at_ms or now_ms + 1) > now_ms)
        self._tables = {id: self._tables[id] for held in holding if (id := held.manifest_id) in self._tables}
        held_tables: dict[str, int] = {}
        for checkpoint in holding:
            if checkpoint.manifest_id not in self._tables:
                earlier = await self.manifest(checkpoint.manifest_id)
                self._tables[checkpoint.manifest_id] = earlier.tables if earlier is not None else {}
            held_tables |= self._tables[checkpoint.manifest_id]
        held_tables = {id: size for id, size in held_tables.items() if id not in current.tables}
        with translated(self._url):
            planned = await self._admin.read_compactions(None)
        compactions = () if planned is None else tuple(map(_compaction, planned.recent_compactions))
        return DiskUse(
            at_ms=now_ms,
            live_bytes=sum(current.tables.values()),
            held=held_tables,
            checkpoints=holding,
            tables=len(current.tables),
            runs=len(current.runs),
            unsorted=len(current.unsorted),
            compactions=compactions,
        )

    async def compact_all(self, poll_seconds: float) -> str:
        """Request a compaction of all runs into one; return its id once the compactor has accepted it.

        Returns an empty id if there is no run, if some tables are in no run, or if the compactor is busy; try again
        later, as after an error. No flush may happen during the call.

        The compactor, which checks for work every ``poll_seconds``, must be idle: SlateDB does not notice that a
        requested compaction and one that it planned itself write to the same run, and panics. The request does not
        include tables that are in no run: until these were compacted, SlateDB would compact no newer tables, and writes
        wait when there are ``l0_max_ssts`` of them.
        """
        u = ffi.public()
        manifest = await self.manifest_at_rest()
        if manifest is None or manifest.unsorted or not manifest.runs:
            return ""
        await asyncio.sleep(1.5 * poll_seconds)
        if await self.manifest_at_rest() != manifest:
            return ""
        sources = [u.SourceId.SORTED_RUN(id) for id in manifest.runs]
        spec = u.CompactionSpec.TIERED(segment=b"", sources=sources, destination=min(manifest.runs))
        with translated(self._url):
            submitted = await self._admin.submit_compaction(spec)
            for _ in range(20):
                compaction = await self._admin.read_compaction(submitted.id, None)
                if compaction is None or compaction.status is not u.CompactionStatus.SUBMITTED:
                    break
                await asyncio.sleep(poll_seconds / 10)
        return str(submitted.id)

    async def manifest_at_rest(self) -> Manifest | None:
        """Return the current manifest; None while a compaction is planned or running."""
        with translated(self._url):
            planned = await self._admin.read_compactions(None)
        if planned is None or any(compaction.active for compaction in planned.recent_compactions):
            return None
        return await self.manifest()

    async def is_compacted(self, id: str) -> bool | None:
        """Return True if a compaction succeeded, False if it failed, and None while it is running.

        SlateDB's list has only the compaction that ended last. Earlier versions of the list, which are kept for at
        least a minute, have the others. If two compactions end together, these versions show one of them only with the
        status "compacted", not "completed".
        """
        status = ffi.public().CompactionStatus
        with translated(self._url):
            compaction = await self._admin.read_compaction(id, None)
            if compaction is None:
                for version in reversed(await self._admin.list_compactions(None, None)):
                    compaction = next((entry for entry in version.recent_compactions if entry.id == id), None)
                    if compaction is not None:
                        return compaction.status in (status.COMPACTED, status.COMPLETED)
                return False
        return {status.COMPLETED: True, status.FAILED: False}.get(compaction.status)

    async def collect_garbage(
        self, *, wal_seconds: float, manifest_seconds: float, table_seconds: float | None
    ) -> None:
        """Delete the files that neither the current manifest nor a checkpoint needs and that are older than these ages.

        ``table_seconds``: None for no deletion of tables.
        """
        u = ffi.public()

        def older_than(seconds: float | None) -> Any:
            options = u.GarbageCollectorDirectoryOptions
            return None if seconds is None else options(min_age_ms=int(seconds * 1000), dry_run=False)

        async def collect(wal: float | None, manifest: float | None, tables: float | None) -> None:
            options = u.GarbageCollectorOptions(
                wal_options=older_than(wal),
                manifest_options=older_than(manifest),
                compactions_options=older_than(manifest),
                compacted_options=older_than(tables),
                # SlateDB's writes to a local folder have no condition, so it can't advance such a file: with one, it
                # collects manifests once and then never again. The lock on the folder keeps other writers away.
                disable_boundary_files=self._is_local,
            )
            await self._admin.run_gc_once(options)

        with translated(self._url):
            if table_seconds is not None:  # first: soon after the caller has checked that this is allowed
                await collect(None, None, table_seconds)
            await collect(wal_seconds, manifest_seconds, None)


async def collect_all(admin: SlateAdmin) -> None:
    """Delete all files that the current manifest and named checkpoints don't need, after the database was closed."""
    for checkpoint in await admin.checkpoints():
        if not checkpoint.name:
            await admin.delete_checkpoint(checkpoint.id)
    await admin.collect_garbage(wal_seconds=0, manifest_seconds=60, table_seconds=0)


def _checkpoint(record: Any) -> Checkpoint:
    expires = record.expire_time_secs
    return Checkpoint(
        id=record.id,
        name=record.name or "",
        manifest_id=record.manifest_id,
        created_at_ms=record.create_time_secs * 1000,
        expires_at_ms=None if expires is None else expires * 1000,
    )


def _manifest(record: Any) -> Manifest:
    views = [*record.l0, *(view for run in record.compacted for view in run.sst_views)]
    tables = {view.sst.id.value: view.estimated_size_bytes for view in views}
    runs = tuple(run.id for run in record.compacted)
    unsorted = tuple(view.id for view in record.l0)
    checkpoints = tuple(map(_checkpoint, record.checkpoints))
    return Manifest(record.id, tables, runs, unsorted, checkpoints, record.replay_after_wal_id)


def _compaction(record: Any) -> Compaction:
    status = record.status.name.lower()
    at_ms = ulid_time_ms(record.id)
    return Compaction(status, at_ms, len(record.spec.sources), record.bytes_processed, record.active)


# ---- ULIDs, the ids of tables and compactions: a time in ms, of 48 bits, and 80 random bits, as 26 digits of 5 bits
_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_BASE_32 = str.maketrans(_DIGITS, "0123456789ABCDEFGHIJKLMNOPQRSTUV")
_RANDOM_BITS = 80


def ulid_number(id: str) -> int:
    """Return the number of a ULID's digits; raise ValueError if it is not a ULID."""
    if len(id) != 26 or not set(id.upper()) <= set(_DIGITS):
        raise ValueError(f"{id!r} is not a ULID")
    return int(id.upper().translate(_BASE_32), 32)


def ulid_time_ms(id: str) -> int:
    """Return the time in a ULID; 0 if it is none."""
    try:
        return ulid_number(id) >> _RANDOM_BITS
    except ValueError:
        return 0


def earlier_ulid(id: str, by_ms: int) -> str:
    """Return the ULID with the same random bits and a time that is earlier by ``by_ms``."""
    number = ulid_number(id) - (by_ms << _RANDOM_BITS)
    return "".join(_DIGITS[number >> shift & 31] for shift in range(125, -1, -5))
