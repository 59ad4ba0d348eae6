"""The memory limit: what is freed first, when publishers wait, when they go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from kombu_opendata.broker.process.memory_watch import MemoryWatch

MB = 1 << 20


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
