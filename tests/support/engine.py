"""The storage engine on a folder, with a clock that stands still unless told, and with crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.state.queue_buckets import QueueEntry
from kombu_opendata.storage.state.store_state import Queue, QueueSettings
from tests.support.clock import AdvancedLoop, HastyLoop, ManualClock
from tests.support.store_copy import copy_store

SESSION = b"s" * 16
OTHER = b"o" * 16
SETTINGS = EngineSettings(sync=False, journal_segment_bytes=64 << 10)


class World:
    """A folder, a clock and the engine that is open on it."""

    def __init__(self, root: Path, settings: EngineSettings = SETTINGS) -> None:
        self.root = root
        self.clock = ManualClock()
        self.settings = settings
        self.number = 0
        self.engine: Engine

    async def open(self) -> None:
        self.engine = await Engine.open(f"file://{self.root}", "default", self.clock, self.settings)

    async def crash(self) -> None:
        """Go on with a copy of the folder as it is now."""
        copied = self.root.with_name(self.root.name + "+")
        copy_store(self.root, copied)
        await self.engine.store.close()
        assert self.engine.journal is not None
        self.engine.journal.close()
        self.root = copied
        await self.open()

    def queue(self, name: str) -> Queue:
        return self.engine.state.queues[name]

    def publish(self, *names: str, envelope: bytes = b"payload", ttl_ms: int = -1, **changes: Any) -> int:
        self.number += 1
        given: dict[str, Any] = {
            "priority": 255, "created_at": self.clock.now_ms(), "visible_at": -1, "ttl_ms": ttl_ms, "session": SESSION,
            "seq": self.number, "total": len(names), "headers": {},
        }  # fmt: skip
        return self.engine.operations.publish([self.queue(name) for name in names], envelope, **{**given, **changes})

    async def next(self, name: str) -> QueueEntry | None:
        for _ in range(1000):
            entry, loading = self.engine.loader.next_entry(self.queue(name), self.clock.now_ms())
            if not loading:
                return entry
            await asyncio.gather(*self.engine.loader._loading.values())
        raise AssertionError("loading does not end")

    async def claim(self, name: str, session: bytes = SESSION) -> QueueEntry:
        entry = await self.next(name)
        assert entry is not None
        self.engine.operations.claim(self.queue(name), (entry,), session)
        return entry


def run(
    root: Path,
    steps: Callable[[World], Awaitable[None]],
    settings: EngineSettings = SETTINGS,
    *,
    loop: type[AdvancedLoop | HastyLoop] | None = None,
) -> World:
    """Run ``steps`` on a store with the queue ``q`` and close it."""
    world = World(root, settings)

    async def main() -> None:
        await world.open()
        if "q" not in world.engine.state.queues:
            world.engine.definitions.declare_queue("q", QueueSettings(max_attempts=2))
        await world.engine.commits.commit()
        await steps(world)
        await world.engine.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
    return world


async def nothing(_world: World) -> None:
    pass


def sized(settings: EngineSettings = SETTINGS, **sizes: int) -> EngineSettings:
    """Settings with these sizes, so small that a short test meets the limits."""
    return replace(settings, sizes=replace(settings.sizes, **sizes))


#: queues with buckets of so few entries, of which so few are loaded, that tests meet cold ones
SMALL_BUCKETS = sized(bucket_entries=4, loaded_buckets=3, partitioned_factor=4, tail_messages=1)
