"""Administration of a SlateDB database: its checkpoints, its tables, and the deletion of unneeded files.

When SlateDB's compactor replaces tables, it leaves a checkpoint without a name, which keeps the old tables for
:attr:`~.slate_settings.SlateSettings.replaced_seconds`. Our readers make checkpoints with a name. A table may be
deleted when neither the current manifest nor a checkpoint that has not expired refers to it. The caller must know
whether this process still reads from it: see :meth:`~.store_writer.SlateStore.collect_garbage`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import ffi
from .object_store import Location
from .slate_errors import translated
from .ulids import ulid_time_ms


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Keeps the files of an earlier manifest.

    Attributes:
        name: its maker; empty for SlateDB's compactor.
        expires_at_ms: until when it counts; None for ever.
    """

    id: str
    name: str
    manifest_id: int
    created_at_ms: int
    expires_at_ms: int | None


@dataclass(frozen=True, slots=True)
class MadeCheckpoint:
    """A new checkpoint, and the manifest that it keeps."""

    id: str
    manifest_id: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of a database's content.

    Attributes:
        tables: id → approximate bytes.
        runs: the numbers of the sorted runs; a compaction adds one, or leaves one fewer.
        unsorted: the tables that are in no run yet, newest first.
        replay_after_wal: the WAL file after which the tables lack what is in the WAL.
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
        planned_at_ms: when it was planned.
        sources: how many tables and runs it merges.
        processed_bytes: how much it has read.
    """

    status: str
    planned_at_ms: int
    sources: int
    processed_bytes: int
    is_active: bool

    def report(self) -> dict[str, Any]:
        """For the status call."""
        return {
            "status": self.status, "planned_at_ms": self.planned_at_ms, "sources": self.sources,
            "processed_bytes": self.processed_bytes,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class DiskUse:
    """The disk space of a database's tables.

    Attributes:
        live_bytes: the size of the tables in use. Some of their records may have been overwritten or deleted since.
        held: replaced tables that a checkpoint keeps: id → bytes.
        checkpoints: those that have not expired.
        tables, runs, unsorted: the number of tables in use, of sorted runs, and of tables that are in no run yet.
        compactions: those that run or wait, and the one that ended last.
    """

    at_ms: int
    live_bytes: int
    held: dict[str, int]
    checkpoints: tuple[Checkpoint, ...]
    tables: int = 0
    runs: int = 0
    unsorted: int = 0
    compactions: tuple[Compaction, ...] = ()

    @property
    def held_bytes(self) -> int:
        return sum(self.held.values())


class SlateAdmin:
    """The administration of one database, which does not fence its writer.

    All methods raise StoreError if the store fails.
    """

    def __init__(self, location: Location) -> None:
        self._url = location.url
        self._admin: Any = ffi.public().AdminBuilder(location.path, location.store).build()
        self._tables: dict[int, dict[str, int]] = {}  # of the manifests that checkpoints keep

    # ------------------------------------------------------------------ checkpoints
    async def checkpoints(self) -> list[Checkpoint]:
        """All checkpoints of the current manifest, expired ones included."""
        with translated(self._url):
            return [_checkpoint(one) for one in await self._admin.list_checkpoints(None)]

    async def is_held(self, now_ms: int) -> bool:
        """Whether a reader keeps an earlier state."""
        return any(one.name and (one.expires_at_ms or now_ms) >= now_ms for one in await self.checkpoints())

    async def create_checkpoint(self, name: str, lifetime_seconds: float) -> MadeCheckpoint:
        """Keep the tables of the current manifest for this time."""
        options = ffi.public().CheckpointOptions(lifetime_ms=int(lifetime_seconds * 1000), source=None, name=name)
        with translated(self._url):
            made = await self._admin.create_detached_checkpoint(options)
        return MadeCheckpoint(made.id, made.manifest_id)

    async def refresh_checkpoint(self, id: str, lifetime_seconds: float) -> None:
        """Let a checkpoint expire this time from now."""
        with translated(self._url):
            await self._admin.refresh_checkpoint(id, int(lifetime_seconds * 1000))

    async def delete_checkpoint(self, id: str) -> None:
        """Remove a checkpoint, if there is one with this id."""
        with translated(self._url):
            await self._admin.delete_checkpoint(id)

    # ------------------------------------------------------------------ tables
    async def manifest(self, id: int | None = None) -> Manifest | None:
        """A manifest, by default the current one; None if it is gone. A thread decodes it, as a table takes 12 µs."""

        def read() -> Manifest | None:
            found = asyncio.run(self._admin.read_manifest(id))
            return None if found is None else _manifest(found)

        with translated(self._url):
            return await asyncio.to_thread(read)

    async def disk_use(self, now_ms: int) -> DiskUse:
        """The present disk space of the tables."""
        current = await self.manifest()
        if current is None:
            return DiskUse(now_ms, 0, {}, ())
        holding = tuple(one for one in current.checkpoints if one.expires_at_ms is None or one.expires_at_ms > now_ms)
        self._tables = {id: self._tables[id] for one in holding if (id := one.manifest_id) in self._tables}
        held: dict[str, int] = {}
        for one in holding:
            if one.manifest_id not in self._tables:
                earlier = await self.manifest(one.manifest_id)
                self._tables[one.manifest_id] = earlier.tables if earlier is not None else {}
            held |= self._tables[one.manifest_id]
        held = {id: size for id, size in held.items() if id not in current.tables}
        with translated(self._url):
            planned = await self._admin.read_compactions(None)
        compactions = () if planned is None else tuple(map(_compaction, planned.recent_compactions))
        return DiskUse(
            now_ms, sum(current.tables.values()), held, holding,
            len(current.tables), len(current.runs), len(current.unsorted), compactions,
        )  # fmt: skip

    async def compact_all(self, poll_seconds: float) -> str:
        """Let the compactor merge all runs into one; returns the compaction's id once the compactor has accepted it.

        Returns an empty id if there is no run, if some tables are in no run, or if the compactor is busy; try again a
        moment later, as after an error. Nothing may be flushed meanwhile.

        The compactor, which checks for work every ``poll_seconds``, must have found none: if SlateDB did not plan two
        compactions itself, it does not notice that they write to the same run, and panics. Tables that are in no run
        are left out, because SlateDB compacts no newer ones while it compacts some of them, and at most
        ``l0_max_ssts``.
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
                found = await self._admin.read_compaction(submitted.id, None)
                if found is None or found.status is not u.CompactionStatus.SUBMITTED:
                    break
                await asyncio.sleep(poll_seconds / 10)
        return str(submitted.id)

    async def manifest_at_rest(self) -> Manifest | None:
        """The current manifest; None while a compaction is planned or under way."""
        with translated(self._url):
            planned = await self._admin.read_compactions(None)
        if planned is None or any(one.active for one in planned.recent_compactions):
            return None
        return await self.manifest()

    async def is_compacted(self, id: str) -> bool | None:
        """Whether a compaction was done; None while it is under way.

        SlateDB's list has only the compaction that ended last. Earlier versions of the list, which are kept for a
        minute at least, have the others; if two end together, only with the status "compacted".
        """
        status = ffi.public().CompactionStatus
        with translated(self._url):
            found = await self._admin.read_compaction(id, None)
            if found is None:
                for version in reversed(await self._admin.list_compactions(None, None)):
                    found = next((one for one in version.recent_compactions if one.id == id), None)
                    if found is not None:
                        return found.status in (status.COMPACTED, status.COMPLETED)
                return False
        return {status.COMPLETED: True, status.FAILED: False}.get(found.status)

    async def collect_garbage(
        self,
        *,
        tables: bool = True,
        wal_min_age_seconds: float,
        manifest_min_age_seconds: float,
        compacted_min_age_seconds: float,
    ) -> None:
        """Delete the files that neither the current manifest nor a checkpoint needs and that are older than these ages.

        Args:
            tables: delete tables; otherwise only the other files.
        """
        with translated(self._url):
            if tables:  # alone and first: soon after the caller has checked that it may
                await self._collect(compacted=compacted_min_age_seconds)
            await self._collect(wal=wal_min_age_seconds, manifest=manifest_min_age_seconds)

    async def _collect(
        self, *, wal: float | None = None, manifest: float | None = None, compacted: float | None = None
    ) -> None:
        u = ffi.public()

        def older_than(seconds: float | None) -> Any:
            options = u.GarbageCollectorDirectoryOptions
            return None if seconds is None else options(min_age_ms=int(seconds * 1000), dry_run=False)

        await self._admin.run_gc_once(
            u.GarbageCollectorOptions(
                wal_options=older_than(wal),
                manifest_options=older_than(manifest),
                compactions_options=older_than(manifest),
                compacted_options=older_than(compacted),
            )
        )


