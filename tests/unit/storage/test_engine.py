"""The engine on real stores: RFC workflow, ids, attempts, chunks, collection, clocks, crashes, a full disk."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.errors import InvalidMessage, NewerFormat, RequestError, StoreFull
from kombu_opendata.storage import operations, queue_state
from kombu_opendata.storage.clock import ManualClock
from kombu_opendata.storage.engine import Engine, EngineSettings
from kombu_opendata.storage.journal import Journal
from kombu_opendata.storage.queue_state import Entry
from kombu_opendata.storage.records import active, header, keys, settled
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.state import Queue, QueueOptions
from tests.support.plain_store import PlainStore

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
        shutil.copytree(self.root, copied)
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
            "seq": self.number, "total": len(names),
        }  # fmt: skip
        return self.engine.publish([self.queue(name) for name in names], envelope, {}, **{**given, **changes})

    async def next(self, name: str) -> Entry | None:
        for _ in range(1000):
            entry, loading = self.engine.next_entry(self.queue(name), self.clock.now_ms())
            if not loading:
                return entry
            await asyncio.gather(*self.engine._loading.values())
        raise AssertionError("loading does not end")

    async def claim(self, name: str, session: bytes = SESSION) -> Entry:
        entry = await self.next(name)
        assert entry is not None
        self.engine.claim(self.queue(name), (entry,), session)
        return entry


def run(root: Path, steps: Callable[[World], Awaitable[None]], settings: EngineSettings = SETTINGS) -> World:
    """Run ``steps`` on a store with the queue ``q`` and close it."""
    world = World(root, settings)

    async def main() -> None:
        await world.open()
        if "q" not in world.engine.state.queues:
            world.engine.declare_queue("q", QueueOptions(max_attempts=2))
        await world.engine.commit()
        await steps(world)
        await world.engine.close()

    asyncio.run(main())
    return world


async def nothing(_world: World) -> None:
    pass


# ---- the RFC's workflow
def test_a_new_queue_has_its_config_and_three_empty_records(tmp_path: Path) -> None:
    """Workflow 1: in one commit."""

    async def steps(world: World) -> None:
        await world.engine.checkpoint()
        written: list[set[bytes]] = []
        write = world.engine.store.write

        async def spy(batch: Any) -> None:
            before = await world.engine.store.scan(b"", None)
            await write(batch)
            written.append({key for key, _ in await world.engine.store.scan(b"", None)} - {key for key, _ in before})

        world.engine.store.write = spy  # type: ignore[method-assign]
        world.engine.declare_queue("new", QueueOptions(3, 60))
        await world.engine.checkpoint()
        assert written == [
            {key("new") for key in (keys.config_key, keys.options_key, keys.active_key, keys.done_key, keys.failed_key)}
        ]

    store = PlainStore(run(tmp_path / "s", steps).root)
    assert store.active("new") == ([], [])
    assert store.buckets(RecordKind.DONE, "new") == store.buckets(RecordKind.FAILED, "new") == {0: []}
    assert store.of[RecordKind.CONFIG]["new"] == ("exchange = '' AND routing_key = 'new'", 3, 60)


def test_a_message_from_publish_to_done_and_failed(tmp_path: Path) -> None:
    """Workflow 2 to 4, one record after the other."""

    async def steps(world: World) -> None:
        engine, queue, now = world.engine, world.queue("q"), world.clock.now_ms

        async def stored() -> tuple[list[Any], list[Any]]:
            await engine.checkpoint()
            value = await engine.store.get(keys.active_key("q"))
            return active.decode(keys.active_key("q"), value or b"")

        id, published_at = world.publish("q", envelope=b"body"), now()
        assert await stored() == ([(id, 255, published_at, 0, 0)], [])
        entry = await world.claim("q")
        claimed = (id, 255, published_at, published_at + 60_000, 1)
        assert await stored() == ([], [claimed])
        world.clock.advance(5)
        engine.put_back(queue, (entry,), "me", costs_attempt=True)  # unsuccessful, has attempts left
        assert await stored() == ([(id, 255, published_at + 1, 0, 1)], [])
        entry = await world.claim("q")
        engine.put_back(queue, (entry,), "you", costs_attempt=True)  # none left
        assert await stored() == ([], [])
        second = world.publish("q")
        engine.ack(queue, (await world.claim("q"),))
        assert await stored() == ([], [])
        engine.fail(queue, (), "nobody")
        assert [row[0] for row in (await settled_rows(world, "q"))] == [id, second]

    world = run(tmp_path / "s", steps)
    store, now = PlainStore(world.root), world.clock.now_ms()
    (failed,) = store.rows(RecordKind.FAILED, "q")
    (done,) = store.rows(RecordKind.DONE, "q")
    assert failed[1:] == (now, 2)
    assert done[1:] == (now, 1)
    assert store.of[RecordKind.ATTEMPTS] == {failed[0]: ["me", "you"]}
    assert store.envelope(failed[0]) == b"body"
    assert store.of[RecordKind.METADATA][failed[0]].message_id == failed[0]


async def settled_rows(world: World, name: str) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for key in (keys.failed_key(name), keys.done_key(name)):
        found += settled.decode(key, await world.engine.store.get(key) or b"")
    return found


# ---- ids, attempts, payloads
def test_ids_are_never_used_twice(tmp_path: Path) -> None:
    ids: list[int] = []

    async def steps(world: World) -> None:
        ids.append(world.publish("q"))
        await world.engine.commit()
        await world.crash()
        ids.append(world.publish("q"))
        await world.engine.checkpoint()
        await world.crash()
        ids.extend(world.publish("q") for _ in range(operations.BLOCK_IDS + 1))

    world = run(tmp_path / "s", steps)
    assert ids == sorted(set(ids))
    assert PlainStore(world.root).of[RecordKind.SEQ_BLOCK] == {None: (ids[-1], operations.BLOCK_IDS)}
    run(world.root, nothing)


def test_attempts_of_two_queues_and_over_checkpoints(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.declare_queue("r", QueueOptions())
        world.publish("q", "r")
        for name, consumer in (("q", "one"), ("r", "two"), ("q", "three")):
            entry = await world.claim(name)
            world.engine.put_back(world.queue(name), (entry,), consumer, costs_attempt=True)
            world.clock.advance(1)
            await world.engine.checkpoint()

    store = PlainStore(run(tmp_path / "s", steps).root)
    assert list(store.of[RecordKind.ATTEMPTS].values()) == [["one", "two", "three"]]


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 1 << 20, (1 << 20) + 1, 5 << 20])
def test_payloads_of_every_size(tmp_path: Path, size: int) -> None:
    envelope = os.urandom(size)

    async def steps(world: World) -> None:
        id = world.publish("q", envelope=envelope)
        assert (await world.claim("q")).id == id
        held = list(world.queue("q").messages.in_flight.values())
        world.engine.put_back(world.queue("q"), held, "", costs_attempt=False)
        world.clock.advance(1)
        await world.engine.checkpoint()
        await world.crash()
        entry = await world.claim("q")
        assert world.engine.payloads.find(entry.id) == envelope

    store = PlainStore(run(tmp_path / "s", steps).root)
    assert [store.envelope(id) for id in store.of[RecordKind.PAYLOAD]] == [envelope]


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
            world.engine.ack(world.queue("q"), (entry,))

    run(tmp_path / "s", steps, EngineSettings(sync=False, payload_cache_bytes=1000))


def test_a_small_payload_before_ones_larger_than_the_cache(tmp_path: Path) -> None:
    sizes = [400, 70_000, 300, 80_000, 90_000, 0, 70_000, 70_000, 1]

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
        world.engine.declare_queue("r", QueueOptions())
        for envelope in (b"small", large):
            world.publish("q", "r", envelope=envelope)
        for _ in range(2):
            world.engine.ack(world.queue("q"), (await world.claim("q"),))
        await world.engine.checkpoint()
        world.clock.advance(2 * 86_400_000)
        await world.engine.collector.sweep()
        await world.engine.checkpoint()
        assert world.engine.payloads.find((await world.claim("r")).id) == b"small"

    world = run(tmp_path / "s", steps)
    store = PlainStore(world.root)
    assert len(store.of[RecordKind.PAYLOAD]) == len(store.of[RecordKind.METADATA]) == 2
    assert set(store.of[RecordKind.ROUTES].values()) == {1}

    async def purge(world: World) -> None:
        assert await world.engine.delete_queue(world.queue("r")) == 1

    store = PlainStore(run(world.root, purge).root)
    assert not any(store.message_ids().values())


def test_a_large_message_that_is_purged_before_it_was_stored_leaves_nothing(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.publish("q", envelope=bytes(3 << 20))
        assert await world.engine.purge(world.queue("q")) == 1

    assert not any(PlainStore(run(tmp_path / "s", steps).root).message_ids().values())


def test_settled_messages_are_collected_when_their_retention_is_over(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for settle in (world.engine.ack, lambda queue, entries: world.engine.fail(queue, entries, "c")):
            world.publish("q")
            settle(world.queue("q"), (await world.claim("q"),))
        await world.engine.commit()
        world.clock.advance(86_400_000 - 1)
        assert await world.engine.collector.sweep() == 0
        world.clock.advance(1)
        assert await world.engine.collector.sweep() == 1
        await world.crash()  # the sweep is done again
        assert await world.engine.collector.sweep() == 1
        await world.engine.checkpoint()
        await world.crash()
        assert await world.engine.collector.sweep() == 0
        world.clock.advance(13 * 86_400_000)
        assert await world.engine.collector.sweep() == 1

    store = PlainStore(run(tmp_path / "s", steps).root)
    assert not any(store.message_ids().values())
    assert store.buckets(RecordKind.DONE, "q") == store.buckets(RecordKind.FAILED, "q") == {0: []}
    assert not store.of[RecordKind.PRODUCER]  # a day after the session's last publish


def test_expired_messages_go_also_where_nobody_consumes(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for _ in range(700):
            world.publish("q", ttl_ms=1000)
        await world.engine.checkpoint()
        await world.crash()
        assert world.queue("q").messages.cold
        world.clock.advance(1000)
        await world.engine.collector.sweep()
        assert len(world.queue("q").messages) == 0

    assert not any(PlainStore(run(tmp_path / "s", steps).root).message_ids().values())


def test_a_checkpoint_that_began_is_not_cut_off_with_its_caller(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        id = world.publish("q")
        caller = asyncio.create_task(world.engine.checkpoint())
        for _ in range(3):
            await asyncio.sleep(0)
        assert world.engine.checkpoint_started_at is not None
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        await world.engine.checkpoint()
        await world.crash()
        assert (await world.claim("q")).id == id

    run(tmp_path / "s", steps)


def test_a_queue_that_is_deleted_and_declared_again_at_once(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for _ in range(2):
            world.publish("q", envelope=b"old")
        world.engine.ack(world.queue("q"), (await world.claim("q"),))
        await world.engine.checkpoint()
        await world.engine.purge(world.queue("q"))
        world.engine.drop_queue("q")
        world.engine.declare_queue("q", QueueOptions(max_attempts=9))
        world.publish("q", envelope=b"new")
        await world.engine.commit()
        await world.crash()
        assert world.queue("q").options.max_attempts == 9
        assert world.engine.payloads.find((await world.claim("q")).id) == b"new"

    world = run(tmp_path / "s", steps)
    store = PlainStore(world.root)
    assert [store.envelope(id) for id in store.of[RecordKind.METADATA]] == [b"new"]
    assert store.of[RecordKind.CONFIG]["q"][1] == 9
    run(world.root, nothing)


def test_what_is_published_into_a_queue_that_is_being_deleted_goes_with_it(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for _ in range(50):
            world.publish("q")
        await world.engine.checkpoint()
        assert world.queue("q").messages.cold
        deleting = asyncio.create_task(world.engine.delete_queue(world.queue("q")))
        while not deleting.done():
            if "q" in world.engine.state.queues:
                world.publish("q")
                world.engine.commit_journal()
            await asyncio.sleep(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_state, "BUCKET_ENTRIES", 4)
        patch.setattr(queue_state, "MAX_LOADED_BUCKETS", 3)
        patch.setattr(queue_state, "KEPT_LOADED_BUCKETS", 2)
        store = PlainStore(run(tmp_path / "s", steps).root)
    assert not any(store.message_ids().values())


# ---- producers, sessions, clocks
def test_a_publish_is_recognized_after_a_crash(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        id = world.publish("q", seq=7)
        await world.engine.commit()
        world.publish("q", seq=8)  # not committed
        await world.crash()
        last = world.engine.published(SESSION, 7)
        assert last is not None
        assert last[:3] == (7, id, 1)
        assert world.engine.published(SESSION, 8) is None
        assert world.engine.published(OTHER, 7) is None
        assert len(world.queue("q").messages) == 1
        world.engine.forget_session(SESSION)
        await world.engine.checkpoint()
        await world.crash()
        assert world.engine.published(SESSION, 7) is None

    assert not PlainStore(run(tmp_path / "s", steps).root).of[RecordKind.PRODUCER]


def test_names_of_sessions_that_hold_nothing_do_not_pile_up(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.publish("q", session=b"")
        world.engine.name_session(SESSION, "holder")
        world.engine.name_session(OTHER, "idle")
        await world.claim("q")

    world = run(tmp_path / "s", steps)
    assert set(PlainStore(world.root).of[RecordKind.LEASES]) == {SESSION, OTHER}

    async def look(world: World) -> None:
        assert world.engine.state.session_names == {SESSION: "holder"}

    assert set(PlainStore(run(world.root, look).root).of[RecordKind.LEASES]) == {SESSION}


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("last", ["publish", "claim", "ack"])
def test_a_clock_that_was_set_back_over_a_restart(tmp_path: Path, last: str, stored: bool) -> None:
    """Nothing disappears until the clock has caught up, and no token comes twice."""

    async def steps(world: World) -> None:
        world.publish("q")
        held = await world.claim("q") if last != "publish" else None
        if held is not None and last == "ack":
            world.clock.advance(10)
            world.engine.ack(world.queue("q"), (held,))
            world.publish("q")
        newest = world.clock.now_ms()
        await (world.engine.checkpoint() if stored else world.engine.commit())
        world.clock = ManualClock(newest - 3_600_000)
        await world.crash()
        assert world.clock.now_ms() >= newest
        if held is not None and last == "claim":
            (again,) = world.queue("q").messages.in_flight.values()
            assert again.claimed_at == held.claimed_at
        else:
            assert (await world.claim("q")).claimed_at >= newest

    run(tmp_path / "s", steps)


# ---- what is refused
def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    async def newer(world: World) -> None:
        value = await world.engine.store.get(keys.STORE_HEADER_KEY)
        assert value is not None
        header.decode(keys.STORE_HEADER_KEY, value)
        batch = world.engine.store.batch()
        batch.put(keys.STORE_HEADER_KEY, b"\xff\xff" + value[2:])
        await world.engine.store.write(batch)

    root = run(tmp_path / "s", newer).root
    with pytest.raises(NewerFormat):
        run(root, nothing)


def test_what_can_not_be_stored_is_refused_before_anything_changed(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for priority in (256, -1):
            with pytest.raises(InvalidMessage):
                world.publish("q", priority=priority)
        assert len(world.queue("q").messages) == 0
        number = 0
        while world.engine.state.topology.filter_size("q", "amq.direct", f"{number:0200}", {}) <= 65_535:
            world.engine.bind("q", "amq.direct", f"{number:0200}", {})
            number += 1
        with pytest.raises(RequestError, match="too many bindings") as caught:
            world.engine.bind("q", "amq.direct", f"{number:0200}", {})
        assert caught.value.queue == "q"  # type: ignore[attr-defined]
        world.publish("q")

    store = PlainStore(run(tmp_path / "s", steps).root)
    assert len(store.of[RecordKind.BINDING]) > 200
    assert len(store.of[RecordKind.PAYLOAD]) == 1


# ---- many messages, a full disk
def test_three_thousand_messages_over_cold_buckets_come_in_order(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = []
        for number in range(3000):
            ids.append(world.publish("q", envelope=b"%d" % number))
            if number % 500 == 499:
                await world.engine.checkpoint()
        assert len(world.queue("q").messages.cold) > 100
        for position in range(3000):
            if position == 1000:
                await world.crash()
            elif position == 2000:
                await world.engine.close()
                await world.open()
            elif position % 300 == 0:
                await world.engine.checkpoint()
            entry = await world.claim("q")
            assert entry.id == ids[position]
            assert world.engine.payloads.find(entry.id) == b"%d" % position
            world.engine.ack(world.queue("q"), (entry,))
            world.engine.commit_journal()
        assert await world.next("q") is None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_state, "BUCKET_ENTRIES", 16)
        patch.setattr(queue_state, "MAX_LOADED_BUCKETS", 8)
        patch.setattr(queue_state, "KEPT_LOADED_BUCKETS", 4)
        store = PlainStore(run(tmp_path / "s", steps).root)
    assert len(store.rows(RecordKind.DONE, "q")) == 3000


def test_a_full_disk_refuses_publishes_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "RESERVED_BYTES", 8 << 10)

    def full(*_arguments: Any) -> None:
        raise StoreFull("no space")

    async def steps(world: World) -> None:
        engine, sent = world.engine, 0
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "_allocate", full)  # what is allocated can be written
            while (engine.journal.room if engine.journal else 0) >= 2000 + (8 << 10):
                engine.check_room(1000)
                world.publish("q", envelope=bytes(1000))
                engine.commit_journal()
                sent += 1
            with pytest.raises(StoreFull, match="nothing was stored"):
                engine.check_room(1000)
            assert sent > 30
            held = [await world.claim("q") for _ in range(20)]  # what was reserved is for these
            engine.ack(world.queue("q"), held)
            engine.commit_journal()
        engine.check_room(1000)
        world.publish("q")
        await engine.commit()
        await world.crash()
        assert len(world.queue("q").messages) == sent - 20 + 1

    run(tmp_path / "s", steps)


def test_effects_that_found_no_room_are_committed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def steps(world: World) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", full)
            world.publish("q")
            for _ in range(2):
                with pytest.raises(StoreFull):
                    world.engine.commit_journal()
            with pytest.raises(StoreFull):
                await world.engine.checkpoint()
        await world.engine.commit()
        await world.crash()
        assert len(world.queue("q").messages) == 1

    run(tmp_path / "s", steps)


@pytest.mark.parametrize("sync", [True, False])
def test_with_and_without_syncing(tmp_path: Path, sync: bool) -> None:
    """In a folder whose name is escaped in a URL."""
    folder = tmp_path / "a folder"
    world = World(tmp_path / "a%20folder", EngineSettings(sync=sync))

    async def main() -> None:
        for round in range(3):
            await world.open()
            if not round:
                world.engine.declare_queue("q", QueueOptions())
            assert len(world.queue("q").messages) == round
            world.publish("q")
            await world.engine.close()

    asyncio.run(main())
    assert {path.name for path in folder.iterdir()} >= {"default", "default.journal"}
    assert not (tmp_path / "a%20folder").exists()
    assert (folder / "default.sync").exists() is sync
