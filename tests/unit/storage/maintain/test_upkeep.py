"""Upkeep of an engine: what compaction replaced is deleted soon, but never while a reader needs it; idle buckets."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kombu_opendata import errors
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.maintain.upkeep import DiskSpace, IdleStore, Upkeep, pause_intervals
from kombu_opendata.storage.slatedb.object_store import locate
from kombu_opendata.storage.slatedb.slate_admin import DiskUse, SlateAdmin
from kombu_opendata.storage.slatedb.slate_settings import SlateSettings
from kombu_opendata.storage.slatedb.store_writer import SlateStore
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.clock import AdvancedLoop, ManualClock
from tests.support.engine import World, run
from tests.support.waiting import until

#: compacts at every tenth of a second what is a thousandth of the usual size
SMALL = SlateSettings(
    l0_sst_size_bytes=100_000, sorted_sst_size_bytes=200_000, compactor_poll_ms=100, commit_compaction_ms=100,
    l0_max_ssts=200, block_cache_bytes=0, replaced_seconds=1, table_min_age_seconds=0.5,
)  # fmt: skip
#: the writer looks at the manifest when it flushes only
BLIND = SlateSettings(
    l0_sst_size_bytes=100_000, sorted_sst_size_bytes=200_000, compactor_poll_ms=100, commit_compaction_ms=100,
    l0_max_ssts=200, block_cache_bytes=0, replaced_seconds=1, table_min_age_seconds=0.5, manifest_poll_ms=3_600_000,
)  # fmt: skip
KEYS = 5_000
_SECONDS = 60


def bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


async def overwrite(store: SlateStore, rows: int, seed: int = 1) -> None:
    """Write rows over each other."""
    chance = random.Random(seed)
    for _ in range(rows // 200):
        batch = store.batch()
        for _ in range(200):
            batch.put(b"\1%06d" % chance.randrange(KEYS), chance.randbytes(100))
        await store.write(batch)
        await store.flush_wal()


def at_rest(store: SlateStore) -> Callable[[], Awaitable[bool]]:
    """Whether compactions have replaced tables so long ago that none of their checkpoints counts any more."""

    async def look() -> bool:
        now = store.clock.now_ms()
        found = await store.admin.checkpoints()
        return bool(found) and all(one.expires_at_ms is not None and one.expires_at_ms < now for one in found)

    return look


def collected(store: SlateStore, folder: Path, until_bytes: int) -> Callable[[], Awaitable[bool]]:
    """Flush and collect; whether the tables take less than this."""

    async def collect() -> bool:
        await store.flush_memtable()
        assert await store.collect_garbage()
        return bytes_in(folder / "compacted") < until_bytes

    return collect


def test_reads_after_a_collection_find_their_tables(tmp_path: Path) -> None:
    """SlateDB alone would go on to read tables that are gone: the writer knows of no compaction."""

    async def main() -> None:
        store = await SlateStore.open(f"file://{tmp_path}", "db", settings=BLIND)
        for seed in range(3):
            await overwrite(store, 20_000, seed)
            await store.flush_memtable()
            await until(at_rest(store), _SECONDS)
            before, system = set((tmp_path / "db" / "compacted").iterdir()), store.clock
            store.clock = ManualClock(system.now_ms() + round(1000 * BLIND.replaced_seconds / 2))
            assert not await store.collect_garbage()  # the flush was a while ago
            store.clock = system
            assert before <= set((tmp_path / "db" / "compacted").iterdir())
            await until(collected(store, tmp_path / "db", 2 * KEYS * 110), _SECONDS)
            assert len(await store.scan(b"", None)) > KEYS * 0.9
            for number in range(0, KEYS, 50):
                await store.get(b"\1%06d" % number)
        await store.close()

    asyncio.run(main())


def test_tables_wait_for_a_scan_that_reads_them(tmp_path: Path) -> None:
    async def main() -> None:
        store = await SlateStore.open(f"file://{tmp_path}", "db", settings=BLIND)
        await overwrite(store, 20_000)
        await store.flush_memtable()
        keys = [key for key, _ in await store.scan(b"", None)]
        scan = store.scan_batches(b"", None, batch=10, read_ahead_bytes=1)
        seen = [key for key, _ in await anext(scan)]
        await overwrite(store, 20_000, seed=2)
        await store.flush_memtable()
        await until(at_rest(store), _SECONDS)
        await store.flush_memtable()
        assert not await store.collect_garbage()
        async for pairs in scan:
            seen += [key for key, _ in pairs]
        assert seen == keys
        await store.flush_memtable()  # the one before may be long ago
        assert await store.collect_garbage()
        scan = store.scan_batches(b"", None, batch=10)
        await anext(scan)
        await scan.aclose()  # one that is given up does not count either
        await store.flush_memtable()
        assert await store.collect_garbage()
        await store.close()

    asyncio.run(main())


def test_a_named_checkpoint_keeps_tables_until_it_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        store = await SlateStore.open(f"file://{tmp_path}", "db", settings=SMALL)
        space = DiskSpace(store.admin, store.clock)
        await overwrite(store, 20_000)
        await store.flush_memtable()
        held, _manifest = await store.admin.create_checkpoint("somebody", 600)
        await overwrite(store, 20_000, seed=2)

        async def compacted() -> bool:
            await store.flush_memtable()
            await store.collect_garbage()
            await space.read()
            assert space.use is not None
            return [one.name for one in space.use.checkpoints] == ["somebody"] and bool(space.use.held)

        await until(compacted, _SECONDS)
        report = space.report()
        assert report["waiting_bytes"] > 100_000
        assert report["live_bytes"] > KEYS * 100
        (checkpoint,) = space.use.checkpoints if space.use is not None else ()
        expires_at_ms = checkpoint.expires_at_ms
        assert report["checkpoints"] == [
            {"name": "somebody", "created_at_ms": checkpoint.created_at_ms, "expires_at_ms": expires_at_ms}
        ]
        assert expires_at_ms is not None
        assert 590_000 < expires_at_ms - checkpoint.created_at_ms < 610_000
        assert report["tables"] >= report["unsorted_tables"]
        assert report["runs"] >= 1
        ended = report["compactions_ended"] + report["compactions_running"]
        assert all(one["sources"] > 0 for one in ended)
        assert all(0 < one["planned_at_ms"] <= store.clock.now_ms() for one in ended)
        assert ended
        await store.admin.delete_checkpoint(held)
        await space.read()
        assert space.freed_bytes > 100_000
        await until(collected(store, tmp_path / "db", 2 * KEYS * 110), _SECONDS)
        space.freed_bytes = 0
        await store.close()

    asyncio.run(main())


def test_tables_that_checkpoints_released_add_up_until_they_are_deleted() -> None:
    async def main() -> None:
        readings = [DiskUse(1, 0, held, ()) for held in ({"a": 5, "b": 7}, {"b": 7, "c": 11}, {"c": 11}, {})]

        async def disk_use(_now_ms: int) -> DiskUse:
            return readings.pop(0)

        space = DiskSpace(cast(SlateAdmin, SimpleNamespace(disk_use=disk_use)), ManualClock())
        for freed_bytes in (0, 5, 12, 23):
            await space.read()
            assert space.freed_bytes == freed_bytes

    asyncio.run(main())


def test_a_look_that_fails_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        store = await SlateStore.open(f"file://{tmp_path}", "db", settings=SMALL)
        space = DiskSpace(store.admin, store.clock)
        await space.read()
        before = space.report()
        await store.close()
        for file in (tmp_path / "db" / "manifest").iterdir():
            file.write_bytes(b"damaged")
        await space.read()
        assert space.report() == before

    asyncio.run(main())


async def settle_some(world: World, rounds: int, size: int = 1000) -> None:
    """Publish, deliver and acknowledge messages; each round is a checkpoint."""
    chance = random.Random(rounds)  # bytes that can't be compressed
    for _ in range(rounds):
        for _ in range(20):
            world.publish("q", envelope=chance.randbytes(size))
            world.engine.operations.ack(world.queue("q"), (await world.claim("q"),))
        await world.engine.commits.commit()
        await world.engine.commits.checkpoint()


def small(**changes: object) -> EngineSettings:
    given = {"slate": SMALL, "sync": False, "tidy_interval_seconds": 0.3, "journal_segment_bytes": 64 << 10}
    return EngineSettings(**{**given, **changes})  # type: ignore[arg-type]


def test_under_load_the_disk_stays_bounded_and_at_rest_it_holds_what_lives(tmp_path: Path) -> None:
    """Here all times are a twentieth, and sizes a hundredth; the benchmark has the real ones."""

    async def steps(world: World) -> None:
        engine, folder = world.engine, tmp_path / "s" / "default" / "compacted"
        maintenance = asyncio.create_task(engine.upkeep.run())

        async def times_live() -> float:
            await engine.disk_space.read()
            assert engine.disk_space.use is not None
            return bytes_in(folder) / engine.disk_space.use.live_bytes

        async def is_bounded() -> bool:
            return await times_live() < 4

        for _ in range(30):
            await settle_some(world, 5)
            await until(is_bounded, _SECONDS, poll_seconds=0.1)

        async def at_rest() -> bool:
            return await times_live() < 1.5

        await until(at_rest, _SECONDS)  # though nothing is written any more
        maintenance.cancel()
        await asyncio.wait([maintenance])

    run(tmp_path / "s", steps, small())


def test_garbage_that_is_seen_during_a_collection_counts_for_the_next(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        engine, store = world.engine, world.engine.store
        collect = store.collect_garbage

        async def collect_and_read() -> bool:
            deleted = await collect()
            engine.disk_space.freed_bytes += 7
            return deleted

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "collect_garbage", collect_and_read)
            engine.disk_space.freed_bytes = 5
            await settle_some(world, 1)
            await engine.upkeep.tidy()
        assert engine.disk_space.freed_bytes == 7

    run(tmp_path / "s", steps, small())


def test_nothing_is_left_after_a_clean_end(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        engine = world.engine

        async def has_garbage() -> bool:
            await settle_some(world, 10)
            await engine.disk_space.read()
            assert engine.disk_space.use is not None
            return bytes_in(tmp_path / "s" / "default" / "compacted") > 3.5 * engine.disk_space.use.live_bytes

        await settle_some(world, 100)
        await engine.upkeep.tidy()
        await until(has_garbage, _SECONDS)

    run(tmp_path / "s", steps, small(slate=SlateSettings(
        l0_sst_size_bytes=100_000, sorted_sst_size_bytes=200_000, compactor_poll_ms=100, commit_compaction_ms=100,
    )))  # fmt: skip

    async def look() -> None:
        # not by opening the store, which would begin a compaction
        manifest = await SlateAdmin(locate(f"file://{tmp_path / 's'}", "default", create=False)).manifest()
        assert manifest is not None
        # a compaction of everything may have begun at the very end
        assert bytes_in(tmp_path / "s" / "default" / "compacted") < 2.25 * sum(manifest.tables.values())
        assert manifest.checkpoints == ()

    asyncio.run(look())


def test_errors_of_the_admin_are_ours(tmp_path: Path) -> None:
    async def main() -> None:
        store = await SlateStore.open(f"file://{tmp_path}", "db", settings=SMALL)
        try:
            await store.admin.refresh_checkpoint("01900000-0000-7000-8000-000000000000", 1)
        except errors.StoreError:
            return
        finally:
            await store.close()
        raise AssertionError("there is no such checkpoint")

    asyncio.run(main())


HOUR = 3600.0


class Upkept:
    """An engine whose upkeep runs with an hour between its steps, which pass on the loop's clock."""

    def __init__(self, world: World) -> None:
        self.world, self.engine = world, world.engine
        self.tidies = 0
        self._is_tidying = False
        self._tidy = self.engine.upkeep.tidy
        self.engine.upkeep.tidy = self._count  # type: ignore[method-assign]

    async def _count(self) -> bool:
        self.tidies, self._is_tidying = self.tidies + 1, True
        is_tidy = await self._tidy()
        self._is_tidying = False
        return is_tidy

    async def __aenter__(self) -> Upkept:
        self._upkeep = asyncio.create_task(self.engine.upkeep.run())
        await self._decided()
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._upkeep.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self._upkeep

    async def commit(self, count: int = 1) -> None:
        """Write to the store, or to its journal so often and then to the store."""
        for _ in range(count):
            self.world.publish("q", envelope=bytes(1000))
            await self.engine.commits.commit()
        if self.engine.journal is not None:
            await self.engine.commits.checkpoint()

    async def steps(self, count: int) -> None:
        for _ in range(count):
            cast(AdvancedLoop, asyncio.get_running_loop()).advance(HOUR)
            await self._decided()

    async def _decided(self) -> None:
        """Wait for a step: it reads the disk use, and then tidies if that is due."""
        use, tidies = self.engine.disk_space.use, self.tidies

        def is_over() -> bool:
            return (self.tidies > tidies or self.engine.disk_space.use is not use) and not self._is_tidying

        await until(is_over, _SECONDS)


