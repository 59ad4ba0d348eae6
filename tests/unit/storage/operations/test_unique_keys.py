"""Unique keys of the engine: who holds one after each end of a message, and after a crash beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.protocol.unique_key import HEADER, UNTIL_DONE, UNTIL_STARTED, OnConflict, UniqueKey
from kombu_opendata.storage.operations import repeated_requests
from kombu_opendata.storage.operations.archive_and_delete import Selection
from kombu_opendata.storage.operations.moves import MoveTarget
from kombu_opendata.storage.operations.unique_keys import Decision, Holder, decide
from kombu_opendata.storage.read.queue_pages import AVAILABLE, DELAYED
from kombu_opendata.storage.records import keys
from kombu_opendata.storage.records.definitions import QueueOverrides
from kombu_opendata.storage.records.idempotency import unique_name_of
from kombu_opendata.storage.state.name_filter import NameFilter
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.engine import SMALL_BUCKETS, World, run
from tests.support.waiting import until

pytestmark = pytest.mark.contract(9, 16)

NAME = unique_name_of("key")
TTL_MS = 5000

pytestmark = pytest.mark.contract(16)
SUCCEEDED, LOST = TaskReport(TaskState.SUCCEEDED), TaskReport(TaskState.LOST)


def publish(world: World, until_ms: int = UNTIL_DONE, *, name: bytes = NAME, queue: str = "q", **more: Any) -> int:
    id = world.publish(queue, ttl_ms=TTL_MS, **more)
    world.engine.unique_keys.take(name, UniqueKey("key", until_ms), id, "task", [world.queue(queue)])
    return id


async def holder(world: World, name: bytes = NAME) -> int | None:
    await world.engine.unique_keys.load(name)
    is_known, found = world.engine.unique_keys.find(name)
    assert is_known
    return found and found.message_id


async def acknowledge(world: World, name: str) -> None:
    entry = await world.claim(name)
    world.engine.operations.ack(world.queue(name), [entry])


async def end_task(world: World, name: str, report: TaskReport = SUCCEEDED) -> None:
    entry = await world.claim(name)
    world.engine.task_runs.start(world.queue(name), [entry])
    assert await holder(world, unique_name_of(name)) == entry.id
    world.engine.task_runs.finish((name, entry.id, entry.claimed_at), report)


async def lose_task(world: World, name: str) -> None:
    await end_task(world, name, LOST)


async def reject(world: World, name: str) -> None:
    entry = await world.claim(name)
    world.engine.operations.fail(world.queue(name), [entry], "consumer")


async def run_out_of_attempts(world: World, name: str) -> None:
    for _ in range(2):
        entry = await world.claim(name)
        assert await holder(world, unique_name_of(name)) == entry.id
        world.engine.operations.put_back(world.queue(name), [entry], "consumer", costs_attempt=True)
        world.clock.advance(2)


async def expire(world: World, name: str) -> None:
    entry = await world.next(name)
    assert entry is not None
    world.engine.operations.remove(world.queue(name), [entry], "expired")


async def purge(world: World, name: str) -> None:
    await world.engine.definitions.purge(world.queue(name))


async def drop(world: World, name: str) -> None:
    await world.engine.collector.drop_oldest(world.queue(name), lambda: len(world.queue(name).messages) > 0)


async def delete(world: World, name: str) -> None:
    queue = world.queue(name)
    world.engine.operations.delete(queue, list(queue.messages.available.values()))


async def archive(world: World, name: str) -> None:
    queue = world.queue(name)
    world.engine.operations.archive(queue, list(queue.messages.available.values()), "operator")


async def delete_queue(world: World, name: str) -> None:
    await world.engine.definitions.delete_queue(world.queue(name))


async def declare_again(world: World, name: str) -> None:
    await delete_queue(world, name)
    world.engine.definitions.declare_queue(name, QueueSettings())
    world.publish(name)


async def pass_deadline(world: World, name: str) -> None:
    """The last end, as the others need their messages."""
    world.clock.advance(TTL_MS)


ENDS = [
    acknowledge, end_task, lose_task, reject, run_out_of_attempts, expire, purge, drop, delete, archive, delete_queue,
    declare_again, pass_deadline,
]  # fmt: skip


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "in_memory"])
def test_each_end_of_its_message_releases_a_key(is_stored: bool, tmp_path: Path) -> None:
    """Each in a queue and with a key of its name; the keys are read again if ``is_stored``."""

    async def steps(world: World) -> None:
        names = [end.__name__ for end in ENDS]
        for name in names:
            world.engine.definitions.declare_queue(name, QueueSettings(max_attempts=2))
            publish(world, name=unique_name_of(name), queue=name)
        await world.engine.commits.commit()
        if is_stored:
            await world.engine.commits.checkpoint()
            await world.crash()
        for end, name in zip(ENDS, names, strict=True):
            assert await holder(world, unique_name_of(name)) is not None, name
            await end(world, name)
            assert await holder(world, unique_name_of(name)) is None, name
        await world.engine.commits.commit()
        await world.crash()
        assert {name: await holder(world, unique_name_of(name)) for name in names} == dict.fromkeys(names)
        await world.engine.idempotency.sweep(world.clock.now_ms())
        await world.engine.commits.checkpoint()
        rows = await world.engine.store.scan(*keys.kind_range(keys.RecordKind.IDEMPOTENCY))
        assert len(rows) == 3, "the key of the message that has only passed its deadline, and two deleted queues"

    run(tmp_path / "s", steps)


def test_a_key_until_the_start_is_held_while_the_message_waits(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        id = publish(world, UNTIL_STARTED)
        entry = await world.claim("q")
        assert await holder(world) is None
        await world.engine.idempotency.sweep(world.clock.now_ms())
        world.engine.operations.put_back(world.queue("q"), [entry], "consumer", costs_attempt=False)
        assert await holder(world) == id
        await acknowledge(world, "q")
        assert await holder(world) is None

    run(tmp_path / "s", steps)


def test_a_time_counts_from_the_publish_whatever_becomes_of_the_message(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        id = publish(world, 1000)
        await acknowledge(world, "q")
        await world.engine.commits.checkpoint()
        await world.crash()
        world.clock.advance(999)
        await world.engine.idempotency.sweep(world.clock.now_ms())
        assert await holder(world) == id
        world.clock.advance(1)
        assert await holder(world) is None

    run(tmp_path / "s", steps)


def test_a_crash_takes_the_key_with_its_message(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        first = publish(world)
        await world.engine.commits.commit()
        await acknowledge(world, "q")
        publish(world)
        await world.crash()
        assert await holder(world) == first

    run(tmp_path / "s", steps)


def are_cold(world: World, ids: list[int]) -> list[bool]:
    return [world.queue("q").messages.find(id) is None for id in ids]


async def redrive(world: World) -> None:
    queue = world.queue("q")
    way = MoveTarget(queue, lambda _messages, _bytes: True, lambda _done: True, None)
    assert (await world.engine.moves.redrive(queue, Selection(), way)).count == 1


@pytest.mark.parametrize("is_taken", [False, True], ids=["free", "taken"])
@pytest.mark.parametrize("others", [0, 8], ids=["old_bucket", "other_bucket"])
def test_a_redriven_message_holds_nothing_while_it_waits_and_runs(others: int, is_taken: bool, tmp_path: Path) -> None:
    """Another message with its key holds it, before and after."""

    async def steps(world: World) -> None:
        headers = {HEADER: "key"}
        id = publish(world, headers=headers)
        await reject(world, "q")
        for _ in range(others):
            world.publish("q")
        newer = publish(world, headers=headers) if is_taken else None
        await redrive(world)
        queue = world.queue("q")
        assert queue.messages.find(id) is not None
        assert await holder(world) == newer
        await world.engine.commits.checkpoint()
        await world.crash()
        assert await holder(world) == newer
        world.clock.advance(1)
        for _ in range(1 + others + is_taken):
            entry = await world.claim("q")
            world.engine.task_runs.start(world.queue("q"), [entry])
            assert await holder(world) == newer
        if newer is None:
            id = publish(world, headers=headers)
            assert await holder(world) == id

    run(tmp_path / "s", steps, SMALL_BUCKETS)


def test_a_message_that_is_moved_away_and_back_holds_nothing(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.definitions.declare_queue("other", QueueSettings())
        id = publish(world, headers={HEADER: "key"})
        for source, target, copies in (("q", "other", True), ("q", "other", False), ("other", "q", False)):
            assert await holder(world) == (id if copies or source == "q" else None)
            if copies:
                await move(world, source, target, copies=True)
                await purge(world, target)
            else:
                await move(world, source, target, copies=False)
        assert world.queue("q").messages.find(id) is not None
        assert await holder(world) is None

    run(tmp_path / "s", steps)


async def move(world: World, source: str, target: str, *, copies: bool) -> None:
    way = MoveTarget(world.queue(target), lambda _messages, _bytes: True, lambda _done: True, None)
    states = (AVAILABLE, DELAYED)
    done = await world.engine.moves.waiting(world.queue(source), Selection(), way, states, copies=copies)
    assert done.count == 1


def test_a_holder_in_a_cold_bucket_is_found(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        names = [unique_name_of(str(number)) for number in range(40)]
        ids = [publish(world, name=name) for name in names]
        await world.engine.commits.checkpoint()
        await world.crash()
        await world.engine.idempotency.load(names)
        cold = [name for name, is_cold in zip(names, are_cold(world, ids), strict=True) if is_cold]
        assert len(cold) > 20
        assert not any(world.engine.unique_keys.find(name)[0] for name in cold)
        assert [await holder(world, name) for name in names] == ids
        world.clock.advance(TTL_MS)
        assert await holder(world, names[30]) is None

    run(tmp_path / "s", steps, SMALL_BUCKETS)


def test_a_holder_that_goes_to_its_partition_keeps_its_key(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = {}
        for tenant in "abc":
            headers = {"tenant": tenant, HEADER: tenant}
            ids[tenant] = world.publish("q", headers=headers)
            key = UniqueKey(tenant)
            world.engine.unique_keys.take(unique_name_of(tenant), key, ids[tenant], "task", [world.queue("q")])
        await world.engine.commits.checkpoint()
        await world.crash()
        overrides = QueueOverrides(arguments={"x-partition-by": "tenant"})
        world.engine.definitions.override_queue("q", overrides)
        moved = asyncio.Event()
        world.engine.repartitioner.start(world.queue("q"), lambda _queue: moved.set())
        await until(lambda: moved.is_set() and not world.engine.repartitioner._runs)
        assert all(entry.bucket >> 32 for entry in world.queue("q").messages.available.values())
        for _ in range(2):
            assert {tenant: await holder(world, unique_name_of(tenant)) for tenant in ids} == ids
            await world.engine.commits.checkpoint()
            await world.crash()
        await purge(world, "q")
        assert await holder(world, unique_name_of("b")) is None

    run(tmp_path / "s", steps)


def test_a_new_key_needs_no_read_once_the_stored_names_are_known(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        find = world.engine.unique_keys.find
        assert not find(NAME)[0]
        await holder(world)
        names = [unique_name_of(str(number)) for number in range(10)]
        for name in names:
            assert find(name) == (True, None)
            publish(world, name=name)
        await world.engine.commits.checkpoint()
        await world.crash()
        find = world.engine.unique_keys.find
        assert not find(NAME)[0]
        await world.engine.idempotency.sweep(world.clock.now_ms())
        assert find(NAME) == (True, None)
        assert not any(find(name)[0] for name in names)
        assert None not in [await holder(world, name) for name in names]

    run(tmp_path / "s", steps)


def test_a_key_whose_message_ends_before_a_checkpoint_leaves_no_record_and_no_deletion(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        find, state = world.engine.unique_keys.find, world.engine.state.idempotency
        await holder(world)
        for _ in range(3):
            publish(world)
            await acknowledge(world, "q")
            assert (find(NAME), state.is_dirty) == ((True, None), False)
        publish(world)
        await world.engine.commits.checkpoint()
        await acknowledge(world, "q")
        assert (find(NAME), state.is_dirty) == ((True, None), True)
        publish(world)
        await acknowledge(world, "q")
        assert state.is_dirty
        await world.engine.commits.checkpoint()
        assert not await world.engine.store.scan(*keys.kind_range(keys.RecordKind.IDEMPOTENCY))
        assert await holder(world) is None
        id = publish(world)
        await world.engine.commits.commit()
        await world.crash()
        assert await holder(world) == id

    run(tmp_path / "s", steps)


def test_a_key_that_is_being_written_while_a_sweep_reads_is_known_afterwards(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        await holder(world)
        world.engine.state.idempotency.cache_bytes = 0
        id = publish(world)
        await world.engine.idempotency.sweep(world.clock.now_ms())
        await world.engine.commits.checkpoint()
        assert not world.engine.unique_keys.find(NAME)[0]
        world.engine.state.idempotency.cache_bytes = 1 << 20
        assert await holder(world) == id

    run(tmp_path / "s", steps)


def test_a_sweep_reads_more_records_if_there_are_more_new_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_requests, "_SWEEP_ROWS", 3)

    async def steps(world: World) -> None:
        await holder(world)
        for number in range(20):
            publish(world, 1, name=unique_name_of(str(number)))
        await world.engine.commits.checkpoint()
        world.clock.advance(1)
        assert await world.engine.idempotency.sweep(world.clock.now_ms()) == 20
        await world.engine.commits.checkpoint()
        assert not await world.engine.store.scan(*keys.kind_range(keys.RecordKind.IDEMPOTENCY))

    run(tmp_path / "s", steps)


def test_names_that_were_added_are_in_the_filter_and_few_others() -> None:
    names = [unique_name_of(str(number)) for number in range(210_000)]
    added = NameFilter(10_000)
    for name in names[:200_000]:  # it grows
        added.add(name)
    assert all(name in added for name in names[:200_000])
    assert sum(name in added for name in names[200_000:]) < 300
    assert added.count == 200_000


@pytest.mark.parametrize(
    ("mode", "task", "waits", "is_replaceable", "decision"),
    [
        (OnConflict.RETURN, "t", True, True, Decision(False)),
        (OnConflict.ERROR, "t", True, True, Decision(False)),
        (OnConflict.REPLACE, "u", True, True, Decision(True, takes=True, replaces=True)),
        (OnConflict.REPLACE, "u", False, True, Decision(False)),
        (OnConflict.REPLACE, "u", True, False, Decision(False)),
        (OnConflict.KEEP, "t", False, False, Decision(True, takes=True)),
        (OnConflict.KEEP, "u", True, True, Decision(True)),
        (OnConflict.KEEP, "", True, True, Decision(True)),
    ],
)
def test_the_outcome_of_a_conflict(
    mode: OnConflict, task: str, waits: bool, is_replaceable: bool, decision: Decision, tmp_path: Path
) -> None:
    async def steps(world: World) -> None:
        publish(world)
        _is_known, found = world.engine.unique_keys.find(NAME)
        assert found is not None
        assert found.waiting
        held = Holder(1, "t" if task else "", found.waiting if waits else [], is_replaceable)
        assert decide(UniqueKey("key", on_conflict=mode), task, held) == decision
        assert decide(UniqueKey("key", on_conflict=mode), task, None) == Decision(True, takes=True)
        if mode != OnConflict.KEEP:
            is_removed = waits and is_replaceable
            expected = Decision(is_removed, takes=is_removed, replaces=is_removed)
            assert decide(UniqueKey("key", on_conflict=mode), task, held._replace(is_revoked=True)) == expected

    run(tmp_path / "s", steps)
