"""Results and chords in the engine: expiry, crashes, what is not at hand, parts that come twice."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from kombu_opendata.errors import CorruptRecord
from kombu_opendata.storage.clock import SystemClock
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.records import keys
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.records.payload_places import EnvelopePlace
from kombu_opendata.storage.records.results import FINAL, INTERIM, READY
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.engine import SETTINGS, World, run, sized
from tests.support.s3 import BUCKET, S3
from tests.support.verified import assert_verified, verify

pytestmark = pytest.mark.contract(11, 15)

COLD = replace(SETTINGS, result_cache_bytes=0)
HOUR_MS = 3_600_000


async def value_of(world: World, name: bytes) -> bytes | None:
    found = await world.engine.results.get(name)
    return None if found is None else await world.engine.results.value(name, found)


async def rows_of(world: World, kind: RecordKind) -> list[bytes]:
    return [key for key, _value in await world.engine.store.scan(*keys.kind_range(kind))]


@pytest.mark.parametrize("settings", [SETTINGS, COLD])
def test_a_result_survives_a_crash_before_and_after_its_checkpoint(tmp_path: Path, settings: object) -> None:
    async def steps(world: World) -> None:
        world.engine.results.store(b"early", FINAL, b"1", HOUR_MS)
        await world.engine.commits.commit()
        await world.engine.commits.checkpoint()
        world.engine.results.store(b"late", FINAL, b"2", 0)
        world.engine.results.store(b"forgotten", FINAL, b"3", 0)
        world.engine.results.forget([b"forgotten"])
        await world.engine.commits.commit()
        await world.crash()
        assert [await value_of(world, name) for name in (b"early", b"late", b"forgotten")] == [b"1", b"2", None]

    run(tmp_path / "store", steps, settings)  # type: ignore[arg-type]


def test_a_result_is_synced_by_the_next_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(world: World) -> None:
        engine, synced = world.engine, list[int]()
        await engine.commits.checkpoint()
        monkeypatch.setattr(engine.journal, "sync", lambda: synced.append(engine.commits.count))
        engine.results.store(b"task", FINAL, b"x", 0)
        engine.commits.commit_journal()
        assert synced == []
        await engine.commits.checkpoint()
        assert len(synced) == 1
        await engine.commits.checkpoint()
        assert len(synced) == 1

    run(tmp_path / "store", steps)


def test_a_final_result_is_kept_and_others_are_not(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        store = world.engine.results.store
        assert store(b"task", INTERIM, b"started", HOUR_MS)
        assert store(b"task", READY, b"failed", HOUR_MS)
        assert store(b"task", FINAL, b"done", HOUR_MS)
        assert not store(b"task", READY, b"failed again", HOUR_MS)
        assert await value_of(world, b"task") == b"done"

    run(tmp_path / "store", steps)


@pytest.mark.parametrize("settings", [SETTINGS, COLD])
def test_an_expired_result_is_not_seen_and_is_removed(tmp_path: Path, settings: object) -> None:
    async def steps(world: World) -> None:
        engine = world.engine
        engine.results.store(b"short", FINAL, b"1", 1000)
        engine.results.store(b"longer", INTERIM, b"2", 1000)
        engine.results.store(b"for ever", FINAL, b"3", 0)
        await engine.commits.checkpoint()
        engine.results.store(b"longer", FINAL, b"4", 5000)
        await engine.commits.checkpoint()
        world.clock.advance(1500)
        assert await value_of(world, b"short") is None
        assert len(await rows_of(world, RecordKind.RESULT)) == 3
        await engine.collector.sweep()
        await engine.commits.checkpoint()
        assert [await value_of(world, name) for name in (b"short", b"longer", b"for ever")] == [None, b"4", b"3"]
        assert await rows_of(world, RecordKind.RESULT) == [keys.result_key(b"for ever"), keys.result_key(b"longer")]
        assert len(await rows_of(world, RecordKind.RESULT_EXPIRY)) == 1
        world.clock.advance(5000)
        await engine.collector.sweep()
        await engine.commits.checkpoint()
        assert await rows_of(world, RecordKind.RESULT) == [keys.result_key(b"for ever")]
        assert await rows_of(world, RecordKind.RESULT_EXPIRY) == []

    run(tmp_path / "store", steps, settings)  # type: ignore[arg-type]


def test_a_result_that_is_stored_again_while_it_expires_stays(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        engine = world.engine
        engine.results.store(b"task", FINAL, b"old", 1000)
        await engine.commits.checkpoint()
        world.clock.advance(1500)
        await engine.collector.sweep()
        engine.results.store(b"task", FINAL, b"new", 1000)
        await engine.commits.checkpoint()
        assert await value_of(world, b"task") == b"new"
        assert await rows_of(world, RecordKind.RESULT) == [keys.result_key(b"task")]

    run(tmp_path / "store", steps, COLD)


def test_more_expired_results_than_a_page(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for number in range(250):
            world.engine.results.store(b"task %d" % number, FINAL, b"x", 1000)
        await world.engine.commits.checkpoint()
        world.clock.advance(1000)
        assert await world.engine.results.sweep(world.clock.now_ms()) == 250
        await world.engine.commits.checkpoint()
        assert await rows_of(world, RecordKind.RESULT) == []
        assert await rows_of(world, RecordKind.RESULT_EXPIRY) == []

    run(tmp_path / "store", steps)


def test_what_is_not_at_hand_is_known_by_its_age(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.clock.advance(60_000)
        assert world.engine.results.find(b"task") == (False, None)
        assert world.engine.results.find(b"task", 10_000) == (True, None)
        world.engine.results.store(b"other", FINAL, b"x", 0)
        await world.engine.commits.checkpoint()
        assert world.engine.results.find(b"other", 10_000) == (False, None), "it may be one that left the cache"
        world.clock.advance(20_000)
        assert world.engine.results.find(b"task", 10_000) == (True, None)

    run(tmp_path / "store", steps, COLD)


@pytest.mark.parametrize("settings", [SETTINGS, COLD])
def test_a_chord_counts_each_part_once_over_crashes(tmp_path: Path, settings: object) -> None:
    async def steps(world: World) -> None:
        def part(index: int, value: bytes = b"x") -> None:
            member = b"task %d" % index
            world.engine.results.store(b"", READY, value, 0, b"group", index, member, HOUR_MS)

        world.engine.results.open_chord(b"group", HOUR_MS, header=b"header")
        part(1, b"first")
        await world.engine.commits.commit()
        await world.engine.commits.checkpoint()
        part(0)
        part(1, b"again")
        await world.engine.commits.commit()
        await world.crash()
        world.engine.results.open_chord(b"group", HOUR_MS, 2)
        world.engine.results.open_chord(b"group", HOUR_MS, added=1)
        part(1)
        chord = world.engine.state.results.chords[b"group"]
        assert not chord.is_complete
        part(2)
        assert chord.is_complete
        assert chord.header == b"header"
        values = [await world.engine.results.part(chord.parts[key]) for key in sorted(chord.parts)]
        assert values == [b"x", b"first", b"x"]
        await world.engine.commits.checkpoint()
        world.engine.results.close_chord(b"group")
        await world.engine.commits.commit()
        await world.crash()
        assert world.engine.state.results.chords == {}
        await world.engine.commits.checkpoint()
        assert await rows_of(world, RecordKind.CHORD) == await rows_of(world, RecordKind.CHORD_PART) == []

    run(tmp_path / "store", steps, settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("stored", [True, False])
def test_a_task_is_added_to_a_chord_once_over_crashes(tmp_path: Path, stored: bool) -> None:
    async def steps(world: World) -> None:
        def add(member: bytes) -> int:
            world.engine.results.open_chord(b"group", HOUR_MS, added=1, member=member)
            return world.engine.state.results.chords[b"group"].added

        async def crash() -> None:
            await (world.engine.commits.checkpoint() if stored else world.engine.commits.commit())
            await world.crash()

        world.engine.results.open_chord(b"group", HOUR_MS, 0)
        assert (add(b"one"), add(b"one")) == (1, 1)
        await crash()
        assert (add(b"one"), add(b"two"), add(b"one")) == (1, 2, 2)
        await crash()
        chord = world.engine.state.results.chords[b"group"]
        assert list(chord.members) == [b"one", b"two"]
        for index, member in enumerate((b"one", b"two")):
            assert not chord.is_complete
            world.engine.results.store(b"", READY, b"x", 0, b"group", index, member, HOUR_MS)
            assert add(member) == 2  # the request is repeated after the task's end
        assert chord.is_complete
        await crash()
        assert world.engine.state.results.chords[b"group"].is_complete
        assert (add(b""), add(b"")) == (3, 4)  # clients of an older version send no id

    run(tmp_path / "store", steps)


def test_a_chord_that_came_and_went_is_never_written(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.results.store(b"task", FINAL, b"x", 0, b"group", 0, b"task", HOUR_MS)
        world.engine.results.close_chord(b"group")
        await world.engine.commits.checkpoint()
        assert await rows_of(world, RecordKind.CHORD) == await rows_of(world, RecordKind.CHORD_PART) == []
        assert await value_of(world, b"task") == b"x"

    run(tmp_path / "store", steps)


def test_a_chord_expires(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.results.store(b"", READY, b"x", 0, b"group", 0, b"task", 1000)
        await world.engine.commits.checkpoint()
        world.clock.advance(1000)
        await world.engine.collector.sweep()
        await world.engine.commits.checkpoint()
        assert world.engine.state.results.chords == {}
        assert await rows_of(world, RecordKind.CHORD) == await rows_of(world, RecordKind.CHORD_PART) == []

    run(tmp_path / "store", steps)


def test_an_applied_again_chord_starts_anew(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for _ in range(2):
            world.engine.results.open_chord(b"group", HOUR_MS, again=True)
            assert not world.engine.state.results.chords[b"group"].parts
            world.engine.results.store(b"", READY, b"x", 0, b"group", 0, b"task", HOUR_MS)
            await world.engine.commits.checkpoint()
        assert len(await rows_of(world, RecordKind.CHORD_PART)) == 1

    run(tmp_path / "store", steps)


def test_memory_is_bounded(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for number in range(50):
            world.engine.results.store(b"task %d" % number, FINAL, bytes(1000), 0)
        await world.engine.commits.checkpoint()
        assert 0 < world.engine.state.results.results.size_bytes <= 10_000
        assert await value_of(world, b"task 0") == bytes(1000)

    run(tmp_path / "store", steps, replace(SETTINGS, result_cache_bytes=10_000))


def test_a_damaged_result_names_its_key(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        key = keys.result_key(b"task")
        batch = world.engine.store.batch()
        batch.put(key, b"\x01\x07" + bytes(8))
        await world.engine.store.write(batch)
        with pytest.raises(CorruptRecord, match="result kind 7") as caught:
            await world.engine.results.get(b"task")
        assert caught.value.key == key

    run(tmp_path / "store", steps)


def test_two_that_ask_at_once(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.results.store(b"task", FINAL, b"x", 0)
        await world.engine.commits.checkpoint()
        found = await asyncio.gather(*(world.engine.results.get(b"task") for _ in range(5)))
        assert [result.value for result in found if result] == [b"x"] * 5

    run(tmp_path / "store", steps, COLD)


LARGE = bytes(range(256)) * 10_000  # three chunks


async def chunks_of(world: World) -> tuple[int, int]:
    """How many values are in chunks, and how many chunks there are."""
    large = await rows_of(world, RecordKind.LARGE_VALUE)
    return len(large), len(await rows_of(world, RecordKind.VALUE_CHUNK))


CHUNKED, COLD_CHUNKED = (sized(settings, large_body_bytes=1 << 30) for settings in (SETTINGS, COLD))


@pytest.mark.parametrize("settings", [CHUNKED, COLD_CHUNKED])
def test_a_large_value_is_stored_in_chunks_which_go_with_it(tmp_path: Path, settings: object) -> None:
    async def steps(world: World) -> None:
        world.engine.results.store(b"task", READY, LARGE, HOUR_MS)
        world.engine.results.store(b"other", READY, LARGE[: 2 << 20], HOUR_MS)
        await world.engine.commits.commit()
        await world.crash()
        assert await value_of(world, b"task") == LARGE
        await world.engine.commits.checkpoint()
        assert await chunks_of(world) == (2, 5)
        stored = await world.engine.store.get(keys.result_key(b"task"))
        assert stored is not None
        assert len(stored) < 100
        await world.crash()
        assert [await value_of(world, name) for name in (b"task", b"other")] == [LARGE, LARGE[: 2 << 20]]
        world.engine.results.store(b"task", READY, LARGE[1 : 3 << 19], HOUR_MS)
        await world.engine.commits.checkpoint()
        assert await chunks_of(world) == (2, 4)
        await world.crash()
        assert await value_of(world, b"task") == LARGE[1 : 3 << 19]
        world.engine.results.store(b"task", FINAL, b"small", HOUR_MS)
        await world.engine.commits.checkpoint()
        assert await chunks_of(world) == (1, 2)
        world.clock.advance(HOUR_MS + 1)
        await world.engine.collector.sweep()
        await world.engine.commits.checkpoint()
        assert await chunks_of(world) == (0, 0)
        assert await rows_of(world, RecordKind.RESULT) == []

    run(tmp_path / "store", steps, settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [COLD, COLD_CHUNKED], ids=["segments", "chunks"])
@pytest.mark.parametrize("value", [None, b"small"])
def test_a_large_value_that_goes_while_it_is_read(
    tmp_path: Path, value: bytes | None, settings: EngineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the reading of its record and that of its chunks or its segment."""

    async def steps(world: World) -> None:
        results, store = world.engine.results, world.engine.store
        results.store(b"task", READY, LARGE, HOUR_MS)
        await world.engine.commits.checkpoint()
        read = store.get

        async def slowly(key: bytes) -> bytes | None:
            assert key == keys.result_key(b"task")
            monkeypatch.setattr(store, "get", read)
            found = await read(key)
            if value is None:
                results.forget([b"task"])
            else:
                results.store(b"task", READY, value, HOUR_MS)
            await world.engine.commits.checkpoint()
            return found

        monkeypatch.setattr(store, "get", slowly)
        for _ in range(2):
            assert await value_of(world, b"task") == value

    run(tmp_path / "store", steps, settings)


