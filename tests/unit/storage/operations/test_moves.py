"""Waiting messages that are moved or copied to another queue: each step leaves all of them where they should be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.protocol.messages import Moved
from kombu_opendata.selectors import compile_selector
from kombu_opendata.storage.operations.archive_and_delete import Selection
from kombu_opendata.storage.operations.moves import MoveTarget
from kombu_opendata.storage.operations.repeated_requests import Call
from kombu_opendata.storage.read.queue_pages import AVAILABLE, DELAYED
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.engine import SESSION, World, run, sized
from tests.support.plain_store import PlainStore
from tests.support.verified import assert_verified

BOTH = (AVAILABLE, DELAYED)


def declare(world: World, name: str = "other", arguments: dict[str, Any] | None = None) -> None:
    world.engine.definitions.declare_queue(name, QueueSettings(arguments=arguments or {}))


def fill(world: World, count: int) -> list[int]:
    """So many waiting messages; every second one has kind=odd, every third is delayed."""
    ids = []
    for number in range(count):
        later = world.clock.now_ms() + 5000 if number % 3 == 2 else -1
        ids.append(world.publish("q", headers={"kind": "odd" if number % 2 else "even"}, visible_at=later))
    world.clock.advance(10)
    return ids


async def move(
    world: World,
    source: str = "q",
    target: str = "other",
    *,
    copies: bool = False,
    states: tuple[str, ...] = BOTH,
    where: str = "",
    accepts: Callable[[int, int], bool] = lambda _messages, _bytes: True,
    on_step: Callable[[list[int]], bool] = lambda _ids: True,
    call: Call | None = None,
    **selection: Any,
) -> Moved:
    chosen = Selection(selector=compile_selector(where) if where else None, **selection)
    way = MoveTarget(world.queue(target), accepts, on_step, call)
    return await world.engine.moves.waiting(world.queue(source), chosen, way, states, copies=copies)


async def ids_in(world: World, name: str) -> list[int]:
    rows, after = await world.engine.pages.waiting(world.queue(name), -1, 10_000, BOTH)
    assert after == -1
    return [row.id for row in rows]


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("copies", [True, False])
def test_a_crash_between_any_two_steps_leaves_each_message_in_its_place(
    tmp_path: Path, checkpoint: bool, copies: bool
) -> None:
    async def steps(world: World) -> None:
        declare(world)
        ids = fill(world, 30)
        await world.engine.commits.checkpoint()
        assert world.queue("q").messages.cold
        moved = 0
        while moved < len(ids):
            moved += (await move(world, copies=copies, on_step=lambda ids: not ids)).count
            await world.engine.commits.commit()
            if checkpoint:
                await world.engine.commits.checkpoint()
            await world.crash()
            there = await ids_in(world, "other")
            assert len(there) == len(world.queue("other").messages) == moved
            assert sorted(await ids_in(world, "q")) == (ids if copies else sorted(set(ids) - set(there)))
        assert world.queue("q").counts.moved == (0 if copies else 30)
        assert world.queue("other").counts.published == 30
        for name in ("q", "other"):
            await world.engine.definitions.purge(world.queue(name))
        await world.engine.commits.checkpoint()

    world = run(tmp_path / "store", steps, sized(bucket_entries=4, loaded_buckets=4, move_messages=3))
    assert PlainStore(world.root).message_ids()[RecordKind.PAYLOAD] == set()
    assert_verified(world.root)


def test_a_copy_is_settled_in_each_queue_by_itself(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        declare(world)
        first, second, _third = fill(world, 3)
        assert (await move(world, copies=True)).count == 3
        assert (await move(world, copies=True)).already == 3
        world.engine.operations.fail(world.queue("other"), [await world.claim("other")], "w")
        world.engine.operations.delete(world.queue("q"), [world.queue("q").messages.available[second]])
        assert (await move(world, copies=True)).already == 2  # failed is there, too
        assert await ids_in(world, "other") == [second, second + 1]
        assert first in await ids_in(world, "q")
        await world.engine.commits.commit()
        await world.crash()

    world = run(tmp_path / "store", steps)
    store = PlainStore(world.root)
    assert store.message_ids()[RecordKind.PAYLOAD] == {0, 1, 2}
    assert list(store.of[RecordKind.ATTEMPTS][0]) == ["w"]
    assert_verified(world.root)


def test_by_filter_by_ids_by_state_with_a_limit(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        declare(world)
        ids = fill(world, 12)  # delayed are 2, 5, 8, 11
        assert (await move(world, where="kind = 'odd'", limit=2)).count == 2
        assert await ids_in(world, "other") == [ids[1], ids[3]]
        assert (await move(world, ids={ids[0], ids[1], 10**9})).count == 1
        assert (await move(world, where="kind = 'none'")).count == 0
        assert (await move(world, states=(DELAYED,), limit=1)).count == 1
        assert await ids_in(world, "other") == [ids[0], ids[1], ids[2], ids[3]]
        assert (await move(world, states=(AVAILABLE,))).count == 5
        assert await ids_in(world, "q") == [ids[5], ids[8], ids[11]]
        assert (await move(world)).count == 3

    run(tmp_path / "store", steps)


def test_what_is_in_flight_or_comes_meanwhile_stays(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        declare(world)
        ids = fill(world, 8)
        held = await world.claim("q")
        new: list[int] = []

        def publish_one(ids: list[int]) -> bool:
            new.append(world.publish("q"))
            return True

        assert (await move(world, on_step=publish_one)).count == 7
        assert await ids_in(world, "q") == new
        assert held.id not in await ids_in(world, "other")
        assert await ids_in(world, "other") == ids[1:]

    run(tmp_path / "store", steps, sized(move_messages=2))


def test_a_message_keeps_its_delay_its_deadline_and_its_place_and_starts_with_no_attempts(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        declare(world, arguments={"x-message-ttl": 3000})
        now = world.clock.now_ms()
        urgent = world.publish("q", priority=100, headers={"priority": "155"}, ttl_ms=60_000)
        retried = world.publish("q")
        world.engine.operations.put_back(
            world.queue("q"), [entry := await world.claim("q")], "w", costs_attempt=True, at_once=True
        )
        assert entry.id == urgent
        waiting = world.queue("q").messages.available[retried]
        world.engine.operations.delay(world.queue("q"), [waiting], 7000)
        world.clock.advance(100)
        assert (await move(world)).count == 2
        entries = world.queue("other").messages.available
        at = now + 100
        assert (entries[urgent].priority, entries[urgent].attempts, entries[urgent].deadline) == (100, 0, at + 3000)
        assert (entries[retried].visible_at, entries[retried].deadline) == (now + 7000, now + 10_000)

    run(tmp_path / "store", steps)


def test_a_message_that_went_and_came_back_has_no_lease_token_twice(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        declare(world)
        world.publish("q")
        tokens = set()
        for _ in range(5):  # the clock stands still
            entry = await world.claim("q")
            tokens.add(entry.claimed_at)
            world.engine.operations.put_back(world.queue("q"), [entry], "w", costs_attempt=False)
            assert (await move(world)).count == 1
            assert (await move(world, "other", "q")).count == 1
            world.clock.advance(0)
            entry = world.queue("q").messages.available[entry.id]
            world.clock.advance(max(0, entry.visible_at - world.clock.now_ms()))
        assert len(tokens) == 5

    run(tmp_path / "store", steps)


def test_it_ends_when_the_target_is_full_and_goes_on_later(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        declare(world)
        ids = fill(world, 10)
        room = [4]
        done = await move(world, accepts=lambda messages, _bytes: messages <= room[0])
        assert (done.count, done.is_full) == (4, True)
        done = await move(world, accepts=lambda messages, _bytes: messages <= 100)
        assert (done.count, done.is_full) == (6, False)
        assert await ids_in(world, "other") == ids

    run(tmp_path / "store", steps)


@pytest.mark.parametrize("copies", [True, False])
def test_a_target_whose_messages_must_match_its_filter_gets_no_others(tmp_path: Path, copies: bool) -> None:
    async def steps(world: World) -> None:
        declare(world, "strict", {"x-filter": "kind = 'odd'", "x-filter-mode": "all"})
        declare(world, "more", {"x-filter": "kind = 'odd'"})
        fill(world, 6)
        done = await move(world, target="strict", copies=copies)
        assert (done.count, done.unmatched) == (3, 3)
        done = await move(world, target="more", copies=copies)
        assert done.unmatched == 0
        assert done.count == (6 if copies else 3)

    run(tmp_path / "store", steps)


def test_a_dead_letter_that_is_not_published_yet_stays(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        declare(world, arguments={"x-dead-letter-exchange": "amq.fanout"})
        ids = fill(world, 2)
        await move(world, copies=True)
        other = world.queue("other")
        world.engine.operations.remove(other, [other.messages.available[ids[0]]], "expired")
        done = await move(world)
        assert (done.count, done.waiting, done.already) == (0, 1, 1)

    run(tmp_path / "store", steps)


def test_what_is_past_its_deadline_stays(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        declare(world)
        world.publish("q", ttl_ms=50)
        kept = world.publish("q", ttl_ms=5000)
        world.clock.advance(100)
        done = await move(world)
        assert (done.count, done.expired) == (1, 1)
        assert await ids_in(world, "other") == [kept]

    run(tmp_path / "store", steps)


def test_a_repeated_call_continues_its_count_and_its_limit(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        declare(world)
        fill(world, 20)
        call = Call(SESSION, 7)
        done = await move(world, limit=10, call=call, on_step=lambda _done: False)
        assert done.count == 3
        await world.engine.commits.commit()
        await world.crash()
        for _ in range(2):
            assert (await move(world, limit=10, call=call)).count == 10
        assert len(await ids_in(world, "other")) == 10
        assert (await move(world, limit=10, call=Call(SESSION, 8))).count == 10

    run(tmp_path / "store", steps, sized(move_messages=3))


def test_two_calls_of_a_session_at_the_same_time_each_have_their_limit(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for name in ("other", "third"):
            declare(world, name)
        fill(world, 40)
        calls = [move(world, target=name, limit=10, call=Call(SESSION, n), copies=True)
                 for n, name in enumerate(("other", "third"))]  # fmt: skip
        assert [done.count for done in await asyncio.gather(*calls)] == [10, 10]
        assert [len(await ids_in(world, name)) for name in ("other", "third")] == [10, 10]

    run(tmp_path / "store", steps, sized(move_messages=3))


def test_the_history_tells_where_a_message_went(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        declare(world)
        (id,) = fill(world, 1)
        await move(world)
        await world.engine.commits.checkpoint()
        async with world.engine.history.reading(indexed=True) as reader:
            found = await reader.statuses([id])
        assert {one.queue: one.status for one in found[id]} == {"q": "moved", "other": "available"}

    run(tmp_path / "store", steps)
