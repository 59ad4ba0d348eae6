"""The engine on real stores: what is refused, many messages, a full disk."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.errors import InvalidMessage, NewerFormat, RequestError, StoreFull, UnsupportedFormat
from kombu_opendata.storage.commit.file_calls import FileCalls
from kombu_opendata.storage.commit.journal_format import Segment
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.records import keys, store_records
from kombu_opendata.storage.records.keys import RecordKind
from tests.support.disks import failing
from tests.support.engine import World, nothing, run, sized
from tests.support.plain_store import PlainStore
from tests.support.waiting import until


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    async def newer(world: World) -> None:
        value = await world.engine.store.get(keys.STORE_HEADER_KEY)
        assert value is not None
        store_records.decode_header(keys.STORE_HEADER_KEY, value)
        batch = world.engine.store.batch()
        batch.put(keys.STORE_HEADER_KEY, b"\xff\xff" + value[2:])
        await world.engine.store.write(batch)

    root = run(tmp_path / "s", newer).root
    with pytest.raises(NewerFormat):
        run(root, nothing)


def test_a_store_of_format_1_is_refused(tmp_path: Path) -> None:
    async def older(world: World) -> None:
        batch = world.engine.store.batch()
        batch.put(
            keys.STORE_HEADER_KEY,
            store_records.encode_header(store_records.StoreHeader(1, "default", format_version=1)),
        )
        await world.engine.store.write(batch)

    root = run(tmp_path / "s", older).root
    with pytest.raises(UnsupportedFormat, match=r"never released.* start with a new store"):
        run(root, nothing)


def test_what_can_not_be_stored_is_refused_before_anything_changed(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for priority in (256, -1):
            with pytest.raises(InvalidMessage):
                world.publish("q", priority=priority)
        assert len(world.queue("q").messages) == 0
        number = 0
        while world.engine.state.topology.filter_size("q", "amq.direct", f"{number:0200}", {}) <= 65_535:
            world.engine.definitions.bind("q", "amq.direct", f"{number:0200}", {})
            number += 1
        with pytest.raises(RequestError, match="too many bindings") as caught:
            world.engine.definitions.bind("q", "amq.direct", f"{number:0200}", {})
        assert caught.value.queue == "q"
        world.publish("q")

    store = PlainStore(run(tmp_path / "s", steps).root)
    assert len(store.of[RecordKind.BINDING]) > 200
    assert len(store.of[RecordKind.PAYLOAD]) == 1


def test_three_thousand_messages_over_cold_buckets_come_in_order(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = []
        for number in range(3000):
            ids.append(world.publish("q", envelope=b"%d" % number))
            if number % 500 == 499:
                await world.engine.commits.checkpoint()
        assert len(world.queue("q").messages.cold) > 100
        for position in range(3000):
            if position == 1000:
                await world.crash()
            elif position == 2000:
                await world.engine.close()
                await world.open()
            elif position % 300 == 0:
                await world.engine.commits.checkpoint()
            entry = await world.claim("q")
            assert entry.id == ids[position]
            assert world.engine.payloads.find(entry.id) == b"%d" % position
            world.engine.operations.ack(world.queue("q"), (entry,))
            world.engine.commits.commit_journal()
        assert await world.next("q") is None

    store = PlainStore(run(tmp_path / "s", steps, sized(bucket_entries=16, loaded_buckets=8)).root)
    assert len(store.rows(RecordKind.DONE, "q")) == 3000


def test_a_full_disk_refuses_publishes_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: Any, **_named: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def steps(world: World) -> None:
        engine, sent = world.engine, 0
        with monkeypatch.context() as patch:
            patch.setattr(Segment, "allocate", full)  # what is allocated can be written
            while (engine.journal.room if engine.journal else 0) >= 2000 + (8 << 10):
                engine.commits.check_room(1000)
                world.publish("q", envelope=bytes(1000))
                engine.commits.commit_journal()
                sent += 1
            with pytest.raises(StoreFull, match="nothing was stored"):
                engine.commits.check_room(1000)
            assert sent > 30
            held = [await world.claim("q") for _ in range(20)]  # what was reserved is for these
            engine.operations.ack(world.queue("q"), held)
            engine.commits.commit_journal()
        engine.commits.check_room(1000)
        world.publish("q")
        await engine.commits.commit()
        await world.crash()
        assert len(world.queue("q").messages) == sent - 20 + 1

    run(tmp_path / "s", steps, sized(reserved_bytes=8 << 10))


def test_effects_that_found_no_room_are_committed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(world: World) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(FileCalls, "write_parts", staticmethod(failing(errno.ENOSPC)))
            world.publish("q")
            for _ in range(2):
                with pytest.raises(StoreFull):
                    world.engine.commits.commit_journal()
            with pytest.raises(StoreFull):
                await world.engine.commits.checkpoint()
        await world.engine.commits.commit()
        await world.crash()
        assert len(world.queue("q").messages) == 1

    run(tmp_path / "s", steps)


@pytest.mark.parametrize("tidying", [False, True])
def test_a_large_batch_does_not_wait(tmp_path: Path, tidying: bool) -> None:
    """Neither for its time nor for the disk's sync, which takes seconds: it would fill the memory."""

    async def steps(world: World) -> None:
        engine, synced, begun = world.engine, asyncio.Event(), asyncio.Event()

        async def slow_sync() -> bool:
            begun.set()
            return await synced.wait()

        if tidying:
            engine._files.sync = slow_sync  # type: ignore[method-assign]
        maintenance = asyncio.create_task(engine.upkeep.run())
        if tidying:
            world.publish("q")
            await asyncio.wait_for(begun.wait(), 20)
        for _ in range(5):
            world.publish("q", envelope=bytes(1 << 20))
        engine.commits.commit_journal()
        async with asyncio.timeout(60):
            await until(lambda: not (engine.payloads.pending or engine.payloads.flushing))
        synced.set()
        maintenance.cancel()
        await asyncio.wait([maintenance])

    tidy_seconds = 0.0 if tidying else 3600
    settings = EngineSettings(checkpoint_interval_ms=200 if tidying else 3_600_000, tidy_interval_seconds=tidy_seconds)
    run(tmp_path / "s", steps, settings)
