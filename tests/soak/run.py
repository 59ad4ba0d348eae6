"""A soak: virtual days of the load, and a sample of what must stay flat every few virtual hours."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kombu_opendata.storage.records.payload_places import is_segment

from ..fuzzing.target import resident_bytes
from ..support.clock import AdvancedLoop
from .accelerated import HOUR, AcceleratedBroker
from .flatness import Limit, Verdict, judge
from .load import STEP_SECONDS, Load


class Sample(NamedTuple):
    """Measurements at one time, after a collection of garbage."""

    hours: float
    memory_mib: float
    objects: int
    blocks: int
    descriptors: int
    files: int
    segments: int
    disk_mib: float


#: allocators keep some memory
LIMITS = {
    "memory_mib": Limit(0.1, 12),
    "objects": Limit(0.01, 1000),
    "blocks": Limit(0.02, 6000),
    "descriptors": Limit(0.0, 4),
    "files": Limit(0.1, 12),
    "segments": Limit(0.1, 4),
    "disk_mib": Limit(0.2, 3),
}


class Soak(NamedTuple):
    """What a soak measured and did."""

    samples: list[Sample]
    counts: dict[str, int]

    def verdicts(self) -> dict[str, Verdict]:
        return {name: judge([getattr(each, name) for each in self.samples], LIMITS[name]) for name in LIMITS}


def soak(days: float, *, sampled_each_hours: float = 3, note: Callable[[Sample], object] = lambda _: None) -> Soak:
    """Run the load for virtual days; ``note`` gets each sample."""
    with tempfile.TemporaryDirectory(prefix="odq-soak-") as folder, asyncio.Runner(loop_factory=AdvancedLoop) as runner:
        return runner.run(_soak(Path(folder), days, sampled_each_hours, note))


async def _soak(folder: Path, days: float, sampled_each_hours: float, note: Callable[[Sample], object]) -> Soak:
    broker = AcceleratedBroker(folder)
    samples = []
    between = round(sampled_each_hours * HOUR / STEP_SECONDS)
    async with broker.running():
        load = Load(broker)
        await load.begin()
        for step in range(1, int(days * 24 * HOUR) // STEP_SECONDS + 1):
            await load.step()
            if step % between == 0:
                await broker.collect()
                samples.append(_sample(folder, step * STEP_SECONDS / HOUR))
                note(samples[-1])
    return Soak(samples, load.counts)


def _sample(folder: Path, hours: float) -> Sample:
    gc.collect()
    files = [path for path in folder.rglob("*") if path.is_file()]
    sizes = [path.stat().st_size for path in files]
    descriptors = len(os.listdir("/proc/self/fd"))
    objects, blocks = len(gc.get_objects()), sys.getallocatedblocks()
    segments = sum(is_segment(path.name) for path in files)
    memory_mib, disk_mib = resident_bytes() / 2**20, sum(sizes) / 2**20
    return Sample(hours, memory_mib, objects, blocks, descriptors, len(files), segments, disk_mib)
