"""Failed messages that are given another chance, settled ones that are deleted: each step leaves all in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.protocol.messages import Moved
from kombu_opendata.selectors import compile_selector
from kombu_opendata.storage.operations.archive_and_delete import Selection
from kombu_opendata.storage.operations.moves import MoveTarget
from kombu_opendata.storage.records import keys, settled
from kombu_opendata.storage.records.history_log import MANUAL, REDRIVEN, Attempt
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.state.history_log import HistoryLog
from kombu_opendata.storage.state.settled_list import ListName
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.engine import World, run, sized
from tests.support.plain_store import PlainStore
from tests.support.verified import assert_verified


async def failed(world: World, count: int, name: str = "q") -> list[int]:
    """So many failed messages; every second one has kind=odd."""
    ids = []
    for number in range(count):
        headers = {"kind": "odd" if number % 2 else "even", "priority": "3"}
        ids.append(world.publish(name, headers=headers, priority=252))
        world.engine.operations.fail(world.queue(name), [await world.claim(name)], f"worker{number}")
    world.clock.advance(10)
    return ids


async def redrive(world: World, source: str = "q", target: str = "", **selection: Any) -> Moved:
    selector = selection.pop("selector", None)
    accepts = selection.pop("accepts", lambda _messages, _bytes: True)
    on_step = selection.pop("on_step", lambda _done: True)
    chosen = Selection(selector=compile_selector(selector) if selector else None, **selection)
    way = MoveTarget(world.queue(target or source), accepts, on_step)
    return await world.engine.moves.redrive(world.queue(source), chosen, way)


def test_failed_messages_come_back_with_no_attempts_and_their_attempts_are_kept(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = await failed(world, 10)
        done = await redrive(world)
        assert done.count == 10
        assert sorted(world.queue("q").messages.available) == ids
        entry = await world.claim("q")
        assert (entry.priority, entry.attempts) == (252, 1)
        await world.engine.commits.commit()
        await world.crash()
        world.engine.operations.fail(world.queue("q"), [world.queue("q").messages.in_flight[ids[0]]], "again")

    world = run(tmp_path / "store", steps)
    store = PlainStore(world.root)
    assert [row[0] for row in store.rows(RecordKind.FAILED, "q")] == [0]
    assert list(store.of[RecordKind.ATTEMPTS][0]) == ["worker0", "again"]
    assert store.message_ids()[RecordKind.PAYLOAD] == set(range(10))


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_crash_between_any_two_steps_leaves_each_message_in_one_place(tmp_path: Path, checkpoint: bool) -> None:
    async def steps(world: World) -> None:
        world.engine.definitions.declare_queue("other", QueueSettings())
        ids = await failed(world, 18)
        await world.engine.commits.checkpoint()
        ids += await failed(world, 4)
        moved = 0
        while moved < len(ids):
            moved += (await redrive(world, target="other", on_step=lambda _done: False)).count
            await world.engine.commits.commit()
            if checkpoint:
                await world.engine.commits.checkpoint()
            await world.crash()
            assert len(world.queue("other").messages) == moved
            left = [row[0] for row in await rows(world, "q")]
            assert sorted([*left, *world.queue("other").messages.available]) == ids
            assert await world.engine.pages.count_settled(world.queue("q"), "failed") == len(left)
        for id in ids:
            world.engine.operations.remove(world.queue("other"), [world.queue("other").messages.available[id]])

    world = run(tmp_path / "store", steps, sized(settled_entries=4, move_messages=3))
    assert PlainStore(world.root).message_ids()[RecordKind.PAYLOAD] == set()


async def rows(world: World, name: str, which: ListName = "failed") -> list[settled.SettledEntry]:
    queue = world.queue(name)
    log = queue.settled_list(which)
    found = []
    for number in range(log.first, log.tail + 1):
        found += await world.engine.buckets.read(queue, which, number)
    return found


def test_by_selector_by_ids_with_a_limit(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = await failed(world, 12)
        assert (await redrive(world, selector="kind = 'odd' AND priority = 3", limit=2)).count == 2
        assert sorted(world.queue("q").messages.available) == [ids[1], ids[3]]
        assert (await redrive(world, ids={ids[0], ids[1], 10**9})).count == 1
        assert (await redrive(world, selector="kind = 'none'")).count == 0
        assert (await redrive(world, limit=100)).count == 9

    run(tmp_path / "store", steps)


def test_what_the_target_has_is_not_put_there_twice(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.definitions.declare_queue("other", QueueSettings())
        ids = [world.publish("q", "other") for _ in range(6)]
        for _ in ids:
            world.engine.operations.fail(world.queue("q"), [await world.claim("q")], "me")
        world.engine.operations.ack(world.queue("other"), [await world.claim("other")])
        entry = world.queue("other").messages.available[ids[5]]
        world.engine.operations.remove(world.queue("other"), [entry])
        await world.engine.commits.checkpoint()
        done = await redrive(world, target="other")
        assert (done.count, done.already) == (1, 5)
        assert sorted(world.queue("other").messages.available) == ids[1:]
        assert [row[0] for row in await rows(world, "q")] == ids[:5]

    world = run(tmp_path / "store", steps)
    assert len(PlainStore(world.root).message_ids()[RecordKind.PAYLOAD]) == 6


def test_what_has_expired_stays_failed(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.publish("q", ttl_ms=5000)
        world.engine.operations.fail(world.queue("q"), [await world.claim("q")], "me")
        world.clock.advance(6000)
        done = await redrive(world)
        assert (done.count, done.expired) == (0, 1)
        assert len(await rows(world, "q")) == 1

    run(tmp_path / "store", steps)


def test_a_full_target_takes_no_more(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        await failed(world, 8)
        messages = world.queue("q").messages
        done = await redrive(world, accepts=lambda more, _bytes: len(messages) + more <= 3)
        assert (done.count, done.is_full) == (3, True)
        assert len(await rows(world, "q")) == 5

    run(tmp_path / "store", steps)


def test_a_dead_letter_that_waits_keeps_its_message_failed(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.definitions.declare_queue("letters", QueueSettings(arguments={"x-dead-letter-exchange": "x"}))
        ids = await failed(world, 2, "letters")
        assert (await redrive(world, "letters")).waiting == 2
        for id in ids:
            world.engine.operations.dead_letter_sent("letters", id)
        assert (await redrive(world, "letters")).count == 2

    run(tmp_path / "store", steps)


def test_settled_messages_are_deleted_by_age_by_ids_and_all(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        queue = world.queue("q")
        ids = await failed(world, 10)
        await world.engine.commits.checkpoint()
        world.clock.advance(10_000)
        ids += await failed(world, 5)

        async def remove(**selection: Any) -> int:
            return await world.engine.settled_moves.delete(
                queue, "failed", Selection(**selection), lambda _deleted: True
            )

        assert await remove(before_ms=world.clock.now_ms() - 5000) == 10
        await world.engine.commits.commit()
        await world.crash()
        queue = world.queue("q")
        assert [row[0] for row in await rows(world, "q")] == ids[10:]
        assert await remove(ids={ids[11], ids[0]}) == 1
        assert await remove() == 4
        assert await remove() == 0
        fresh = await failed(world, 1)
        assert [row[0] for row in await rows(world, "q")] == fresh

    world = run(tmp_path / "store", steps, sized(settled_entries=4))
    assert len(PlainStore(world.root).message_ids()[RecordKind.PAYLOAD]) == 1


def test_retention_goes_on_where_messages_were_taken_out(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = await failed(world, 20)
        await world.engine.commits.checkpoint()
        assert (await redrive(world, ids=set(ids[:9]))).count == 9
        await world.engine.commits.checkpoint()
        queue = world.queue("q")
        queue.options = queue.options._replace(failed_retention_seconds=1)
        world.clock.advance(5000)
        for _ in range(8):
            await world.engine.collector.sweep()
            await world.engine.commits.checkpoint()
        assert await rows(world, "q") == []

    world = run(tmp_path / "store", steps, sized(settled_entries=4))
    assert PlainStore(world.root).message_ids()[RecordKind.PAYLOAD] == set(range(9))


def test_history_tells_of_both_moves(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.definitions.declare_queue("other", QueueSettings())
        ids = await failed(world, 2)
        history = world.engine.state.history = HistoryLog()
        assert (await redrive(world, ids={ids[0]})).count == 1
        assert (await redrive(world, target="other")).count == 1
        at = world.clock.now_ms()
        chunks = [*history.chunks, history.open]
        assert [attempt for chunk in chunks for attempt in chunk.attempts] == [
            Attempt(ids[0], "q", "", at, at, 0, REDRIVEN | MANUAL),
            Attempt(ids[1], "q", "", at, at, 0, REDRIVEN | MANUAL),
        ]
        assert [chunk.routed for chunk in chunks if chunk.routed] == [{"other": [ids[1]]}]
        world.engine.state.history = None

    run(tmp_path / "store", steps)


@pytest.mark.parametrize("restart", [True, False])
def test_a_list_is_counted_exactly_also_where_buckets_are_not_full(tmp_path: Path, restart: bool) -> None:
    async def steps(world: World) -> None:
        ids = await failed(world, 50)
        await world.engine.commits.checkpoint()
        for chosen, left in ((ids[4:12], 42), (ids[20:23], 39), (ids[0:2], 37), (ids[2:4], 35), (ids[12:], 0)):
            await world.engine.settled_moves.delete(
                world.queue("q"), "failed", Selection(ids=frozenset(chosen)), lambda _n: True
            )
            assert await world.engine.pages.count_settled(world.queue("q"), "failed") == left
            await world.engine.commits.checkpoint()
            if restart:
                await world.crash()
            assert await world.engine.pages.count_settled(world.queue("q"), "failed") == left
        assert await world.engine.pages.count_settled(world.queue("q"), "done") == 0

    run(tmp_path / "store", steps, sized(settled_entries=4, count_buckets=3))


# ---------------------------------------------------------------------- archived
async def archive(world: World, **selection: Any) -> int:
    selector = selection.pop("selector", None)
    chosen = Selection(selector=compile_selector(selector) if selector else None, **selection)
    return await world.engine.settled_moves.archive_failed(world.queue("q"), chosen, lambda _archived: True)


@pytest.mark.parametrize("stored", [True, False], ids=["in the store", "in the journal"])
def test_archived_failed_messages_keep_all_they_have(tmp_path: Path, stored: bool) -> None:
    async def steps(world: World) -> None:
        ids = await failed(world, 10)
        if stored:
            await world.engine.commits.checkpoint()
        before = await rows_of(world, "failed")
        assert await archive(world, selector="kind = 'odd'", limit=4) == 4
        assert await archive(world, ids=ids[:3]) == 2
        await world.engine.commits.commit()
        await world.crash()
        assert await rows_of(world, "archived_failed") == [before[number] for number in (1, 3, 5, 7, 0, 2)]
        assert await rows_of(world, "failed") == [before[number] for number in (4, 6, 8, 9)]
        assert await world.engine.pages.count_settled(world.queue("q"), "archived_failed") == 6
        row, _left = await world.engine.pages.state_of(world.queue("q"), ids[0], before[9][1], 100)
        assert row is not None
        assert (row.state, row.settled_at_ms, row.attempts) == ("archived_failed", before[0][1], 1)
        world.clock.advance(1_000_000_000_000)
        await world.engine.collector.sweep()  # the retention of failed messages does not reach them
        assert len(await rows_of(world, "failed")) == 0
        assert len(await rows_of(world, "archived_failed")) == 6

    world = run(tmp_path / "store", steps, sized(settled_entries=3))
    store = PlainStore(world.root)
    assert store.message_ids()[RecordKind.PAYLOAD] == set(range(4)) | {5, 7}
    assert list(store.of[RecordKind.ATTEMPTS][7]) == ["worker7"]
    assert_verified(world.root, clock=world.clock)


async def rows_of(world: World, which: ListName) -> list[settled.SettledEntry]:
    rows, _after = await world.engine.pages.settled_rows(world.queue("q"), which, 0, 1000)
    return [settled.SettledEntry(row.id, row.settled_at_ms, row.attempts) for row in rows]


def test_archived_failed_messages_are_redriven_and_deleted(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = await failed(world, 5)
        assert await archive(world) == 5
        way = MoveTarget(world.queue("q"), lambda _messages, _bytes: True, lambda _done: True)
        done = await world.engine.moves.redrive(world.queue("q"), Selection(ids={ids[0]}), way, "archived_failed")
        assert done.count == 1
        assert list(world.queue("q").messages.available) == ids[:1]
        everything = Selection(before_ms=world.clock.now_ms() + 1)
        assert (
            await world.engine.settled_moves.delete(
                world.queue("q"), "archived_failed", everything, lambda _deleted: True
            )
            == 4
        )
        await world.engine.commits.commit()
        await world.crash()
        assert await rows_of(world, "archived_failed") == []

    world = run(tmp_path / "store", steps)
    assert PlainStore(world.root).message_ids()[RecordKind.PAYLOAD] == {0}
    assert_verified(world.root)


def test_a_queue_goes_with_its_archive_and_has_none_before(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        await failed(world, 3)
        await world.engine.commits.checkpoint()
        assert await world.engine.store.get(keys.archived_failed_key("q")) is None
        assert await archive(world) == 3
        await world.engine.commits.checkpoint()
        await world.engine.definitions.delete_queue(world.queue("q"))

    world = run(tmp_path / "store", steps)
    store = PlainStore(world.root)
    assert store.message_ids()[RecordKind.PAYLOAD] == set()
    assert not store.of[RecordKind.ARCHIVED_FAILED]
    assert_verified(world.root)
