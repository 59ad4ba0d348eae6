"""SlateDB's settings, as far as they are ours to choose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from . import ffi

_IDLE_POLL_MS = 120_000


@dataclass(frozen=True, slots=True)
class SlateSettings:
    """SlateDB's settings, as far as they are ours to choose.

    Attributes:
        flush_interval_ms: when SlateDB flushes the WAL by itself; a commit does not wait for it.
        l0_sst_size_bytes: the memtable is written out at this size.
        l0_max_ssts: writes wait when so many of these files are not compacted yet.
        sorted_sst_size_bytes: the compactor's files are at most so large. A read that does not find a file's index in
            the cache decodes all of it: with SlateDB's own 256 MiB a point read of a large store costs milliseconds.
        max_unflushed_bytes: writes wait when so much is not written out yet.
        compactor_poll_ms: how often the compactor looks for work.
        commit_compaction_ms: how often it looks for compactions that are done.
        min_compaction_sources: files or runs of about one size that the compactor makes one of. Every scan, and most
            point reads, look into all runs, so fewer are worth writing more often: with 2 a store of a million messages
            had 4, a page of scattered ones took 66 ms and a staged row 130 µs of CPU; with SlateDB's own 4 these were
            10, 102 ms and 106 µs.
        compactor_tasks: compactions, and fetches of one compaction, that run at once.
        compactor_fetch_bytes: what a compaction reads at a time, of each file.
        manifest_poll_ms: how often the writer looks at the manifest, and so notices that it is fenced.
        replaced_seconds: how long a compaction's checkpoint keeps the tables that it replaced. What relies on it is
            described at :meth:`.slate.SlateStore.collect_garbage`.
        table_min_age_seconds: younger tables are not deleted: SlateDB may be about to add them to the manifest.
        block_cache_bytes: bound of the cache of data blocks, which take about twice as much memory; None for 8 MiB in
            a local folder, whose files the system caches, and 32 MiB elsewhere; 0 means no cache, not even of indexes.
        index_cache_bytes: bound of the cache of the files' indexes and filters: about 0.3 MB for each file of 16 MiB.
        metrics: keep SlateDB's own metrics, see :meth:`.slate.SlateStore.metrics`.
    """

    flush_interval_ms: int = 100
    l0_sst_size_bytes: int = 8 << 20
    l0_max_ssts: int = 24
    sorted_sst_size_bytes: int = 16 << 20
    max_unflushed_bytes: int = 128 << 20
    compactor_poll_ms: int = 1000
    commit_compaction_ms: int = 1000
    compactor_tasks: int = 2
    min_compaction_sources: int = 2
    compactor_fetch_bytes: int = 512 << 10
    manifest_poll_ms: int = 1000
    replaced_seconds: int = 15
    table_min_age_seconds: float = 10
    block_cache_bytes: int | None = None
    index_cache_bytes: int = 24 << 20
    metrics: bool = False

    def for_idleness(self) -> SlateSettings:
        """For a store that nobody uses now: it is looked into some 300 times an hour."""
        return replace(
            self, manifest_poll_ms=_IDLE_POLL_MS, compactor_poll_ms=_IDLE_POLL_MS, commit_compaction_ms=_IDLE_POLL_MS
        )

    def as_binding(self) -> Any:
        """The binding's settings object."""
        settings = ffi.public().Settings.default()
        for name, value in {
            "flush_interval": f'"{self.flush_interval_ms}ms"',
            "l0_sst_size_bytes": self.l0_sst_size_bytes,
            "l0_max_ssts": self.l0_max_ssts,
            "l0_max_ssts_per_key": self.l0_max_ssts,
            "max_unflushed_bytes": self.max_unflushed_bytes,
            "manifest_poll_interval": f'"{self.manifest_poll_ms}ms"',
            "compactor_options.poll_interval": f'"{self.compactor_poll_ms}ms"',
            "compactor_options.commit_compacted_interval": f'"{self.commit_compaction_ms}ms"',
            "compactor_options.checkpoint_lifetime": f'"{self.replaced_seconds}s"',
            "compactor_options.max_concurrent_compactions": self.compactor_tasks,
            "compactor_options.worker.max_concurrent_compactions": self.compactor_tasks,
            "compactor_options.worker.compactions_poll_interval": f'"{self.compactor_poll_ms}ms"',
            "compactor_options.worker.max_sst_size": self.sorted_sst_size_bytes,
            "compactor_options.worker.max_subcompactions": 1,
            "compactor_options.worker.bytes_to_fetch": self.compactor_fetch_bytes,
            "compactor_options.worker.max_fetch_tasks": self.compactor_tasks,
            "compactor_options.scheduler_options.min_compaction_sources": f'"{self.min_compaction_sources}"',
            "garbage_collector_options": "null",  # null: no collector is started
        }.items():
            settings.set(name, str(value))
        return settings
