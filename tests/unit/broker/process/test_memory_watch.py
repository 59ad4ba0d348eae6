"""The memory limit: what is freed first, when publishers wait, when they go on."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kombu_opendata.broker.process.memory_watch import (
    MemoryWatch,
    available_bytes,
    memory_limit,
    resident_bytes,
    trim_heap,
)

MB = 1 << 20
PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class World:
    """A process whose memory a test sets."""

    def __init__(self, limit: int) -> None:
        self.memory = 10 * MB
        self.freed = 0
        self.changes: list[bool] = []
        self.watch = MemoryWatch(limit, self.free, self.changes.append, lambda: self.memory)

    def free(self) -> None:
        self.freed += 1

    def tick(self, memory: int) -> bool:
        self.memory = memory
        self.watch.tick()
        return self.watch.is_full


def within(test: Callable[[World], None], limit: int = 100 * MB) -> None:
    async def main() -> None:
        test(World(limit))

    asyncio.run(main())


def test_publishers_wait_above_the_limit_until_it_is_well_below(caplog: pytest.LogCaptureFixture) -> None:
    def test(world: World) -> None:
        assert not world.tick(100 * MB)
        assert world.tick(101 * MB)
        assert world.freed == 1
        assert world.tick(91 * MB)
        assert not world.tick(89 * MB)
        assert world.changes == [True, False]
        assert world.watch.report() == {"resident_bytes": 89 * MB, "limit_bytes": 100 * MB, "is_full": False}

    with caplog.at_level(logging.WARNING):
        within(test)
    begin, end = [record.getMessage() for record in caplog.records]
    assert begin == "the broker uses 101 MB of memory, its limit is 100 MB (--memory-limit): publishers wait"
    assert end.startswith("the broker uses 89 MB of memory: publishers continue after")


def test_nobody_waits_if_freeing_is_enough() -> None:
    def test(world: World) -> None:
        def free() -> None:
            world.memory = 95 * MB

        world.watch._free = free
        assert not world.tick(120 * MB)
        assert world.changes == []

    within(test)


def test_no_limit() -> None:
    def test(world: World) -> None:
        assert not world.tick(1 << 40)
        assert world.changes == []
        assert world.freed == 0

    within(test, 0)


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A /proc and a /sys/fs/cgroup without any limit."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "cgroup").mkdir()
    return tmp_path


def put(system: Path, path: str, text: str) -> None:
    file = system / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def available(system: Path) -> int:
    return available_bytes(system / "proc", system / "cgroup")


def test_the_machine(system: Path) -> None:
    assert available(system) == PHYSICAL
    put(system, "proc/self/cgroup", "0::/system.slice/q.service\n")
    put(system, "cgroup/system.slice/q.service/memory.max", "max\n")
    assert available(system) == PHYSICAL


@pytest.mark.parametrize("group", ["system.slice/q.service/memory.max", "system.slice/memory.max", "memory.max"])
def test_a_control_group_or_one_around_it(system: Path, group: str) -> None:
    put(system, "proc/self/cgroup", "0::/system.slice/q.service\n")
    put(system, f"cgroup/{group}", f"{256 * MB}\n")
    assert available(system) == 256 * MB


def test_a_control_group_of_version_1(system: Path) -> None:
    put(system, "proc/self/cgroup", "11:cpu,cpuacct:/a\n9:memory:/docker/x\n")
    put(system, "cgroup/memory/docker/x/memory.limit_in_bytes", f"{100 * MB}\n")
    put(system, "cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert available(system) == 100 * MB


def test_the_limit() -> None:
    assert memory_limit("0") == 0
    assert memory_limit("1000") == 1000
    assert memory_limit("50%") == int(available_bytes() / 2)


def test_this_process() -> None:
    trim_heap()
    assert MB < resident_bytes() < PHYSICAL
    assert resident_bytes(Path("/nowhere")) == 0


def test_what_the_start_made_is_not_looked_at_again() -> None:
    """In a process of its own, as this can't be undone for the objects of other tests."""
    program = (
        "import gc; from kombu_opendata.broker.process.memory_watch import freeze_objects; freeze_objects();"
        "print(gc.get_freeze_count() > 1000, len(gc.get_objects()) < 1000, gc.isenabled(), gc.get_threshold()[0] > 700)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).split() == ["True"] * 4
