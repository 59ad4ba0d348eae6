"""What is loaded of a queue before a message is delivered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.errors import CorruptRecord, StoreError
from kombu_opendata.storage.records import keys
from kombu_opendata.storage.slatedb.rows import Pair
from kombu_opendata.storage.state.cold_summaries import ColdSummaries, Summary
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.clock import AdvancedLoop
from tests.support.engine import SMALL_BUCKETS, World, run, sized
from tests.support.waiting import turns, until

LITTLE_AHEAD = sized(SMALL_BUCKETS, load_messages=8, load_first=2, load_below=2)


def test_messages_that_fall_due_at_once_are_loaded_as_they_are_delivered(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        due_at = world.clock.now_ms() + 1000
        ids = [world.publish("q", visible_at=due_at) for _ in range(400)]
        await world.engine.commits.checkpoint()
        cold = world.queue("q").messages.cold
        before = len(cold)
        assert before > 90
        assert await world.next("q") is None
        world.clock.advance(1000)
        for number, id in enumerate(ids):
            assert (await world.claim("q")).id == id
            assert before - len(cold) <= number // 4 + 4, "the bucket of the message, and those read ahead"
        assert await world.next("q") is None

    run(tmp_path / "s", steps, LITTLE_AHEAD)


def test_messages_that_fall_due_at_once_come_by_priority(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        due_at = world.clock.now_ms() + 1000
        found = []
        for number in range(400):
            priority, visible_at = number * 7 % 5, (due_at, -1, due_at + 1)[number % 3]
            found.append((visible_at > due_at, priority, world.publish("q", priority=priority, visible_at=visible_at)))
        await world.engine.commits.checkpoint()
        world.clock.advance(1000)
        for number, (later, _priority, id) in enumerate(sorted(found)):
            if number % 100 == 50:
                await world.engine.commits.checkpoint()
            if later and world.clock.now_ms() == due_at:
                assert await world.next("q") is None
                world.clock.advance(1)
            entry = await world.claim("q")
            assert entry.id == id
            world.engine.operations.ack(world.queue("q"), (entry,))
            world.engine.commits.commit_journal()
        assert await world.next("q") is None

    run(tmp_path / "s", steps, LITTLE_AHEAD)


def test_an_urgent_message_does_not_load_the_backlog_before_it(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = [world.publish("q") for _ in range(400)]
        await world.engine.commits.checkpoint()
        cold = world.queue("q").messages.cold
        before = len(cold)
        urgent = world.publish("q", priority=0)
        await world.next("q")
        await asyncio.gather(*world.engine.loader._loading.values())
        assert before - len(cold) <= 1
        assert (await world.claim("q")).id == urgent
        for number, id in enumerate(ids):
            assert (await world.claim("q")).id == id
            assert before - len(cold) <= number // 4 + 4, "the bucket of the message, and those read ahead"

    run(tmp_path / "s", steps, LITTLE_AHEAD)


def test_buckets_that_follow_each_other_are_read_by_one_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(world: World) -> None:
        ids = [world.publish("q") for _ in range(400)]
        await world.engine.commits.checkpoint()
        store, keys_read, buckets_scanned = world.engine.store, 0, 0
        get, scan = store.get, store.scan

        async def count(key: bytes) -> bytes | None:
            nonlocal keys_read
            keys_read += key.startswith(keys.active_key("q"))
            return await get(key)

        async def count_rows(first: bytes, *arguments: Any, **options: Any) -> list[Pair]:
            nonlocal buckets_scanned
            rows = await scan(first, *arguments, **options)
            buckets_scanned += len(rows) * first.startswith(keys.active_key("q"))
            return rows

        monkeypatch.setattr(store, "get", count)
        monkeypatch.setattr(store, "scan", count_rows)
        for id in ids:
            assert (await world.claim("q")).id == id
        assert keys_read < 10, "of more than 90 cold buckets"
        assert 80 < buckets_scanned <= 100, "each once"

    run(tmp_path / "s", steps, sized(LITTLE_AHEAD, load_messages=80))


def test_buckets_that_left_during_their_scan_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(world: World) -> None:
        for _ in range(400):
            world.publish("q")
        await world.engine.commits.checkpoint()
        store, queue = world.engine.store, world.queue("q")
        scan, loads = store.scan, 0

        async def slow(first: bytes, *arguments: Any, **options: Any) -> list[Pair]:
            nonlocal loads
            found = await scan(first, *arguments, **options)
            if first.startswith(keys.active_key("q")):
                assert options["in_thread"], "the rows of dozens of buckets must not block the event loop"
                loads += 1
                for number in list(queue.messages.cold):
                    queue.messages.cold.take(number)
            return found

        monkeypatch.setattr(store, "scan", slow)
        before = len(queue.messages.available)
        delivered = 0
        while (await world.next("q")) is not None:
            world.engine.operations.ack(queue, (await world.claim("q"),))
            delivered += 1
        assert loads == 1
        assert delivered <= before + 4, "those that were in memory, and the bucket that a delivery waited for"

    run(tmp_path / "s", steps, sized(LITTLE_AHEAD, load_messages=80))


def test_the_buckets_that_follow_end_at_another_priority_a_gap_and_when_there_are_enough() -> None:
    cold = ColdSummaries()
    for number, priority in ((3, 1), (4, 1), (5, 1), (6, 2), (7, 2), (9, 2)):
        cold.note(number, Summary((priority, 10 * number), None, 4, None))
    assert cold.following(3, 5) == [3, 4]
    assert cold.following(3, -1) == [3]
    assert cold.following(3, 100) == [3, 4, 5]
    for number in (3, 4, 5):
        cold.take(number)
    assert cold.next() == 6
    assert cold.following(6, 100) == [6, 7]
    cold.note(5, Summary((2, 50), 10, 4, None, best_delayed=(0, 51)))
    assert cold.wanted(20, None) == 5
    assert cold.following(5, 100) == [5], "the delayed message is why it is next"
    for number in range(10, 60):
        cold.note(number, Summary((2, 10 * number), None, 1, None))
    cold.take(5)
    cold.take(6)
    cold.take(7)
    assert cold.next() == 9
    assert cold.following(9, 100) == list(range(9, 21)), "no more than stay in memory"


def test_a_load_begins_before_the_loaded_messages_are_delivered(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for _ in range(400):
            world.publish("q")
        await world.engine.commits.checkpoint()
        queue, loader = world.queue("q"), world.engine.loader
        woken: list[str] = []

        async def deliver() -> list[str]:
            """Deliver a message without a wait; return the wakes of the load that this began."""
            woken.clear()
            entry, is_loading = loader.next_entry(queue, world.clock.now_ms(), woken.append)
            assert entry is not None
            assert not is_loading
            world.engine.operations.claim(queue, (entry,), bytes(16))
            await asyncio.gather(*loader._loading.values())
            await turns()
            return list(woken)

        assert await deliver() == ["q", "q"], "a first part, and then the rest"
        assert queue.at_hand == 8
        for left in (7, 6, 5, 4, 3, 2):
            assert await deliver() == []
            assert queue.at_hand == left
        assert await deliver() == ["q"]
        assert queue.at_hand == 8

    run(tmp_path / "s", steps, LITTLE_AHEAD)


def test_a_load_beside_an_urgent_message_has_all_messages(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for _ in range(400):
            world.publish("q")
        await world.engine.commits.checkpoint()
        urgent, queue = world.publish("q", priority=0), world.queue("q")
        queue.at_hand = 2
        entry, _is_loading = world.engine.loader.next_entry(queue, world.clock.now_ms())
        assert entry is not None
        assert entry.id == urgent
        before = len(queue.messages.available)
        await asyncio.gather(*world.engine.loader._loading.values())
        assert 79 <= len(queue.messages.available) - before < 79 + 4

    run(tmp_path / "s", steps, sized(LITTLE_AHEAD, load_messages=80))


def test_an_expired_message_is_removed_when_it_would_be_next(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        first, second = world.publish("q", ttl_ms=1000), world.publish("q")
        for passed_ms, id, expired in ((0, first, 0), (999, first, 0), (1, second, 1)):
            world.clock.advance(passed_ms)
            entry = await world.next("q")
            assert (entry and entry.id, world.engine.operations.expired) == (id, expired)
        world.queue("q").messages.fresh.add(world.publish("q", ttl_ms=0, priority=0))
        assert await world.next("q") != entry, "it may be delivered immediately"

    run(tmp_path / "s", steps)


@pytest.mark.parametrize(
    ("error", "woken"),
    [
        (StoreError("no answer"), ["q"]),
        (CorruptRecord("damaged", key=b"key", offset=1), []),
        (RuntimeError("unforeseen"), []),
    ],
)
def test_only_a_store_that_fails_is_read_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    woken: list[str],
) -> None:
    async def steps(world: World) -> None:
        ids = [world.publish("q") for _ in range(40)]
        await world.engine.commits.checkpoint()
        loop, names = asyncio.get_running_loop(), list[str]()

        async def fail(*_arguments: Any, **_options: Any) -> None:
            raise error

        assert isinstance(loop, AdvancedLoop)
        queue = world.queue("q")
        queue.at_hand = 2
        with monkeypatch.context() as patch:
            for method in ("get", "scan"):
                patch.setattr(world.engine.store, method, fail)
            world.engine.loader.next_entry(queue, world.clock.now_ms(), names.append)
            await until(lambda: f"queue 'q' can't be read: {error}" in caplog.text)
            loop.advance(1.0)
            await turns(2)
            assert names == woken
        assert [(await world.claim("q")).id for _ in ids] == ids

    run(tmp_path / "s", steps, sized(LITTLE_AHEAD, load_messages=80), loop=AdvancedLoop)


def test_the_error_of_a_damaged_bucket_has_its_key(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for _ in range(40):
            world.publish("q")
        await world.engine.commits.checkpoint()
        number = max(world.queue("q").messages.cold)
        batch = world.engine.store.batch()
        batch.put(keys.active_key("q", number), b"damaged")
        await world.engine.store.write(batch)
        with pytest.raises(CorruptRecord) as caught:
            await world.engine.loader.load_bucket(world.queue("q"), number)
        assert caught.value.key == keys.active_key("q", number)
        assert number in world.queue("q").messages.cold

    run(tmp_path / "s", steps, SMALL_BUCKETS)


def test_a_damaged_message_that_is_delayed_does_not_set_the_clock(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        start = world.clock.now_ms()
        kept = world.publish("q")
        delayed = world.publish("q", visible_at=start + 86_400_000)
        await world.engine.commits.checkpoint()
        world.engine.payloads.shrink()
        world.engine.commits.batch.put(keys.payload_key(delayed), b"damaged")
        await world.engine.commits.checkpoint()
        assert (await world.claim("q")).id == kept
        world.clock.advance(1)
        await world.next("q")
        assert delayed not in world.queue("q").messages.available, "it has failed"
        await world.engine.commits.commit()
        await world.crash()
        assert start <= world.engine.state.newest_ms < start + 86_400_000

    run(tmp_path / "s", steps)


def test_messages_by_their_ids_load_their_own_buckets(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = [world.publish("q") for _ in range(400)]
        await world.engine.commits.checkpoint()
        messages = world.queue("q").messages
        before = set(messages.cold)
        await world.engine.loader.find_entries(world.queue("q"), [ids[200], ids[201], ids[399], ids[-1] + 1])
        loaded = before - set(messages.cold)
        assert len(loaded) in (1, 2), "the last bucket was in memory"
        assert {ids[200], ids[201], ids[399]} <= set(messages.available)
        queue = world.queue("q")
        world.engine.definitions.drop_queue("q")
        await world.engine.loader.find_entries(queue, [ids[100]])
        assert ids[100] not in messages.available, "the queue was deleted"

    run(tmp_path / "s", steps, SMALL_BUCKETS)


def test_partitions_take_turns_from_cold_buckets(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.definitions.declare_queue("tenants", QueueSettings(arguments={"x-partition-by": "tenant"}))
        await world.engine.commits.commit()
        ids: dict[str, list[int]] = {"gold": [], "silver": []}
        for number in range(400):
            tenant = "silver" if number >= 380 else "gold"
            ids[tenant].append(world.publish("tenants", headers={"tenant": tenant}))
        await world.engine.commits.checkpoint()
        cold = world.queue("tenants").messages.cold
        before = len(cold)
        assert before > 40
        for number in range(20):
            claimed = {(await world.claim("tenants")).id for _ in range(2)}
            assert claimed == {ids["gold"][number], ids["silver"][number]}
            assert before - len(cold) <= (2 * number) // 4 + 8, "what is delivered, and what is read ahead"
        for id in ids["gold"][20:]:
            assert (await world.claim("tenants")).id == id
        assert await world.next("tenants") is None

    run(tmp_path / "s", steps, LITTLE_AHEAD)


def test_a_load_of_partitions_ends_when_it_has_enough(tmp_path: Path) -> None:
    async def publish(world: World) -> None:
        world.engine.definitions.declare_queue("tenants", QueueSettings(arguments={"x-partition-by": "tenant"}))
        await world.engine.commits.commit()
        for number in range(80):
            world.publish("tenants", headers={"tenant": "abcd"[number % 4]}, envelope=b"payload" * 1000)

    async def load(world: World) -> None:
        queue = world.queue("tenants")
        queue.at_hand = 2
        assert world.engine.loader.next_entry(queue, world.clock.now_ms()) == (None, True)
        await asyncio.gather(*world.engine.loader._loading.values())
        assert queue.at_hand == 8

    run(tmp_path / "s", publish, LITTLE_AHEAD)
    run(tmp_path / "s", load, LITTLE_AHEAD)


def test_a_message_whose_payload_is_lost_fails_and_the_others_are_delivered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ids: list[int] = []

    async def publish(world: World) -> None:
        settings = QueueSettings(arguments={"x-dead-letter-exchange": "dead"})
        world.engine.definitions.declare_queue("letters", settings)
        await world.engine.commits.commit()
        ids.extend(world.publish("letters", envelope=b"payload" * 1000) for _ in range(8))

    async def deliver(world: World) -> None:
        batch = world.engine.store.batch()
        batch.delete(keys.payload_key(ids[2]))
        await world.engine.store.write(batch)
        queue = world.queue("letters")
        assert [(await world.claim("letters")).id for _ in range(7)] == [*ids[:2], *ids[3:]]
        assert await world.next("letters") is None
        assert queue.counts.rejected == 1
        assert not world.engine.state.dead_letters
        assert f"message {ids[2]} of queue 'letters' can't be delivered" in caplog.text

    run(tmp_path / "s", publish, SMALL_BUCKETS)
    run(tmp_path / "s", deliver, SMALL_BUCKETS)
