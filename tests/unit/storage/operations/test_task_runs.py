"""The running tasks of a session, and how few effects their ends are."""

from __future__ import annotations

from pathlib import Path

import pytest

from kombu_opendata.errors import StoreFull
from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.storage.effects import Effect
from kombu_opendata.storage.effects.deliveries import AckEffect
from kombu_opendata.storage.effects.tasks import FinishEffect, StartEffect
from kombu_opendata.storage.operations import task_runs
from kombu_opendata.storage.records.failures import TaskFailure
from kombu_opendata.storage.records.history_log import Attempt
from kombu_opendata.storage.state.queue_buckets import QueueEntry
from tests.support.engine import World, run, sized

pytestmark = pytest.mark.contract(9, 17)

SUCCEEDED = TaskReport(TaskState.SUCCEEDED, 5, 6)
RAISED = TaskReport(TaskState.RAISED, 5, 6, "task", "app.Bad", "no", "Traceback: …")


async def claimed(world: World, count: int) -> list[QueueEntry]:
    """Messages of ``q`` that a session holds, all committed."""
    for _ in range(count):
        world.publish("q")
    await world.engine.commits.commit()
    entries = [await world.claim("q") for _ in range(count)]
    await world.engine.commits.commit()
    return entries


def ended(world: World) -> list[Attempt]:
    """The attempts that ended."""
    log = world.engine.history.log
    return [attempt for chunk in (*log.chunks, log.open) for attempt in chunk.attempts]


def failures(world: World) -> list[TaskFailure]:
    """Texts that are not in the store yet."""
    log = world.engine.history.log
    return [failure for chunk in (*log.chunks, log.open) for failure in chunk.failures.values()]


def kinds(effects: list[Effect]) -> list[type[Effect]]:
    return [type(effect) for effect in effects]


def test_the_ends_of_many_tasks_are_few_effects(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        engine, queue = world.engine, world.queue("q")
        effects = engine.commits.effects
        for entry in await claimed(world, 5):
            engine.task_runs.ack(queue, entry, SUCCEEDED)
        assert kinds(effects) == [AckEffect]
        entries = await claimed(world, 5)
        for entry in entries:
            engine.task_runs.start(queue, (entry,))
        assert kinds(effects) == [StartEffect]
        await engine.commits.commit()
        for entry in entries:
            engine.task_runs.finish(("q", entry.id, entry.claimed_at), SUCCEEDED)
        assert kinds(effects) == [FinishEffect]
        await engine.commits.commit()
        await world.crash()
        assert len(ended(world)) == 10
        assert {attempt.state for attempt in ended(world)} == {TaskState.SUCCEEDED}

    run(tmp_path / "store", steps)


@pytest.mark.parametrize("running_ms", [-(1 << 62), 1 << 62])
def test_a_reported_task_began_between_its_lease_and_now(tmp_path: Path, running_ms: int) -> None:
    """A time outside of the calendar would end each look at the workers with an error."""

    async def steps(world: World) -> None:
        (entry,) = await claimed(world, 1)
        lease = ("q", entry.id, entry.claimed_at)
        world.engine.task_runs.note_late(b"session", {lease: running_ms})
        since = world.engine.state.running.late_since_ms(b"session", lease)
        assert entry.claimed_at <= since <= world.engine.clock.now_ms()

    run(tmp_path / "store", steps)


def test_a_client_that_reports_nothing_fills_no_memory(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        entries = await claimed(world, 5)
        for entry in entries:
            world.engine.task_runs.start(world.queue("q"), (entry,))
        assert [id for _queue, id, _token in world.engine.state.running.by_lease] == [one.id for one in entries[2:]]
        attempts = ended(world)
        assert [(one.message_id, one.state) for one in attempts] == [(one.id, TaskState.LOST) for one in entries[:2]]

    run(tmp_path / "store", steps, sized(running_tasks=3))


def test_on_a_full_disk_a_failure_goes_without_its_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(world: World) -> None:
        engine = world.engine

        def no_room(size: int) -> None:
            raise StoreFull("full")

        (entry,) = await claimed(world, 1)
        with monkeypatch.context() as patch:
            patch.setattr(engine.commits, "check_room", no_room)
            engine.task_runs.note(world.queue("q"), entry, RAISED)
            engine.operations.ack(world.queue("q"), (entry,))
            await engine.commits.commit()
        assert failures(world) == [], "nor fills the memory with them"
        await world.crash()
        (attempt,) = ended(world)
        assert (attempt.state, attempt.exception) == (TaskState.RAISED, "app.Bad")

    run(tmp_path / "store", steps)


def test_a_finished_task_does_not_run_after_a_crash(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        engine = world.engine
        entries = finished, running = await claimed(world, 2)
        engine.task_runs.start(world.queue("q"), entries)
        await engine.commits.checkpoint()
        engine.task_runs.finish(("q", finished.id, finished.claimed_at), SUCCEEDED)
        await engine.commits.checkpoint()
        await world.crash()
        assert list(world.engine.state.running.by_lease) == [("q", running.id, running.claimed_at)]

    run(tmp_path / "store", steps)


def test_of_very_many_failures_at_once_some_go_without_tracebacks(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        engine, queue = world.engine, world.queue("q")
        noted, started = await claimed(world, 2), await claimed(world, 2)
        for entry in noted:
            engine.task_runs.note(queue, entry, RAISED)
            engine.operations.ack(queue, (entry,))
        engine.task_runs.start(queue, started)
        for entry in started:
            engine.task_runs.finish(("q", entry.id, entry.claimed_at), RAISED)
        tracebacks = [RAISED.traceback] * 2 + [task_runs.LEFT_OUT] * 2
        assert [(one.error, one.traceback) for one in failures(world)] == [("no", text) for text in tracebacks]
        await engine.commits.commit()
        await world.crash()
        async with world.engine.history.reading(indexed=False) as reader:
            stored = await reader.failures(range(4))
        assert [stored[number].traceback for number in range(4)] == tracebacks
        assert [one.exception for one in ended(world)] == ["app.Bad"] * 4
        await world.engine.commits.checkpoint()
        (entry,) = await claimed(world, 1)
        world.engine.task_runs.note(world.queue("q"), entry, RAISED)
        world.engine.operations.ack(world.queue("q"), (entry,))
        assert [one.traceback for one in failures(world)] == [RAISED.traceback]

    run(tmp_path / "store", steps, sized(report_bytes=2 * len(RAISED.error + RAISED.traceback)))