def test_large_parts_of_a_chord_go_with_it(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        results = world.engine.results
        results.open_chord(b"group", HOUR_MS, 2)
        results.store(b"", READY, LARGE, 0, b"group", 0, b"one", HOUR_MS)
        await world.engine.commits.checkpoint()
        await world.crash()
        [key] = world.engine.state.results.chords[b"group"].parts.values()
        results = world.engine.results
        assert await results.part_value(key, await results.part(key)) == LARGE
        assert await chunks_of(world) == (1, 3)
        results.close_chord(b"group")
        await world.engine.commits.checkpoint()
        assert await chunks_of(world) == (0, 0)

    run(tmp_path / "store", steps, CHUNKED)


def test_a_missing_chunk_is_said(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.results.store(b"task", READY, LARGE, 0)
        await world.engine.commits.checkpoint()
        await world.crash()
        batch = world.engine.store.batch()
        batch.delete(keys.value_chunk_key(keys.result_key(b"task"), 1))
        await world.engine.store.write(batch)
        with pytest.raises(CorruptRecord, match="the result 'task' can't be read: the chunks of a result hold"):
            await value_of(world, b"task")

    run(tmp_path / "store", steps, CHUNKED)


# ---------------------------------------------------------------------- payload segments
SIZE = 1000
SEGMENTED = sized(large_body_bytes=SIZE, segment_bytes=2500)
#: no value is in memory after a read or a checkpoint
COLD_SEGMENTED = replace(SEGMENTED, result_cache_bytes=0)


def large(number: int, size: int = SIZE) -> bytes:
    return random.Random(number).randbytes(size)


def segments(world: World) -> list[str]:
    return sorted(file.name.partition("-")[2] for file in (world.root / "default.staged").glob("segments/*"))


async def collect(world: World) -> None:
    """Delete what is not needed, and what a crash left."""
    await world.engine.commits.checkpoint()
    await world.engine.upkeep.tidy()
    await world.engine.staging.remove_orphans(world.clock.now_ms(), lambda _folder: nullcontext())


async def cold_value_of(world: World, name: bytes) -> bytes | None:
    world.engine.free_memory()
    return await value_of(world, name)


def test_values_from_the_threshold_on_are_written_once(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        engine = world.engine
        assert engine.journal is not None
        for number, size in enumerate((SIZE - 1, SIZE, 100_000)):
            engine.results.store(b"%d" % number, READY, large(number, size), 0)
        assert engine.commits.new_bytes < SIZE
        await engine.commits.checkpoint()
        assert await rows_of(world, RecordKind.LARGE_VALUE) == [
            keys.large_value_key(keys.result_key(name)) for name in (b"1", b"2")
        ]
        records = [await engine.store.get(keys.result_key(b"%d" % number)) or b"" for number in range(3)]
        assert [len(record) > SIZE - 1 for record in records] == [True, False, False]
        assert [await cold_value_of(world, b"%d" % number) for number in range(3)] == [
            large(0, SIZE - 1), large(1), large(2, 100_000),
        ]  # fmt: skip

    assert_verified(run(tmp_path / "store", steps, SEGMENTED).root)


#: how far a value is stored, and how far the value that replaces it
STEPS = ["applied", "committed", "stored"]


@pytest.mark.parametrize("new", [large(2), b"small", None])
@pytest.mark.parametrize("new_step", ["", *STEPS])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_of_a_value(tmp_path: Path, step: str, new_step: str, new: bytes | None) -> None:
    """The copy of the store is as a kill -9 leaves it: what was written without a commit is there."""
    expected = None if step == "applied" else large(1)
    if new_step in STEPS[1:]:
        expected = new

    async def advance(world: World, step: str) -> None:
        if step == "committed":
            await world.engine.commits.commit()
        elif step == "stored":
            await world.engine.commits.checkpoint()

    async def steps(world: World) -> None:
        results = world.engine.results
        results.store(b"task", READY, large(1), HOUR_MS)
        await advance(world, step)
        if new_step and new is None:
            results.forget([b"task"])
        elif new_step and new is not None:
            results.store(b"task", READY, new, HOUR_MS)
        await advance(world, new_step)
        await world.crash()
        assert await value_of(world, b"task") == expected
        await collect(world)
        assert await cold_value_of(world, b"task") == expected
        assert len(segments(world)) == (expected is not None and len(expected) >= SIZE)
        world.clock.advance(HOUR_MS)
        await world.engine.collector.sweep()
        await collect(world)
        assert segments(world) == []

    assert_verified(run(tmp_path / "store", steps, COLD_SEGMENTED).root)


def test_a_segment_is_deleted_with_its_last_value_or_message(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        engine = world.engine
        for number in range(5):
            engine.results.store(b"%d" % number, READY, large(number), 0)
        world.publish("q", envelope=large(5))
        await collect(world)
        assert segments(world) == ["0.segment", "1.segment"]
        engine.results.forget([b"3", b"4"])
        await collect(world)
        assert segments(world) == ["0.segment", "1.segment"], "the message"
        engine.operations.delete(world.queue("q"), (await world.claim("q"),))
        await collect(world)
        assert segments(world) == ["0.segment"]
        assert [await cold_value_of(world, b"%d" % number) for number in range(3)] == [large(n) for n in range(3)]

    assert_verified(run(tmp_path / "store", steps, SEGMENTED).root)


def test_a_value_that_waits_for_its_checkpoint_keeps_a_segment_whose_messages_went(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        engine = world.engine
        assert engine.commits.segments is not None
        world.publish("q", envelope=large(1))
        engine.operations.delete(world.queue("q"), (await world.claim("q"),))
        await engine.commits.checkpoint()
        engine.results.store(b"task", READY, large(2), 0)
        engine.commits.segments.end_segment()
        await engine.upkeep.tidy()
        await collect(world)
        assert await cold_value_of(world, b"task") == large(2)

    assert_verified(run(tmp_path / "store", steps, SEGMENTED).root)


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_result_and_a_part_share_a_value(tmp_path: Path, is_stored: bool) -> None:
    async def steps(world: World) -> None:
        engine, results = world.engine, world.engine.results
        results.open_chord(b"group", HOUR_MS, 2)
        results.store(b"task", READY, large(1), 0, b"group", 0, b"one", HOUR_MS)
        assert results.store(b"other", READY, large(2), 0, b"group", 0, b"one", HOUR_MS), "the part is there"
        [key] = engine.state.results.chords[b"group"].parts.values()
        if is_stored:
            await engine.commits.checkpoint()
            engine.free_memory()
        assert await results.part_value(key, await results.part(key)) == large(1)
        results.forget([b"task", b"other"])
        if is_stored:
            await collect(world)
            assert await results.part_value(key, await results.part(key)) == large(1)
        results.close_chord(b"group")
        await collect(world)
        assert segments(world) == []

    assert_verified(run(tmp_path / "store", steps, SEGMENTED).root)


@pytest.mark.parametrize("settings", [SEGMENTED, COLD_SEGMENTED])
def test_values_in_chunks_of_an_earlier_version(tmp_path: Path, settings: EngineSettings) -> None:
    async def earlier(world: World) -> None:
        for name in (b"task", b"kept"):
            world.engine.results.store(name, READY, LARGE, 0)
        await world.engine.commits.checkpoint()
        assert await chunks_of(world) == (2, 6)

    async def later(world: World) -> None:
        assert [await value_of(world, name) for name in (b"task", b"kept")] == [LARGE, LARGE]
        world.engine.results.store(b"task", READY, large(1), 0)
        await world.engine.commits.checkpoint()
        assert await chunks_of(world) == (2, 3)
        assert [await cold_value_of(world, name) for name in (b"task", b"kept")] == [large(1), LARGE]

    root = run(tmp_path / "store", earlier, CHUNKED).root
    assert_verified(run(root, later, settings).root)

    async def without_segments(world: World) -> None:
        assert await value_of(world, b"task") == large(1)
        world.engine.results.store(b"task", READY, LARGE[::-1], 0)
        await collect(world)
        assert segments(world) == []
        assert await cold_value_of(world, b"task") == LARGE[::-1]

    assert_verified(run(root, without_segments, CHUNKED).root)


@pytest.mark.parametrize("damage", ["flipped", "cut off", "missing"])
def test_a_damaged_segment_fails_only_its_results(tmp_path: Path, damage: str) -> None:
    async def store(world: World) -> None:
        for number in range(6):
            world.engine.results.store(b"%d" % number, READY, large(number), 0)

    root = run(tmp_path / "store", store, SEGMENTED).root
    (file,) = (root / "default.staged").glob("segments/*-0.segment")
    if damage == "missing":
        file.unlink()
    elif damage == "cut off":
        os.truncate(file, 2 * SIZE + 1)
    else:
        file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1]))
    lost = range(3) if damage == "missing" else [2]
    found = verify(root).findings
    assert [finding.code for finding in found] == len(lost) * [
        "batch-damaged" if damage == "flipped" else "batch-missing"
    ]
    assert all(f"result '{number}'" in finding.text for number, finding in zip(lost, found, strict=True))

    async def read(world: World) -> None:
        for number in range(6):
            if number in lost:
                with pytest.raises(CorruptRecord, match=f"the result '{number}' can't be read: .*segments/"):
                    await value_of(world, b"%d" % number)
            else:
                assert await value_of(world, b"%d" % number) == large(number)
        world.engine.results.store(b"2", READY, b"new", 0)
        assert await value_of(world, b"2") == b"new"

    run(root, read, SEGMENTED)


def test_a_value_that_is_replaced_while_its_segment_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(world: World) -> None:
        engine = world.engine
        engine.results.store(b"task", READY, large(1), 0)
        await collect(world)
        engine.free_memory()
        read = engine.payloads.read_value

        async def slowly(place: EnvelopePlace) -> bytes:
            monkeypatch.setattr(engine.payloads, "read_value", read)
            engine.results.store(b"task", READY, large(2), 0)
            await collect(world)
            assert segments(world) == ["1.segment"]
            return await read(place)

        monkeypatch.setattr(engine.payloads, "read_value", slowly)
        assert engine.commits.segments is not None
        engine.commits.segments.end_segment()
        assert await value_of(world, b"task") == large(2)

    assert_verified(run(tmp_path / "store", steps, SEGMENTED).root)


def test_a_value_in_a_bucket_is_read_when_its_object_exists(s3: S3, tmp_path: Path) -> None:
    async def main() -> None:
        settings = sized(bucket_large_body_bytes=SIZE)
        url = f"s3://{BUCKET}/results"
        world = World(tmp_path, settings)
        engine = world.engine = await Engine.open(url, "default", SystemClock(), settings)
        engine.definitions.declare_queue("q", QueueSettings())
        engine.results.store(b"task", READY, large(1), 0)
        assert await value_of(world, b"task") == large(1), "in memory"
        assert await cold_value_of(world, b"task") == large(1), "after its commit"
        engine.results.store(b"task", READY, large(2), 0)
        await engine.commits.commit()
        await engine.store.close()
        engine = world.engine = await Engine.open(url, "default", SystemClock(), settings)
        assert await value_of(world, b"task") == large(2)
        assert not engine.state.segments.is_dirty
        await engine.close()

    asyncio.run(main())
