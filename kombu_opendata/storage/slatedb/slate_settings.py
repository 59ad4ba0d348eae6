"""The settings of SlateDB that this package chooses."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from . import ffi

_IDLE_POLL_MS = 120_000
#: each poll of a bucket is two requests; a fenced broker detects this at its next commit
_BUCKET_POLL_MS = 5000
#: size of the fetch of a read that misses the cache on disk
_CACHED_PART_BYTES = 1 << 20
#: files of that cache that are open at the same time; the broker reserves file descriptors for them
_CACHED_FILES = 100
#: compactions that run at the same time
_COMPACTIONS = 2
# Records of messages ascend, but SlateDB rewrites them in each compaction. Its trivial moves (``enable_trivial_move``)
# need sources without overlap, and each table has all kinds of records: 200,000 staged rows caused the same 28.0 MB of
# tables with them. Segments would separate the kinds, but only in databases that are created with them, and they call
# Python for each key that is written.
#: files or runs of about one size that the compactor merges. Every scan, and most point reads, read from all runs, so
#: more frequent writes are worth fewer runs: with 2, a store of a million messages had 4 runs, a page of scattered
#: messages took 66 ms and a staged row 130 µs of CPU; with SlateDB's own 4 these were 10, 102 ms and 106 µs.
_MERGED_RUNS = 2


@dataclass(frozen=True, slots=True)
class SlateSettings:
    """The settings of one database.

    Attributes:
        l0_sst_size_bytes: the size at which the memtable is flushed.
        max_unflushed_bytes: the size of unflushed data in memory above which writes wait.
        l0_max_ssts: the number of tables not compacted yet at which writes wait.
        sorted_sst_size_bytes: the size of the compactor's largest file, most of which it buffers. A read
            that does not find a file's index in the cache decodes all of it: with SlateDB's own 256 MiB a point read
            of a large store costs milliseconds.
        compacts: run the compactor.
        compactor_poll_ms: the interval at which the compactor checks for work.
        commit_compaction_ms: the interval at which it checks for finished compactions.
        codec: the compression of new tables; empty for none. A table names its codec, so others remain readable. With
            LZ4, 300,000 similar Celery messages used 52 MB instead of 215, and writes to the device were 323 MB instead
            of 1.1 GB, for about the same CPU.
        compactor_fetch_bytes: the size of one read of a compaction, which is a request. In memory it may be 200 times
            as large, if the data is highly compressible.
        compactor_fetches: the number of such reads of a file that run or wait to be merged.
        manifest_poll_ms: the interval at which the writer reads the manifest, and so detects that it is fenced.
        replaced_seconds: the lifetime of a compaction's checkpoint, which keeps the tables that it replaced; see
            :meth:`.store_writer.SlateStore.collect_garbage`, which relies on it.
        table_min_age_seconds: younger tables are not deleted, as SlateDB may be about to add them to the manifest.
        block_cache_bytes: bound of the cache of data blocks, which take about twice as much memory. None means 8 MiB
            in a local folder, whose files the system caches, and 32 MiB elsewhere. 0 means no cache, not even of
            indexes.
        index_cache_bytes: bound of the cache of the files' indexes and filters: about 20 kB for each MiB of a file.
        cache_folder: the folder of parts of a bucket's tables, see :mod:`.caches`; empty for no such cache.
        cache_bytes: the approximate size limit of that folder.
        metrics: keep SlateDB's own metrics, see :meth:`.store_writer.SlateStore.metrics`.
    """

    l0_sst_size_bytes: int = 8 << 20
    max_unflushed_bytes: int = 24 << 20
    l0_max_ssts: int = 24
    sorted_sst_size_bytes: int = 4 << 20
    compacts: bool = True
    compactor_poll_ms: int = 1000
    commit_compaction_ms: int = 1000
    codec: str = "Lz4"
    compactor_fetch_bytes: int = 16 << 10
    compactor_fetches: int = 1
    manifest_poll_ms: int = 1000
    replaced_seconds: int = 15
    table_min_age_seconds: float = 10
    block_cache_bytes: int | None = None
    index_cache_bytes: int = 24 << 20
    cache_folder: str = ""
    cache_bytes: int = 10 << 30
    metrics: bool = False

    def for_bucket(self) -> SlateSettings:
        """Return the settings for a bucket, where a request costs money and may take half a second."""
        return replace(
            self,
            manifest_poll_ms=_BUCKET_POLL_MS,
            compactor_poll_ms=_BUCKET_POLL_MS,
            commit_compaction_ms=_BUCKET_POLL_MS,
            replaced_seconds=90,
            table_min_age_seconds=300,
            max_unflushed_bytes=128 << 20,
            sorted_sst_size_bytes=16 << 20,
            codec="",
            compactor_fetch_bytes=512 << 10,
            compactor_fetches=2,
        )

    def for_idleness(self) -> SlateSettings:
        """Return the settings for an idle store: SlateDB then reads it about 300 times an hour."""
        return replace(
            self, manifest_poll_ms=_IDLE_POLL_MS, compactor_poll_ms=_IDLE_POLL_MS, commit_compaction_ms=_IDLE_POLL_MS
        )

    def as_binding(self) -> Any:
        settings = ffi.public().Settings.default()
        codec = json.dumps(self.codec or None)
        cache = {
            "root_folder": json.dumps(self.cache_folder),
            "max_cache_size_bytes": self.cache_bytes,
            "part_size_bytes": _CACHED_PART_BYTES,
            "max_open_file_handles": _CACHED_FILES,
            "cache_on_flush": "true",  # so that a compaction does not read tables of this process from the bucket
            "cache_on_compaction": "true",
        }
        if self.cache_folder:
            for name, value in cache.items():
                settings.set(f"object_store_cache_options.{name}", str(value))
        for name, value in {
            "flush_interval": '"100ms"',
            "compression_codec": codec,
            "l0_sst_size_bytes": self.l0_sst_size_bytes,
            "l0_max_ssts": self.l0_max_ssts,
            "l0_max_ssts_per_key": self.l0_max_ssts,
            "max_unflushed_bytes": self.max_unflushed_bytes,
            "manifest_poll_interval": f'"{self.manifest_poll_ms}ms"',
            "compactor_options.poll_interval": f'"{self.compactor_poll_ms}ms"',
            "compactor_options.commit_compacted_interval": f'"{self.commit_compaction_ms}ms"',
            "compactor_options.checkpoint_lifetime": f'"{self.replaced_seconds}s"',
            "compactor_options.max_concurrent_compactions": _COMPACTIONS,
            "compactor_options.worker.max_concurrent_compactions": _COMPACTIONS,
            "compactor_options.worker.compactions_poll_interval": f'"{self.compactor_poll_ms}ms"',
            "compactor_options.worker.max_sst_size": self.sorted_sst_size_bytes,
            "compactor_options.worker.compression_codec": codec,
            "compactor_options.worker.max_subcompactions": 1,
            "compactor_options.worker.bytes_to_fetch": self.compactor_fetch_bytes,
            "compactor_options.worker.max_fetch_tasks": self.compactor_fetches,
            "compactor_options.scheduler_options.min_compaction_sources": f'"{_MERGED_RUNS}"',
            "garbage_collector_options": "null",  # null: no collector is started
        }.items():
            settings.set(name, str(value))
        if not self.compacts:
            settings.set("compactor_options", "null")
        return settings