async def collect_all(admin: SlateAdmin) -> None:
    """Delete all files that the current manifest and named checkpoints don't need, after the database was closed."""
    for one in await admin.checkpoints():
        if not one.name:
            await admin.delete_checkpoint(one.id)
    await admin.collect_garbage(wal_min_age_seconds=0, manifest_min_age_seconds=60, compacted_min_age_seconds=0)


def _checkpoint(found: Any) -> Checkpoint:
    expires = found.expire_time_secs
    return Checkpoint(
        found.id, found.name or "", found.manifest_id, found.create_time_secs * 1000,
        None if expires is None else expires * 1000,
    )  # fmt: skip


def _manifest(found: Any) -> Manifest:
    views = [*found.l0, *(view for run in found.compacted for view in run.sst_views)]
    return Manifest(
        found.id,
        {view.sst.id.value: view.estimated_size_bytes for view in views},
        tuple(run.id for run in found.compacted),
        tuple(view.id for view in found.l0),
        tuple(_checkpoint(one) for one in found.checkpoints),
        found.replay_after_wal_id,
    )


def _compaction(found: Any) -> Compaction:
    """A compaction as the binding gives it."""
    return Compaction(
        found.status.name.lower(), ulid_time_ms(found.id), len(found.spec.sources), found.bytes_processed, found.active
    )
