"""The history log: each row once, under the number that it was shown with, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.storage.effects import codec
from kombu_opendata.storage.effects.deliveries import ClaimEffect, RenewEffect
from kombu_opendata.storage.effects.publishes import add_message
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.engine_sizes import EngineSizes
from kombu_opendata.storage.records import history_log, keys
from kombu_opendata.storage.records.failures import TaskFailure
from kombu_opendata.storage.records.history_log import ACKED, DETAILED, Attempt, Left
from kombu_opendata.storage.records.history_trail import BLOCK_BITS
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.records.session_records import RunningTask
from kombu_opendata.storage.state.history_log import HistoryLog
from kombu_opendata.storage.state.queue_buckets import QueueEntry
from kombu_opendata.storage.state.store_state import QueueSettings, StoreState
from tests.support.engine import OTHER, SESSION, World, run, sized
from tests.support.history import attempts


async def ack(world: World, count: int = 1) -> None:
    for _ in range(count):
        entry = await world.claim("q")
        world.engine.operations.ack(world.queue("q"), (entry,))


async def chunks(engine: Engine) -> list[history_log.ChunkRows]:
    rows = await engine.store.scan(*keys.kind_range(RecordKind.HISTORY_LOG))
    return [history_log.decode(key, value) for key, value in rows]


def test_a_checkpoint_writes_one_record_and_none_when_nothing_happened(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        engine = world.engine
        for _ in range(50):
            world.publish("q")
        await ack(world, 30)
        await engine.commits.checkpoint()
        (rows,) = await chunks(engine)
        assert len(rows.published) == len(rows.routed["q"]) == 50
        assert len(rows.attempts) == 30
        await engine.commits.checkpoint()
        world.engine.commits.apply(RenewEffect(SESSION, world.clock.now_ms() + 1000))
        await engine.commits.checkpoint()
        assert len(await chunks(engine)) == 1

    run(tmp_path / "s", steps)


def test_what_a_crash_interrupts_comes_again_with_the_same_numbers(tmp_path: Path) -> None:
    """Also where the chunks were cut elsewhere before it."""

    async def steps(world: World) -> None:
        world.engine.operations.name_session(SESSION, "worker")
        for _ in range(9):
            world.publish("q")
        await ack(world, 2)
        await world.engine.commits.checkpoint()
        await ack(world, 2)
        await world.engine.commits.commit()
        shown = await attempts(world.engine)  # closes a chunk
        await ack(world, 2)
        await world.engine.commits.commit()
        shown = await attempts(world.engine)
        assert [number for number, _id, _outcome in shown] == list(range(6))
        await world.crash()
        assert await attempts(world.engine) == shown
        await world.crash()
        assert await attempts(world.engine) == shown
        row = await world.engine.history.attempt(5)
        assert row is not None
        assert row.consumer == "worker", "whose name was stored before the journal begins"

    run(tmp_path / "s", steps)


def test_long_chunks_are_cut(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for _ in range(25):
            world.publish("q")
        await ack(world, 25)
        await world.engine.commits.checkpoint()
        stored = await chunks(world.engine)
        assert [len(rows.published) for rows in stored if rows.published] == [10, 10, 5]
        assert [len(rows.attempts) for rows in stored if rows.attempts] == [10, 10, 5]
        assert [number for number, _id, _outcome in await attempts(world.engine)] == list(range(25))

    run(tmp_path / "s", steps, sized(log_chunk_rows=10))


def test_every_outcome(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        engine, queue = world.engine, world.queue("q")
        for _ in range(5):
            world.publish("q")
        wanted: list[tuple[str, bool]] = []
        back = engine.operations.put_back
        acts: list[tuple[Callable[[QueueEntry], object], str, bool]] = [
            (lambda entry: engine.operations.ack(queue, (entry,)), "acked", False),
            (lambda entry: engine.operations.fail(queue, (entry,), "w"), "rejected", False),
            (lambda entry: back(queue, (entry,), "w", costs_attempt=False), "released", True),
            (lambda entry: back(queue, (entry,), "w", costs_attempt=True), "rejected", True),
            (
                lambda entry: engine.operations.put_back(queue, (entry,), "w", costs_attempt=True, lease_expired=True),
                "failed",
                False,
            ),
            (
                lambda entry: engine.operations.put_back(queue, (entry,), "w", costs_attempt=True, lease_expired=True),
                "expired",
                True,
            ),
        ]
        for act, outcome, requeued in acts:
            act(await world.claim("q", OTHER))
            wanted.append((outcome, requeued))
        await engine.commits.commit()
        for again in (False, True):
            if again:
                await world.crash()
            rows = [await world.engine.history.attempt(number) for number in range(6)]
            assert [(row.outcome, row.requeued) for row in rows if row is not None] == wanted

    run(tmp_path / "s", steps)


def test_why_a_message_left(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        engine = world.engine
        engine.definitions.declare_queue("r", QueueSettings())
        first = world.publish("q", "r", ttl_ms=5)
        second = world.publish("q", "r")
        world.clock.advance(10)
        await engine.collector.expire(world.queue("q"), world.clock.now_ms())
        engine.operations.remove(world.queue("q"), list(world.queue("q").messages.available.values()), "maxlen")
        await engine.definitions.purge(world.queue("r"))
        await engine.commits.commit()
        await world.crash()
        for id, status in ((first, "expired"), (second, "dropped")):
            events = await _statuses(world.engine, id)
            assert events == {"q": status, "r": "removed"}

    run(tmp_path / "s", steps)


async def _statuses(engine: Engine, id: int) -> dict[str, str]:
    async with engine.history.reading(indexed=True) as reader:
        found = await reader.statuses([id])
    return {status.queue: status.status for status in found[id]}


@pytest.mark.parametrize(
    ("effect", "outcome"),
    [
        ((5, "q", 9, [1, 0], True, "w"), history_log.REQUEUED),
        ((5, "q", 9, [1, 0], False, "w"), history_log.RELEASED),
        ((5, "q", 9, [1, 0], True, "w", 50), history_log.REQUEUED),
        ((5, "q", 9, [1, 0], True, "w", 0, True), history_log.EXPIRED),
        ((6, "q", 9, [1, 0], "w", ""), history_log.REJECTED),
        ((6, "q", 9, [1, 0], "w", "", True), history_log.FAILED),
        ((4, "q", 9, [1, 0]), history_log.ACKED),
    ],
)
def test_journals_of_before_and_of_now_are_applied(effect: tuple[Any, ...], outcome: int) -> None:
    state = StoreState()
    state.history = HistoryLog()
    state.declare_queue("q", QueueSettings())
    add_message(state, 1, [("q", 0)], 255, 0, 0, 0, large=False)
    ClaimEffect("q", SESSION, 5, 100, [1, 0]).apply(state)
    codec.decode(msgspec.msgpack.encode([effect]))[0].apply(state)
    (row,) = state.history.open.attempts
    assert row.outcome == outcome
    assert (row.claimed_at_ms, row.ended_at_ms) == (5, 9)


@pytest.mark.parametrize("effect", [(7, "q", [1, 0], ""), (7, "q", [1, 0], "", 7, "expired")])
def test_removals_of_before_and_of_now_are_applied(effect: tuple[Any, ...]) -> None:
    state = StoreState()
    state.history = HistoryLog()
    state.declare_queue("q", QueueSettings())
    add_message(state, 1, [("q", 0)], 255, 0, 0, 0, large=False)
    codec.decode(msgspec.msgpack.encode([effect]))[0].apply(state)
    (row,) = state.history.open.left
    assert row == Left(1, "q", *((7, 1) if len(effect) > 4 else (0, 0)))


def test_a_redriven_message_is_an_attempt_by_hand() -> None:
    history = HistoryLog()
    history.redriven(5, "q", 77)
    (row,) = history.open.attempts
    assert row == Attempt(5, "q", "", 77, 77, 0, history_log.REDRIVEN | history_log.MANUAL)


def test_without_history_nothing_is_written(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for _ in range(3):
            world.publish("q")
        await ack(world, 3)
        await world.engine.commits.checkpoint()
        assert await chunks(world.engine) == []
        assert not world.engine.history.enabled
        await world.engine.history.run()  # ends at once

    settings = EngineSettings(sync=False, journal_segment_bytes=64 << 10, history=False)
    run(tmp_path / "s", steps, settings)


def test_history_may_be_switched_off_and_on(tmp_path: Path) -> None:
    """What happens in between is not known, and what was known stays."""

    async def first(world: World) -> None:
        for _ in range(6):
            world.publish("q")
        await ack(world, 2)

    async def later(world: World) -> None:
        await ack(world, 2)

    async def last(world: World) -> None:
        await later(world)
        assert [number for number, _id, _outcome in await attempts(world.engine)] == [0, 1, 2, 3]

    off = EngineSettings(sync=False, journal_segment_bytes=64 << 10, history=False)
    run(tmp_path / "s", first)
    run(tmp_path / "s", later, off)
    run(tmp_path / "s", last)


def test_the_outcome_of_a_task_that_ends_with_its_lease() -> None:
    log, entry = HistoryLog(), QueueEntry("q", 0, 7, 255, 0, 0, attempts=2, claimed_at=1000)
    log.ended(entry, "worker", 2000, ACKED, TaskState.SUCCEEDED, 5, 6)
    log.ended(entry, "worker", 2000, history_log.RELEASED)
    assert log.open.attempts == [
        Attempt(7, "q", "worker", 1000, 2000, 2, ACKED, TaskState.SUCCEEDED, 5, 6),
        Attempt(7, "q", "worker", 1000, 2000, 2, history_log.RELEASED, 0, 0, 0),
    ]


def test_the_end_of_a_task_that_was_acknowledged_at_its_start() -> None:
    log = HistoryLog(EngineSizes(log_chunk_rows=4))
    task = RunningTask(7, 1000, 1010, 30, 2)
    log.finished("q", task, "worker", 2000, TaskReport(TaskState.SUCCEEDED, 5, 6, "task"))
    log.finished("q", task, "worker", 900, TaskReport(TaskState.RAISED, 8, 9, "task", "ValueError"))
    log.finished("q", task, "worker", 1000, TaskReport(TaskState.RAISED, 8, 9, "task", "E", "a text", "a traceback"))
    log.finished("q", task, "worker", 1000, TaskReport(TaskState.RAISED, 8, 9, "task", "", "a text"))
    assert not log.chunks
    log.finished("q", task, "worker", 2000, TaskReport(TaskState.LOST))
    (chunk,) = log.chunks
    assert chunk.attempts == [
        Attempt(7, "q", "worker", 1000, 2000, 2, ACKED, TaskState.SUCCEEDED, 5, 6),
        Attempt(7, "q", "worker", 900, 900, 2, ACKED, TaskState.RAISED, 8, 9, "ValueError"),
        Attempt(7, "q", "worker", 1000, 1000, 2, ACKED, TaskState.RAISED | DETAILED, 8, 9, "E"),
        Attempt(7, "q", "worker", 1000, 1000, 2, ACKED, TaskState.RAISED | DETAILED, 8, 9),
    ]
    assert chunk.failures == {
        2: TaskFailure("a text", "a traceback", "task"),
        3: TaskFailure("a text", "", "task"),
    }
    assert log.open.attempts == [Attempt(7, "q", "worker", 1000, 2000, 2, ACKED, TaskState.LOST)]


def test_a_message_that_comes_into_one_more_queue() -> None:
    log = HistoryLog()
    log.published(1, [("a", 0)], {})
    log.routed(1, "b")
    log.routed(2, "b")
    assert (log.open.headers, log.open.routed) == ({1: {}}, {"a": [1], "b": [1, 2]})


class EvictedAttempts:
    """A log that evicts each chunk with its only attempt, and records the blocks of at most four messages."""

    everything = frozenset(id << BLOCK_BITS for id in range(10))

    def __init__(self) -> None:
        self.log = HistoryLog(EngineSizes(log_chunk_rows=1, log_rows=0, log_blocks=4))

    def attempt(self, *ids: int) -> None:
        """End an attempt of the first message of each of these blocks."""
        for id in ids:
            task = RunningTask(id << BLOCK_BITS, 1, 1, 0, 1)
            self.log.finished("q", task, "worker", 2, TaskReport(TaskState.SUCCEEDED))
            self.log.close_chunk()
            self.log.saved(self.log.unsaved)
        assert not self.log.chunks

    def attempted(self) -> set[int]:
        """Return the blocks of the messages that may have attempts."""
        return {id >> BLOCK_BITS for id in self.log.attempted(self.everything)}


def test_attempts_of_evicted_chunks_are_known_by_the_blocks_of_their_messages_until_these_are_too_many() -> None:
    evicted = EvictedAttempts()
    evicted.attempt(1, 2, 3, 4)
    assert evicted.attempted() == {1, 2, 3, 4}
    evicted.log.indexed((2, 0))
    assert evicted.attempted() == {3, 4}
    evicted.attempt(5)  # the blocks of the indexed ones are forgotten
    assert evicted.attempted() == set(range(10)), "three of four blocks are too many: any message may have attempts"
    evicted.log.indexed((5, 0))
    assert evicted.attempted() == set()


def test_blocks_whose_last_attempts_are_indexed_are_not_among_those_that_are_too_many() -> None:
    evicted = EvictedAttempts()
    evicted.attempt(1, 2, 3, 4)
    evicted.log.indexed((3, 0))
    evicted.attempt(5)
    assert evicted.attempted() == {4, 5}


def test_any_message_may_have_attempts_until_the_index_has_passed_the_stored_log() -> None:
    log = HistoryLog()
    log.begin_at((5, 2))
    log.indexed((4, 9))
    assert log.attempted({1, 2}) == {1, 2}
    log.indexed((5, 0))
    assert log.attempted({1, 2}) == set()
