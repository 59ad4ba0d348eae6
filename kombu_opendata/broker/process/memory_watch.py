"""Memory of the broker's process: its size, its limit, and the return of unused memory to the system.

While the process uses more than its limit, caches are freed and publishes are delayed.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..metrics.metric_catalogue import MetricsSnapshot

log = logging.getLogger(__name__)

# Parameters of mallopt(3), from malloc.h. glibc returns a block of _MMAP_BYTES to the system immediately, and unused
# memory at the end of the heap above _TRIM_BYTES. Each new block of _MMAP_BYTES costs a page fault for every 4 kB: with
# 256 kB as the limit, bodies of 1 MB took twice as much CPU.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MMAP_BYTES, _TRIM_BYTES = 1200 << 10, 1 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: thresholds of gc.set_threshold()
_THRESHOLDS = (5000, 20, 20)
_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
#: publishes resume below this part of the limit
_RESUME = 0.9
#: above this part of the limit, or after this growth, unused memory is returned to the system
_TRIM = 0.8
_GROWTH_BYTES = 16 << 20
#: minimum interval between two trims of the heap; in between, the heap grows by the messages that fit into no gap of it
_TRIM_SECONDS = 0.25


def bound_heap() -> None:
    """Make glibc return memory to the system.

    With an arena for each of SlateDB's threads, one thread could not reuse the memory that another freed. By default,
    glibc also raises its thresholds when a large block is freed, so it would not return the memory that SlateDB needs
    briefly to write a file.
    """
    mallopt = _function("mallopt")
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 2)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def trim_heap() -> None:
    """Return unused pages inside the heap to the system, which takes some milliseconds."""
    malloc_trim = _function("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def freeze_objects() -> None:
    """Exclude the objects of the startup from Python's garbage collections, and make collections less frequent.

    A full collection visits every container and blocks the event loop. After startup, a broker has about 60,000
    containers, nearly all permanent, and a full collection took 80 to 200 ms on a busy machine.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def _function(name: str) -> Any:
    """Return a function of the C library; None if it is not glibc."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        log.debug("no %s in this C library", name)
        return None


def resident_bytes(proc: Path = _PROC) -> int:
    """Return the memory that this process uses; 0 if it is unknown."""
    try:
        return int((proc / "self" / "statm").read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def available_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return the maximum memory of this process: the memory of the machine, or the limit of a control group."""
    physical = os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES
    return min([physical, *_group_limits(proc, cgroups)])


def _group_limits(proc: Path, cgroups: Path) -> Iterator[int]:
    """Yield the limits of this process's control groups (version 1 and 2) and their parents."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _number, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (cgroups / "memory", "memory.limit_in_bytes") if controllers else (cgroups, "memory.max")
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root):
                limit = _number_in(folder / name)
                if limit is not None:
                    yield limit


def _number_in(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None  # it may be "max"


def memory_limit(text: str) -> int:
    """Return the bytes of ``--memory-limit``, a number or a percentage of the available memory such as ``40%``."""
    if text.endswith("%"):
        return int(available_bytes() * float(text[:-1]) / 100)
    return int(text)


class MemoryWatch:
    """Measurement of the process's memory, and enforcement of its limit; 0 means no limit.

    It calls ``free`` to free caches, and ``changed`` with True when the memory becomes full, and with False when it no
    longer is. ``resident`` returns the memory in use; 0 if it is unknown.
    """

    def __init__(
        self,
        limit_bytes: int,
        free: Callable[[], None],
        changed: Callable[[bool], None],
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.is_full = False  # True while publishes are delayed
        self._free, self._changed, self._measure = free, changed, resident
        self._loop = asyncio.get_running_loop()
        self.resident_bytes = self._least = resident()  # the last measurement
        self._trim_at = 0.0
        self._full_since = 0.0

    def tick(self) -> None:
        """Measure the memory, and enforce the limit.

        Called twice per second, and after every few received megabytes.
        """
        resident = self._measure()
        if not resident:
            return  # unknown
        self.resident_bytes = resident
        limit, now = self.limit_bytes, self._loop.time()
        self._least = min(self._least, resident)
        is_high = bool(limit) and resident > _TRIM * limit
        if is_high and not self.is_full and resident > limit:
            self._free()
            trim_heap()
            resident = self._least = self.resident_bytes = self._measure()
        elif now >= self._trim_at and (is_high or resident - self._least > _GROWTH_BYTES):
            self._trim_at = now + _TRIM_SECONDS
            self._loop.run_in_executor(None, self._trim)
        if limit and not self.is_full and resident > limit:
            self._begin(now)
        elif self.is_full and resident < _RESUME * limit:
            self._end(now)
        elif self.is_full:
            self._free()

    def _trim(self) -> None:
        """Trim the heap; runs in a thread, because it would block the event loop."""
        trim_heap()
        self._least = self._measure()

    def _begin(self, now: float) -> None:
        self.is_full, self._full_since = True, now
        text = "the broker uses %d MB of memory, its limit is %d MB (--memory-limit): publishers wait"
        log.warning(text, self.resident_bytes >> 20, self.limit_bytes >> 20)
        self._changed(True)

    def _end(self, now: float) -> None:
        self.is_full = False
        text = "the broker uses %d MB of memory: publishers continue after %.1f s"
        log.warning(text, self.resident_bytes >> 20, now - self._full_since)
        self._changed(False)

    def measure(self, snapshot: MetricsSnapshot) -> None:
        """Add the memory to a scrape of the metrics."""
        snapshot.set("memory_bytes", self.resident_bytes)
        snapshot.set("memory_limit_bytes", self.limit_bytes)
        snapshot.set("memory_full", int(self.is_full))

    def report(self) -> dict[str, int | bool]:
        return {"resident_bytes": self.resident_bytes, "limit_bytes": self.limit_bytes, "is_full": self.is_full}
