"""Retention by size: what goes early, what never goes, and what does not count."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kombu_opendata.errors import StoreError
from kombu_opendata.storage.commit.route_counts import RouteCounts
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.maintain.upkeep import Upkeep
from kombu_opendata.storage.read.settled_buckets import SettledBuckets
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.records.settled import SettledEntry
from kombu_opendata.storage.slatedb.slate_settings import SlateSettings
from kombu_opendata.storage.state.settled_list import ListName
from kombu_opendata.storage.state.store_state import Queue, QueueSettings
from tests.support.engine import World, run
from tests.support.plain_store import PlainStore
from tests.support.waiting import until

LIMIT = 1_000_000
_STEP_SECONDS = 0.05


def settings(**changes: Any) -> EngineSettings:
    given = {
        "sync": False, "journal_segment_bytes": 64 << 10, "retention_bytes": LIMIT,
        "slate": SlateSettings(
            l0_sst_size_bytes=100_000, sorted_sst_size_bytes=200_000, compactor_poll_ms=50, commit_compaction_ms=50,
            manifest_poll_ms=50, replaced_seconds=1, table_min_age_seconds=0.5,
        ),
    }  # fmt: skip
    return EngineSettings(**{**given, **changes})


async def settled(world: World, count: int, queue: str = "q", *, fail: bool = False, size: int = 1000) -> list[int]:
    """Publish messages and settle them, a second after the other; returns their ids."""
    ids = []
    for number in range(count):
        ids.append(world.publish(queue, envelope=random.Random(number).randbytes(size)))
        entry = await world.claim(queue)
        if fail:
            world.engine.operations.fail(world.queue(queue), (entry,), "c")
        else:
            world.engine.operations.ack(world.queue(queue), (entry,))
        world.clock.advance(1000)
        if number % 50 == 49:
            await world.engine.commits.commit()
            await world.engine.commits.checkpoint()
    await world.engine.commits.checkpoint()
    await world.engine.upkeep.tidy()
    return ids


async def steps_until(world: World, is_over: Callable[[], Awaitable[bool]]) -> int:
    """What maintenance does, over and over; returns how many messages went early."""
    removed = 0

    async def step() -> bool:
        nonlocal removed
        await world.engine.disk_space.read()
        removed += await world.engine.size_limit.step()
        return await is_over()

    await until(step, poll_seconds=_STEP_SECONDS)
    return removed


async def at_rest(world: World) -> int:
    """As :func:`steps_until`, until nothing goes any more."""
    quiet = 0

    async def is_quiet() -> bool:
        nonlocal quiet
        limit = world.engine.size_limit
        quiet = quiet + 1 if not limit._compaction and limit.size_bytes <= LIMIT else 0
        return quiet > 10

    return await steps_until(world, is_quiet)


def test_the_oldest_done_messages_go_first(tmp_path: Path) -> None:
    ids: dict[str, list[int]] = {}

    async def steps(world: World) -> None:
        world.engine.definitions.declare_queue("other", QueueSettings())
        ids["failed"] = await settled(world, 100, fail=True)
        ids["old"] = await settled(world, 1000)
        ids["waiting"] = [world.publish("q", envelope=bytes(1000)) for _ in range(50)]
        ids["new"] = await settled(world, 600, "other")
        removed = await at_rest(world)
        assert 700 < removed < 1500
        assert world.engine.size_limit.removed == removed
        report = world.engine.report()["disk"]
        assert (report["removed_early"], report["removed_at_ms"]) == (removed, world.clock.now_ms())
        assert 0.7 * LIMIT < report["size_bytes"] <= LIMIT
        assert len(world.queue("q").messages) == 50

    store = PlainStore(run(tmp_path / "s", steps, settings()).root)
    kept = store.message_ids()
    done = {
        id for queue in ("q", "other") for rows in store.buckets(RecordKind.DONE, queue).values() for id, *_ in rows
    }
    present = set(kept[RecordKind.PAYLOAD])
    assert set(ids["failed"]) | set(ids["waiting"]) <= present
    assert done | set(ids["failed"]) | set(ids["waiting"]) == present
    gone = [id for id in (*ids["old"], *ids["new"]) if id not in present]
    assert gone == sorted(gone)
    assert min(done, default=0) > max(gone)


def test_what_only_the_log_keeps_goes_before_anything_else(tmp_path: Path) -> None:
    ids: dict[str, list[int]] = {}

    async def steps(world: World) -> None:
        ids["failed"] = await settled(world, 100, fail=True)
        ids["kept"] = await settled(world, 1500)
        world.clock.advance(86_400_000)
        await world.engine.collector.sweep()
        await world.engine.commits.checkpoint()
        await world.engine.upkeep.tidy()
        ids["done"] = await settled(world, 50)
        assert world.engine.state.log.kept == 1500
        removed = await at_rest(world)
        assert 400 < removed < 1200
        assert world.engine.state.log.kept == 1500 - removed
        assert (world.queue("q").failed.length, world.queue("q").done.length) == (100, 50)

    store = PlainStore(run(tmp_path / "s", steps, settings(log_retention_seconds=math.inf)).root)
    present = set(store.message_ids()[RecordKind.PAYLOAD])
    assert set(ids["failed"]) | set(ids["done"]) <= present
    left = [id for id in ids["kept"] if id in present]
    assert left == ids["kept"][-len(left) :]


def test_what_goes_early_the_log_does_not_keep(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        await settled(world, 1500)
        removed = await at_rest(world)
        assert 400 < removed < 1200
        assert world.engine.state.log.kept == 0
        assert world.queue("q").done.length == 1500 - removed

    store = PlainStore(run(tmp_path / "s", steps, settings(log_retention_seconds=math.inf)).root)
    assert 300 < len(store.message_ids()[RecordKind.PAYLOAD]) < 1100


def test_failed_messages_go_when_no_done_ones_are_left(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        await settled(world, 300)
        failed = await settled(world, 1200, fail=True)
        await at_rest(world)
        assert world.queue("q").done.length == 0
        assert 0 < world.queue("q").failed.length < len(failed)

    run(tmp_path / "s", steps, settings())


@pytest.mark.parametrize("log_retention_seconds", [0, math.inf], ids=["done", "kept by the log"])
def test_a_step_after_a_read_error_removes_only_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_retention_seconds: float
) -> None:
    async def steps(world: World) -> None:
        await settled(world, 1500)
        if log_retention_seconds:
            world.clock.advance(86_400_000)
            await world.engine.collector.sweep()
            await world.engine.commits.checkpoint()
            await world.engine.upkeep.tidy()
            assert world.engine.state.log.kept == 1500
        limit, has_read_error = world.engine.size_limit, False

        def failing(read: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            """Fail once, when the step has removed some messages."""

            async def read_or_fail(*args: Any) -> Any:
                nonlocal has_read_error
                if world.engine.state.dirty.outdated and not has_read_error:
                    has_read_error = True
                    raise StoreError("the bucket does not answer")
                return await read(*args)

            return read_or_fail

        monkeypatch.setattr(SettledBuckets, "head", failing(SettledBuckets.head))
        monkeypatch.setattr(RouteCounts, "load", failing(RouteCounts.load))

        async def has_failed() -> bool:
            await world.engine.disk_space.read()
            try:
                await limit.step()
            except StoreError:
                return True
            return False

        await until(has_failed, poll_seconds=_STEP_SECONDS)
        removed = limit.removed
        assert 100 < removed < 1500
        await at_rest(world)
        assert removed < limit.removed < 1100
        assert limit.size_bytes > 0.7 * LIMIT

    sizes = replace(
        settings(log_retention_seconds=log_retention_seconds).sizes, sweep_messages=150, settled_entries=150
    )
    run(tmp_path / "s", steps, settings(log_retention_seconds=log_retention_seconds, sizes=sizes))


def test_garbage_removes_nothing(tmp_path: Path) -> None:
    """Tables above the limit, most of whose records were overwritten or deleted."""

    async def steps(world: World) -> None:
        async def has_garbage() -> bool:
            for number in range(400):
                world.publish("q", envelope=random.Random(number).randbytes(1000))
            await world.engine.commits.checkpoint()
            await world.engine.upkeep.tidy()
            await world.engine.definitions.purge(world.queue("q"))
            await world.engine.commits.checkpoint()
            await world.engine.upkeep.tidy()
            await world.engine.disk_space.read()
            return world.engine.size_limit.size_bytes > LIMIT

        await settled(world, 400)
        await until(has_garbage)  # more than compactions have removed in the meantime
        assert await at_rest(world) == 0
        assert world.queue("q").done.length == 400

    run(tmp_path / "s", steps, settings())


def test_an_outcome_that_is_not_known_yet_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_id: str) -> bool:
        raise StoreError("the bucket does not answer")

    async def run_still(_id: str) -> None:
        return None

    async def steps(world: World) -> None:
        await settled(world, 1500)
        limit = world.engine.size_limit

        async def is_compacting() -> bool:
            return bool(limit._compaction)

        assert await steps_until(world, is_compacting) == 0
        for outcome in (fail, run_still):
            with monkeypatch.context() as patch:
                patch.setattr(world.engine.store.admin, "is_compacted", outcome)
                assert await limit.step() == 0
                assert await limit.step() == 0
        assert await at_rest(world) > 400

    run(tmp_path / "s", steps, settings())


def test_a_list_that_can_not_be_changed_now_keeps_no_other_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = SettledBuckets.head

    async def head_of_others(buckets: SettledBuckets, queue: Queue, which: ListName) -> list[SettledEntry] | None:
        return None if queue.name == "first" else await head(buckets, queue, which)

    async def steps(world: World) -> None:
        world.engine.definitions.declare_queue("first", QueueSettings())
        await settled(world, 1, "first")
        await settled(world, 1500)
        monkeypatch.setattr(SettledBuckets, "head", head_of_others)

        async def has_removed() -> bool:
            return world.engine.size_limit.removed > 0

        removed = await steps_until(world, has_removed)
        assert (world.queue("first").done.length, world.queue("q").done.length) == (1, 1500 - removed)

    run(tmp_path / "s", steps, settings())


def test_buckets_of_a_single_message_go_in_their_order_after_a_restart(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.definitions.declare_queue("other", QueueSettings())
        await settled(world, 900)
        await settled(world, 600, "other")
        await world.crash()
        removed = await at_rest(world)
        assert 400 < removed < 900
        assert (world.queue("q").done.length, world.queue("other").done.length) == (900 - removed, 600)

    sizes = replace(settings().sizes, settled_entries=1)
    run(tmp_path / "s", steps, settings(sizes=sizes))


@pytest.mark.parametrize("in_flight", [False, True])
def test_what_waits_never_goes(tmp_path: Path, in_flight: bool) -> None:
    async def steps(world: World) -> None:
        for number in range(1500):
            world.publish("q", envelope=random.Random(number).randbytes(1000))
            if in_flight:
                await world.claim("q")
            if number % 100 == 99:
                await world.engine.commits.checkpoint()
        await settled(world, 20)
        await world.engine.upkeep.tidy()

        async def is_stuck() -> bool:
            return world.engine.size_limit.is_stuck

        assert await steps_until(world, is_stuck) == 20
        messages = world.queue("q").messages
        assert (len(messages), len(messages.in_flight)) == ((0, 1500) if in_flight else (1500, 0))
        assert world.queue("q").done.length == 0

    run(tmp_path / "s", steps, settings())


def test_what_waits_is_not_compacted_again_for_each_message_that_is_done(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        limit = world.engine.size_limit
        for number in range(1500):
            world.publish("q", envelope=random.Random(number).randbytes(1000))
            if number % 100 == 99:
                await world.engine.commits.checkpoint()
        await settled(world, 20)

        async def is_stuck() -> bool:
            return limit.is_stuck

        await steps_until(world, is_stuck)
        for _ in range(3):
            await settled(world, 1)
            await world.engine.disk_space.read()
            assert await limit.step() == 0
            assert not limit._compaction
            assert limit.is_stuck

    run(tmp_path / "s", steps, settings())


def test_a_disk_without_room_to_compact_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables count as they are, and once."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(total=4 * LIMIT, free=LIMIT // 2))

    async def steps(world: World) -> None:
        limit = world.engine.size_limit
        await settled(world, 1200)
        await world.engine.disk_space.read()
        removed = await limit.step()
        assert 100 < removed < 700
        for _ in range(10):
            await world.engine.disk_space.read()
            assert await limit.step() == 0
            assert not limit._compaction
        assert world.queue("q").done.length == 1200 - removed

    run(tmp_path / "s", steps, settings())


@pytest.mark.parametrize("free", [0, 1 << 40])
def test_a_broker_that_starts_on_a_full_disk_deletes_garbage_first(
    tmp_path: Path, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it opens then would have to write before it may delete, and finds no room.

    SlateDB deletes no table of a database that was never compacted: it can't know what its compactor is about to write.
    """

    async def steps(world: World) -> None:
        for _ in range(4):
            await settled(world, 100)

        async def has_runs() -> bool:
            manifest = await world.engine.store.admin.manifest()
            return manifest is not None and bool(manifest.runs)

        await until(has_runs)
        folder = world.root / "default" / "compacted"
        (folder / f"{'0' * 26}.sst").write_bytes(b"garbage")
        monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(total=4 * LIMIT, free=free))
        monkeypatch.setattr(Upkeep, "tidy", nothing_at_all)
        await world.crash()
        copied = world.root / "default" / "compacted"
        assert (copied / f"{'0' * 26}.sst").exists() == (free > 0)
        monkeypatch.undo()

    async def nothing_at_all(_upkeep: Upkeep) -> bool:
        return True

    run(tmp_path / "s", steps, settings())


@pytest.mark.slow
def test_it_does_not_oscillate(tmp_path: Path) -> None:
    """While messages come and are done, what is kept stays near the limit, also over restarts."""

    async def steps(world: World) -> None:
        kept = []
        for number in range(12):
            await settled(world, 250)
            await at_rest(world)
            kept.append(world.queue("q").done.length)
            if number == 8:
                await world.crash()
        assert min(kept[5:]) > 500, kept
        assert max(kept[5:]) < 2000, kept

    run(tmp_path / "s", steps, settings())


@pytest.mark.parametrize("limit", [0, 1 << 40])
def test_below_the_limit_nothing_is_compacted(tmp_path: Path, limit: int) -> None:
    async def steps(world: World) -> None:
        await settled(world, 300)
        await world.engine.disk_space.read()
        assert await world.engine.size_limit.step() == 0
        assert not world.engine.size_limit._compaction

    run(tmp_path / "s", steps, settings(retention_bytes=limit))
