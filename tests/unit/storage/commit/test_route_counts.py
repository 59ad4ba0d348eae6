"""Counts of queues in blocks of 256: read once, written once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from kombu_opendata.errors import RequestError
from kombu_opendata.storage.commit.route_counts import RouteCounts, portions
from kombu_opendata.storage.records import keys, routes_block
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.slatedb.store_writer import SlateStore
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.clock import HastyLoop
from tests.support.engine import World, run, sized
from tests.support.plain_store import PlainStore
from tests.support.verified import assert_verified


def on_a_store(root: Path, steps: Callable[[SlateStore], Awaitable[None]]) -> PlainStore:
    async def main() -> None:
        store = await SlateStore.open(f"file://{root}", "default")
        await steps(store)
        await store.close()

    asyncio.run(main())
    return PlainStore(root)


async def change(store: SlateStore, changes: Mapping[int, int]) -> int:
    """Set these counts; returns how many records the batch has."""
    batch = store.batch()
    counts = RouteCounts(store)
    await counts.load(sorted(changes))
    for id, count in changes.items():
        counts.set(id, count)
    await counts.put_into(batch)
    changed = len(batch)
    await store.write(batch)
    return changed


def test_what_was_set_is_there_and_one_record_holds_256(tmp_path: Path) -> None:
    far = 5_000_000
    expected = {**dict.fromkeys(range(256, 512), 2), 600: 3, far: 65_533}

    async def steps(store: SlateStore) -> None:
        assert await change(store, expected | {601: 1}) == 3
        assert await change(store, {601: 0, 600: 3, 700: 0}) == 1  # what stays as it was is no change
        assert await change(store, {600: 3}) == 0
        counts = RouteCounts(store)
        await counts.load([5, 300, 600, 601, far])
        assert [counts.get(id) for id in (5, 256, 600, 601, far, far + 1)] == [0, 2, 3, 0, 65_533, 0]

    plain = on_a_store(tmp_path, steps)
    assert plain.of[RecordKind.ROUTES_BLOCK] == expected
    assert len(plain.raw) == 3


def test_the_last_entry_takes_its_block_along(tmp_path: Path) -> None:
    async def steps(store: SlateStore) -> None:
        await change(store, {7: 1, 300: 4})
        await change(store, {7: 0})

    assert on_a_store(tmp_path, steps).of[RecordKind.ROUTES_BLOCK] == {300: 4}


def test_more_queues_than_can_be_counted_are_refused(tmp_path: Path) -> None:
    async def steps(store: SlateStore) -> None:
        counts = RouteCounts(store)
        await counts.load([1])
        with pytest.raises(RequestError, match="65534 queues"):
            counts.set(1, 65_534)

    on_a_store(tmp_path, steps)


@pytest.mark.parametrize("at_once", [1, 2, 3, 100])
def test_portions_are_whole_blocks(at_once: int) -> None:
    ids = [0, 1, 255, 256, 1000, 1001, 70_000, 70_001, 900_000]
    found = list(portions(ids, at_once))
    assert [id for part in found for id in part] == ids
    blocks = [{id >> 8 for id in part} for part in found]
    assert all(len(part) <= at_once for part in blocks)
    assert sum(map(len, blocks)) == len(set().union(*blocks))
    assert list(portions([], at_once)) == []


def test_a_block_shrinks_and_grows_between_its_forms(tmp_path: Path) -> None:
    sizes: list[int] = []

    async def steps(store: SlateStore) -> None:
        for last in (1, 170, 171, 256, 171, 170, 1):
            await change(store, {id: int(id < last) for id in range(256)})
            key = keys.routes_block_key(0)
            value = await store.get(key) or b""
            sizes.append(len(value))
            assert routes_block.decode(key, value) == dict.fromkeys(range(last), 1)

    on_a_store(tmp_path, steps)
    assert sizes == [5, 512, 514, 514, 514, 512, 5]


def test_a_checkpoint_of_many_blocks_goes_through_them_in_portions(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.definitions.declare_queue("r", QueueSettings())
        for _ in range(700):
            world.publish("q", "r")
        await world.engine.commits.checkpoint()
        for _ in range(300):
            world.publish("q", "r")  # some are in a block that is stored already
        await world.engine.definitions.delete_queue(world.queue("q"))

    world = run(tmp_path / "s", steps, sized(route_blocks=1, route_reads=1), loop=HastyLoop)
    assert_verified(world.root)
    assert PlainStore(world.root).of[RecordKind.ROUTES_BLOCK] == dict.fromkeys(range(1000), 1)
