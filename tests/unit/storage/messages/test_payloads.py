"""Payloads of every size on real stores: the cache, chunks, segments, one copy for many queues, collection."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.staging.folder_url import StagedFolder
from kombu_opendata.storage.clock import LOOKS
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.messages.payload_reader import PayloadReader
from kombu_opendata.storage.messages.payloads import Payloads
from kombu_opendata.storage.records.keys import RecordKind, payload_key
from kombu_opendata.storage.records.payload import encode_inline
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.clock import HastyLoop
from tests.support.engine import World, run, sized
from tests.support.plain_store import PlainStore


@pytest.mark.parametrize("large_bytes", [64 << 10, 1 << 30], ids=["segments", "chunks"])
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 1 << 20, (1 << 20) + 1, 5 << 20])
def test_payloads_of_every_size(tmp_path: Path, size: int, large_bytes: int) -> None:
    envelope = os.urandom(size)

    async def steps(world: World) -> None:
        id = world.publish("q", envelope=envelope)
        assert (await world.claim("q")).id == id
        held = list(world.queue("q").messages.in_flight.values())
        world.engine.operations.put_back(world.queue("q"), held, "", costs_attempt=False)
        world.clock.advance(1)
        await world.engine.commits.checkpoint()
        await world.crash()
        entry = await world.claim("q")
        assert world.engine.payloads.find(entry.id) == envelope

    store = PlainStore(run(tmp_path / "s", steps, sized(large_body_bytes=large_bytes)).root)
    assert [store.envelope(id) for id in store.of[RecordKind.PAYLOAD]] == [envelope]
    assert bool(store.of[RecordKind.SEGMENT]) == (size >= large_bytes)
    assert bool(store.of[RecordKind.CHUNK]) == (65_536 <= size < large_bytes)


def test_large_payloads_and_a_small_cache(tmp_path: Path) -> None:
    """What is needed next is loaded first, whatever its id."""

    async def steps(world: World) -> None:
        for priority in (9, 8, 7, 6, 5, 4):
            world.publish("q", envelope=bytes([priority]) * 600, priority=priority)
        await world.engine.close()
        await world.open()
        for priority in (4, 5, 6, 7, 8, 9):
            entry = await world.claim("q")
            assert entry.priority == priority
            assert world.engine.payloads.find(entry.id) == bytes([priority]) * 600
            world.engine.operations.ack(world.queue("q"), (entry,))

    run(tmp_path / "s", steps, EngineSettings(sync=False, payload_cache_bytes=1000))


def test_a_small_payload_before_ones_larger_than_the_cache(tmp_path: Path) -> None:
    sizes = [400, 70_000, 300, 80_000, 90_000, 0, 70_000, 1_200_000, 70_000, 1]

    async def steps(world: World) -> None:
        for size in sizes:
            world.publish("q", envelope=bytes(size))
        await world.engine.close()
        await world.open()
        for size in sizes:
            entry = await world.claim("q")
            assert world.engine.payloads.find(entry.id) == bytes(size)
            world.engine.payloads.drop(entry.id)

    run(tmp_path / "s", steps, EngineSettings(sync=False, payload_cache_bytes=1000))


def test_one_message_in_two_queues_is_stored_once(tmp_path: Path) -> None:
    large = bytes(100_000)

    async def steps(world: World) -> None:
        world.engine.definitions.declare_queue("r", QueueSettings())
        for envelope in (b"small", large):
            world.publish("q", "r", envelope=envelope)
        for _ in range(2):
            world.engine.operations.ack(world.queue("q"), (await world.claim("q"),))
        await world.engine.commits.checkpoint()
        world.clock.advance(2 * 86_400_000)
        await world.engine.collector.sweep()
        await world.engine.commits.checkpoint()
        assert world.engine.payloads.find((await world.claim("r")).id) == b"small"

    world = run(tmp_path / "s", steps)
    store = PlainStore(world.root)
    assert len(store.of[RecordKind.PAYLOAD]) == len(store.of[RecordKind.METADATA]) == 2
    assert set(store.of[RecordKind.ROUTES_BLOCK].values()) == {1}

    async def purge(world: World) -> None:
        assert await world.engine.definitions.delete_queue(world.queue("r")) == 1

    store = PlainStore(run(world.root, purge).root)
    assert not any(store.message_ids().values())


def test_a_large_message_that_is_purged_before_it_was_stored_leaves_nothing(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.publish("q", envelope=bytes(3 << 20))
        assert await world.engine.definitions.purge(world.queue("q")) == 1

    assert not any(PlainStore(run(tmp_path / "s", steps).root).message_ids().values())


class _MemoryStore:
    """Payload records of a store that answers without a turn of the event loop."""

    async def scan_batches(
        self, start: bytes, end: bytes, **_settings: Any
    ) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        first, last = (int.from_bytes(key[-8:], "big") for key in (start, end[:-1]))
        yield [(payload_key(id), encode_inline(b"%d" % id)) for id in range(first, last + 1)]


def test_other_tasks_run_during_a_load_of_many_messages() -> None:
    """The time of this loop passes so fast that a slice of time is over at each look."""

    async def steps() -> None:
        store: Any = _MemoryStore()
        payloads = Payloads(store, PayloadReader(store, StagedFolder("file:///nowhere", "default")), 1 << 20)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        assert await payloads.load(list(range(160))) == {}
        counting.cancel()
        assert turns == 160 // LOOKS
        assert [payloads.find(id) for id in range(160)] == [b"%d" % id for id in range(160)]

    with asyncio.Runner(loop_factory=HastyLoop) as runner:
        runner.run(steps())
