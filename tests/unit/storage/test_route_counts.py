"""Counts of queues in blocks of 256: read once, written once; and stores that have a record for each message."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from kombu_opendata.errors import CorruptRecord, RequestError
from kombu_opendata.storage import checkpoint, route_counts
from kombu_opendata.storage.ffi import Batch
from kombu_opendata.storage.records import header, keys, routes, routes_block
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.route_counts import RouteCounts, convert, portions
from kombu_opendata.storage.slate import SlateStore
from kombu_opendata.storage.state import QueueOptions
from tests.support.engine import World, run
from tests.support.plain_store import PlainStore
from tests.support.rich_store import edit
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


def old_records(counts: Mapping[int, int]) -> dict[bytes, bytes | None]:
    return {keys.routes_key(id): routes.encode(count) for id, count in counts.items()}


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
def test_portions_are_whole_blocks(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_counts, "_BLOCKS_AT_ONCE", at_once)
    ids = [0, 1, 255, 256, 1000, 1001, 70_000, 70_001, 900_000]
    found = list(portions(ids))
    assert [id for part in found for id in part] == ids
    blocks = [{id >> 8 for id in part} for part in found]
    assert all(len(part) <= at_once for part in blocks)
    assert sum(map(len, blocks)) == len(set().union(*blocks))
    assert list(portions([])) == []


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


# ---- stores of before
OLD = {3: 2, 255: 1, 256: 7, 1_000: 3, 1_001: 1, 90_000: 65_533}


@pytest.mark.parametrize("at_once", [1, 4, 100])
def test_records_of_one_message_become_blocks(
    tmp_path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where there are blocks already, as after a conversion that was cut off."""
    monkeypatch.setattr(route_counts, "_CONVERTED_AT_ONCE", at_once)
    edit(tmp_path, old_records(OLD))
    caplog.set_level(logging.INFO, "kombu_opendata")

    async def steps(store: SlateStore) -> None:
        await change(store, {4: 9, 1_000: 2, 1_001: 5, 50_000: 1})
        assert await convert(store) == len(OLD)
        assert await convert(store) == 0

    plain = on_a_store(tmp_path, steps)
    assert plain.of[RecordKind.ROUTES_BLOCK] == {**OLD, 4: 9, 1_001: 5, 50_000: 1}
    assert not plain.of[RecordKind.ROUTES]
    assert [record.message for record in caplog.records] == ["the counts of queues of 6 messages were put into blocks"]


@pytest.mark.parametrize("after", range(4))
def test_a_conversion_that_is_cut_off_goes_on(tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two batches each count is in one place."""
    monkeypatch.setattr(route_counts, "_CONVERTED_AT_ONCE", 2)
    edit(tmp_path, old_records(OLD))

    async def cut_off(store: SlateStore) -> None:
        written, left = store.write, list(range(after))

        async def write(batch: Batch) -> None:
            if not left:
                raise InterruptedError
            left.pop()
            await written(batch)

        monkeypatch.setattr(store, "write", write)
        with contextlib.suppress(InterruptedError):
            await convert(store)

    plain = on_a_store(tmp_path, cut_off)
    blocks, records = plain.of[RecordKind.ROUTES_BLOCK], plain.of[RecordKind.ROUTES]
    assert {**blocks, **records} == OLD
    assert not blocks.keys() & records.keys()
    assert len(records) == max(len(OLD) - 2 * after, 0)

    async def goes_on(store: SlateStore) -> None:
        await convert(store)

    assert on_a_store(tmp_path, goes_on).of[RecordKind.ROUTES_BLOCK] == OLD


def test_a_record_that_does_not_decode_is_said(tmp_path: Path) -> None:
    edit(tmp_path, {keys.routes_key(5): b"\1"})

    async def steps(store: SlateStore) -> None:
        with pytest.raises(CorruptRecord):
            await convert(store)
        batch = store.batch()
        batch.delete(keys.routes_key(5))
        await store.write(batch)

    assert not on_a_store(tmp_path, steps).raw


def test_a_store_of_before_is_opened_and_its_messages_last_until_their_last_queue(tmp_path: Path) -> None:
    """Counts, attempts and chunks are those of a store that always had blocks, also for what only the journal has."""
    ids: dict[str, int] = {}
    large = bytes(70_000)

    async def make(world: World) -> None:
        world.engine.definitions.declare_queue("r", QueueOptions(max_attempts=5))
        ids["both"] = world.publish("q", "r")
        ids["failed once"] = world.publish("q", "r")
        ids["large"] = world.publish("r", envelope=large)
        for _ in range(2):
            entry = await world.claim("q")
            if entry.id == ids["failed once"]:
                world.engine.operations.put_back(world.queue("q"), [entry], "first", costs_attempt=True)
            else:
                world.engine.operations.ack(world.queue("q"), (entry,))

    root = run(tmp_path / "s", make).root
    stored = PlainStore(root).of[RecordKind.ROUTES_BLOCK]
    assert stored == {ids["both"]: 2, ids["failed once"]: 2, ids["large"]: 1}
    before: dict[bytes, bytes | None] = {
        keys.routes_block_key(0): None,
        keys.STORE_HEADER_KEY: header.encode(header.StoreHeader(1, "default", format_version=1)),
    }
    edit(root, before | old_records(stored))
    assert_verified(root)

    async def go_on(world: World) -> None:
        entry = await world.claim("r")
        assert entry.id == ids["both"]
        world.engine.operations.ack(world.queue("r"), (entry,))
        entry = await world.claim("r")
        world.engine.operations.put_back(world.queue("r"), [entry], "second", costs_attempt=True)
        await world.engine.commits.checkpoint()
        assert await world.engine.removals.delete_queue(world.queue("q")) == 1

    world = run(root, go_on)
    assert_verified(world.root)
    plain = PlainStore(world.root)
    assert plain.of[RecordKind.ROUTES_BLOCK] == {ids["both"]: 1, ids["failed once"]: 1, ids["large"]: 1}
    assert not plain.of[RecordKind.ROUTES]
    assert plain.of[RecordKind.ATTEMPTS][ids["failed once"]] == ["first", "second"]
    assert plain.envelope(ids["large"]) == large

    async def end(world: World) -> None:
        await world.engine.removals.delete_queue(world.queue("r"))

    assert not any(PlainStore(run(world.root, end).root).message_ids().values())


def test_a_checkpoint_of_many_blocks_goes_through_them_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_counts, "_BLOCKS_AT_ONCE", 1)
    monkeypatch.setattr(route_counts, "_PER_TURN", 1)
    monkeypatch.setattr(checkpoint, "_COUNTS_PER_TURN", 3)

    async def steps(world: World) -> None:
        world.engine.definitions.declare_queue("r", QueueOptions())
        for _ in range(700):
            world.publish("q", "r")
        await world.engine.commits.checkpoint()
        for _ in range(300):
            world.publish("q", "r")  # some are in a block that is stored already
        await world.engine.removals.delete_queue(world.queue("q"))

    world = run(tmp_path / "s", steps)
    assert_verified(world.root)
    assert PlainStore(world.root).of[RecordKind.ROUTES_BLOCK] == dict.fromkeys(range(1000), 1)
