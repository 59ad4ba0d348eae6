"""An engine that can be crashed: its store, its commits, and what is read of both.

A crash is a copy of the store's folder as it is at that instant, opened again; the engine that was writing is
abandoned.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine

from kombu_opendata.errors import StoreError
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.engine_sizes import EngineSizes
from kombu_opendata.storage.records import active, keys, settled
from kombu_opendata.storage.slatedb.slate_settings import SlateSettings
from kombu_opendata.storage.state.queue_buckets import QueueEntry
from kombu_opendata.storage.state.settled_list import ListName, bucket_key
from kombu_opendata.storage.state.store_state import Queue
from tests.property.engine_model import Model
from tests.support.clock import ManualClock
from tests.support.store_copy import copy_store

PRODUCER = b"p" * 16


SETTINGS = EngineSettings(
    sync=False,
    payload_cache_bytes=1000,
    journal_segment_bytes=64 << 10,
    slate=SlateSettings(l0_max_ssts=1000, block_cache_bytes=0),
    sizes=EngineSizes(
        bucket_entries=4,
        loaded_buckets=3,
        partitioned_factor=4,
        tail_messages=1,
        settled_entries=4,
        block_rows=5,
        large_body_bytes=900,
        segment_bytes=2000,
    ),
)


class CrashableEngine(RuleBasedStateMachine):
    """The engine, the model of it, and the model as it was at the last commit; on a local folder, with the journal."""

    settings = SETTINGS

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.model = Model()
        self.committed = Model()
        self.number = itertools.count(1)
        self.stale: list[tuple[str, int, int]] = []  # queue, id, token of leases that ended
        self.root = Path(tempfile.mkdtemp(prefix="odq-engine-"))
        self.life = 0
        self.numbers: dict[int, int] = {}  # of published messages
        self.abandoned: list[Engine] = []

    def run(self, step: Any) -> Any:
        return self.loop.run_until_complete(step)

    # ------------------------------------------------------------------ opening, crashing
    @property
    def folder(self) -> Path:
        return self.root / str(self.life)

    def url(self) -> str:
        return f"file://{self.folder}"

    def open(self) -> None:
        self.engine: Engine = self.run(Engine.open(self.url(), "default", self.clock, self.settings))
        assert self.counts() == self.committed.counts

    def counts(self) -> dict[str, dict[str, int]]:
        """What was counted in each queue, and when it was declared."""
        found = {name: queue.counts for name, queue in self.engine.state.queues.items()}
        return {name: {**counts.as_dict(), "created_at_ms": counts.created_at_ms} for name, counts in found.items()}

    def freeze(self) -> Callable[[], None]:
        """Keep the store as it is now; the returned function goes on with it."""
        target = self.root / str(self.life + 1)
        shutil.rmtree(target, ignore_errors=True)
        copy_store(self.folder, target)

        def go_on() -> None:
            self.life += 1

        return go_on

    def abandon(self) -> None:
        """Let go of the old engine's files; whatever that writes is in a folder that is not looked at again."""
        with contextlib.suppress(StoreError):
            self.run(self.engine.store.close())
        if self.engine.journal is not None:
            self.engine.journal.close()

    def after_crash(self) -> None:
        self.model = copy.deepcopy(self.committed)
        self.model.after_crash()
        self.committed = copy.deepcopy(self.model)
        self.open()

    # ------------------------------------------------------------------ commits
    def note_commit(self, checkpoint: bool = False) -> None:
        if checkpoint or self.engine.journal is None:
            self.model.swept.clear()
        self.model.counts = self.counts()
        self.committed = copy.deepcopy(self.model)

    def end(self, commit: bool) -> None:
        """The end of a step: some commit, some leave their effects to a later one."""
        if commit:
            self.run(self.engine.commits.commit())
            self.note_commit()

    # ------------------------------------------------------------------ reading
    async def loads(self) -> None:
        """Wait until everything that is being loaded is there."""
        while self.engine.loader._loading:
            await asyncio.gather(*self.engine.loader._loading.values())

    async def repartition(self, queue: Queue) -> None:
        """Move all messages to their partitions."""
        self.engine.repartitioner.start(queue, lambda _name: None)
        while runs := list(self.engine.repartitioner._runs.values()):
            await asyncio.gather(*runs)

    async def next_entry(self, queue: Queue) -> tuple[QueueEntry | None, bytes | None]:
        """The next one and its payload, as the broker does it: if something must be loaded, wait and try again."""
        for _ in range(1000):
            entry, loading = self.engine.loader.next_entry(queue, self.clock.now_ms())
            partitions = queue.messages.partitions
            if entry is None and partitions is not None and partitions.misplaced:
                await self.repartition(queue)
            elif not loading:
                await self.loads()  # those in advance: a step that reads the cold buckets must not lose one meanwhile
                return entry, self.engine.payloads.find(entry.id) if entry is not None else None
            await self.loads()
        raise AssertionError("loading does not end")

    async def settled_rows(self, queue: Queue, which: ListName) -> list[tuple[int, ...]]:
        """A settled list, from memory where that has it and from the store where not."""
        log = queue.settled_list(which)
        found: list[tuple[int, ...]] = []
        for number in range(log.first, log.tail + 1):
            rows = log.rows if number == log.tail else log.dirty.get(number)
            key = bucket_key(queue.name, which, number)
            value = settled.join(rows) if rows is not None else await self.engine.store.get(key)
            found += settled.decode(b"", value) if value is not None else []
        return found

    async def bucket_rows(self, queue: Queue, number: int) -> Sequence[tuple[int, ...]]:
        """The rows of a cold bucket."""
        key = keys.active_key(queue.name, number)
        available, in_flight = active.decode(key, await self.engine.store.get(key) or b"")
        assert not in_flight
        assert len(available) == queue.messages.cold[number].messages > 0
        return available

    async def cold_rows(self, queue: Queue) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for number in queue.messages.cold:
            found += await self.bucket_rows(queue, number)
        return found
