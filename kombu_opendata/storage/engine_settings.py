"""The settings of the storage engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .commit.journal import SEGMENT_BYTES
from .engine_sizes import SIZES, EngineSizes
from .history.service import DEFAULT_RETENTION_SECONDS
from .slatedb.slate_settings import SlateSettings


@dataclass(frozen=True)
class EngineSettings:
    """The settings of an engine. The name of each duration ends with its unit."""

    sync: bool = True
    checkpoint_interval_ms: int = 100
    tidy_interval_seconds: float = 5.0
    bucket_tidy_seconds: float = 60.0  # while a bucket has few WAL files; a tidy makes a dozen requests
    retention_interval_seconds: float = 10.0
    payload_cache_bytes: int = 48 << 20  # 16 MiB were 1,600 bodies of 10 kB, and reading back doubled the CPU
    result_cache_bytes: int = 16 << 20
    journal_segment_bytes: int = SEGMENT_BYTES
    journal_max_bytes: int = 1 << 30
    stall_seconds: float = 5.0
    store_timeout_seconds: float = 10.0  # for which a call waits for a bucket that does not respond; 0: no limit
    close_seconds: float = 20.0
    slow_commit_seconds: float = 1.0  # slower commits are logged
    retention_bytes: int = 0  # in a larger store the oldest settled messages are deleted early; 0: no limit
    idle_seconds: float = 300.0  # without writes, after which SlateDB reads a bucket less often; 0: never
    task_outcomes: bool = True  # store the outcomes of tasks
    history: bool = True  # False: it is neither written nor read; stored history remains
    history_retention_seconds: float = DEFAULT_RETENTION_SECONDS
    log_retention_seconds: float = 0.0  # after a message was received; 0: until no queue needs it; inf: unlimited
    cache_dir: Path | None = None  # keeps parts of a bucket's tables, see storage/slatedb/caches.py
    slate: SlateSettings = field(default_factory=SlateSettings)
    sizes: EngineSizes = SIZES