def hourly(**changes: Any) -> EngineSettings:
    return replace(EngineSettings(tidy_interval_seconds=HOUR, journal_segment_bytes=64 << 10), **changes)


def test_a_store_with_a_journal_is_tidied_when_a_segment_is_full_or_after_six_intervals(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        async with Upkept(world) as upkept:
            await upkept.commit()
            await upkept.steps(5)
            assert upkept.tidies == 0
            await upkept.steps(1)
            assert upkept.tidies == 1
            await upkept.steps(7)
            assert upkept.tidies == 1, "nothing was written"
            await upkept.commit()
            await upkept.steps(1)
            assert upkept.tidies == 2
            await upkept.commit(100)
            await upkept.steps(1)
            assert upkept.tidies == 3, "a segment is full"

    run(tmp_path / "s", steps, hourly(), loop=AdvancedLoop)


@pytest.mark.parametrize(
    ("snapshot_ms", "intervals"), [(0, 1), (4, 1), (5, 1), (6, 2), (10, 2), (11, 3), (15, 3), (1000, 3)]
)
def test_the_pause_before_a_checkpoint_depends_on_the_last_snapshot(snapshot_ms: int, intervals: int) -> None:
    assert pause_intervals(snapshot_ms, 100) == intervals


class CountedCommits:
    """Commits that are always dirty, with results to sync, and that record what happens at each interval."""

    stored = 0

    def __init__(self, snapshots: list[float], *, rewrites: bool = True, large_after: int = -1) -> None:
        self.is_dirty = self.sync_soon = True
        self.rewrites_partitions, self.snapshot_seconds = rewrites, 0.0
        self.is_large = asyncio.Event()
        self.events = ""
        self._snapshots, self._large_after = snapshots, large_after

    async def checkpoint(self) -> None:
        self.is_large.clear()
        self.snapshot_seconds = self._snapshots.pop(0) if self._snapshots else 0.0
        self._record("C")

    async def commit(self) -> None:
        self._record("s")

    def _record(self, event: str) -> None:
        self.events += event
        if len(self.events) == self._large_after:
            self.is_large.set()


@pytest.mark.parametrize(
    ("commits", "expected"),
    [
        ({"snapshots": [6, 20, 5]}, "CsCssCC"),
        ({"snapshots": [20, 20], "rewrites": False}, "CCCC"),
        ({"snapshots": [20, 20], "large_after": 2}, "CsCssC"),
    ],
    ids=["partitions", "other buckets", "a large batch"],
)
def test_a_checkpoint_that_rewrites_partitions_waits_but_syncs_results(commits: dict[str, Any], expected: str) -> None:
    """Snapshots take these hundredths of the interval."""

    async def main() -> None:
        async def read() -> None:
            pass

        settings = EngineSettings(checkpoint_interval_ms=1, tidy_interval_seconds=HOUR)
        counted = CountedCommits([hundredths / 100_000 for hundredths in commits.pop("snapshots")], **commits)
        unused: Any = None
        journal, disk_space = cast(Any, SimpleNamespace(has_spare=True)), cast(Any, SimpleNamespace(read=read))
        upkeep = Upkeep(unused, journal, cast(Any, counted), unused, unused, disk_space, settings)
        running = asyncio.create_task(upkeep.run())
        await until(lambda: len(counted.events) >= len(expected) or running.done(), _SECONDS)
        running.cancel()
        assert counted.events.startswith(expected)

    asyncio.run(main())


def run_in_memory(steps: Callable[[World], Awaitable[None]], settings: EngineSettings) -> None:
    """Run ``steps`` on an engine without a journal, as on a bucket, with the queue ``q``."""

    async def main() -> None:
        world = World(Path("none"), settings)
        world.engine = await Engine.open(f"memory://{uuid.uuid4()}", "default", world.clock, settings)
        world.engine.definitions.declare_queue("q", QueueSettings())
        await steps(world)
        await world.engine.close()

    with asyncio.Runner(loop_factory=AdvancedLoop) as runner:
        runner.run(main())


def test_a_bucket_is_tidied_at_64_wal_files_or_after_its_time() -> None:
    async def steps(world: World) -> None:
        async with Upkept(world) as upkept:
            await upkept.commit(63)
            await upkept.steps(1)
            assert upkept.tidies == 0
            await upkept.commit()
            await upkept.steps(1)
            assert upkept.tidies == 1
            await upkept.commit()
            await upkept.steps(9)
            assert upkept.tidies == 1
            await upkept.steps(1)
            assert upkept.tidies == 2

    run_in_memory(steps, hourly(bucket_tidy_seconds=10 * HOUR, idle_seconds=0))


def test_an_idle_bucket_is_reopened_and_again_when_it_is_in_use() -> None:
    async def steps(world: World) -> None:
        store, in_use = world.engine.store, world.settings.slate
        async with Upkept(world) as upkept:
            await upkept.commit()
            await upkept.steps(2)
            assert store.settings == in_use
            await upkept.steps(1)
            await until(lambda: store.settings == in_use.for_idleness(), _SECONDS)
            for _ in range(3):
                assert store.settings == in_use.for_idleness()
                await upkept.commit(10)
                await upkept.steps(1)
            await until(lambda: store.settings == in_use, _SECONDS)
            assert len(world.queue("q").messages) == 31

    run_in_memory(steps, hourly(bucket_tidy_seconds=0, idle_seconds=2 * HOUR))


def test_a_hand_over_leaves_the_next_broker_tables_and_ends_tidies() -> None:
    async def steps(world: World) -> None:
        engine = world.engine
        world.publish("q")
        await engine.commits.commit()
        before = await engine.store.admin.manifest()
        assert before is not None
        await engine.upkeep.shorten_recovery()
        manifest = await engine.store.admin.manifest()
        assert manifest is not None
        assert len(manifest.tables) == len(before.tables) + 1
        assert engine.commits.tidying.locked()

    run_in_memory(steps, EngineSettings())


BUSY = SlateSettings()


def test_idle_after_a_time_and_busy_after_some_steps() -> None:
    async def main() -> None:
        loop, ahead = asyncio.get_running_loop(), 0.0
        real = loop.time
        loop.time = lambda: real() + ahead  # type: ignore[method-assign]
        store = await SlateStore.open(f"memory://{uuid.uuid4()}", "db", settings=BUSY)
        idle = IdleStore(store, BUSY, 3600)
        assert idle.change(0) is None
        ahead += 3601
        assert idle.change(1) is None  # it was written
        ahead += 3601
        settings = idle.change(0)
        assert settings == BUSY.for_idleness()
        await idle.reopen(settings)
        assert idle.is_idle
        for commits in (20, 20, 9, 20, 20):  # now and then is no use yet
            assert idle.change(commits) is None
        settings = idle.change(20)
        assert settings == BUSY
        await idle.reopen(settings)
        assert not idle.is_idle
        assert store.settings == BUSY
        await store.close()

    asyncio.run(main())
