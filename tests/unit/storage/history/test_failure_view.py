"""The view of failures over buckets of a few messages: each failure once, in order, whatever is read of it before."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.storage.effects.tasks import HandleFailuresEffect
from kombu_opendata.storage.history import failure
from kombu_opendata.storage.history.failure import Failure
from kombu_opendata.storage.history.service import ListPage
from kombu_opendata.storage.operations.archive_and_delete import Selection
from kombu_opendata.storage.records.failures import DISMISSED, RETRIED
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.engine import SETTINGS, World, run
from tests.support.history import TINY, index_all
from tests.support.plain_store import PlainStore
from tests.support.verified import assert_verified

QUEUES = ("q", "r")
REPORTS = [TaskReport.cut(TaskState.RAISED, exception=f"Error{number}", error="no") for number in range(3)]
REPORTS.append(TaskReport.cut(TaskState.TIMED_OUT))


async def fail(world: World, name: str, *, acknowledged: bool, report: TaskReport = REPORTS[0]) -> int:
    """Let a task fail, and say what became of its message."""
    id = world.publish(name, headers={"task": "app.pay", "id": f"t{world.number}"})
    entry, queue = await world.claim(name), world.queue(name)
    world.engine.task_runs.note(queue, entry, report)
    if acknowledged:
        world.engine.operations.ack(queue, (entry,))
    else:
        world.engine.operations.fail(queue, (entry,), "worker")
    return id


async def some(world: World, count: int = 60, seed: int = 1) -> list[int]:
    """Failures of both kinds in both queues, several of them in the same millisecond."""
    chance = random.Random(seed)
    world.engine.definitions.declare_queue("r", QueueSettings())
    ids = []
    for number in range(count):
        kind = chance.random() < 0.5
        ids.append(await fail(world, chance.choice(QUEUES), acknowledged=kind, report=REPORTS[number % len(REPORTS)]))
        world.clock.advance(chance.choice((0, 0, 1, 7)))
        if number % 17 == 0:
            await world.engine.commits.checkpoint()
    return ids


async def page(
    world: World, limit: int, after: Any = None, *, descending: bool = False, **asked: Any
) -> ListPage[Failure]:
    filters = failure.check_filters(**asked)
    position = failure.read_cursor(after, filters, descending=descending) if after else None
    return await world.engine.failures.page(filters, lambda _queue: True, limit, position, descending=descending)


async def everything(world: World, limit: int = 1000, *, descending: bool = False, **asked: Any) -> list[Failure]:
    found, after = [], None
    while True:
        part = await page(world, limit, after, descending=descending, **asked)
        found += part.items
        after = part.next
        if after is None:
            return found


def ids_of(found: list[Failure]) -> list[int]:
    return [one.open.message_id for one in found]


@pytest.mark.parametrize("limit", [1, 2, 7, 1000])
def test_every_page_size_and_order_has_each_once(tmp_path: Path, limit: int) -> None:
    async def steps(world: World) -> None:
        ids = await some(world)
        assert ids_of(await everything(world, limit)) == ids
        assert ids_of(await everything(world, limit, descending=True)) == ids[::-1]
        await index_all(world.engine)
        world.engine.failures.free_memory()
        assert ids_of(await everything(world, limit)) == ids

    run(tmp_path / "s", steps, TINY)


def test_filters_find_what_a_look_at_each_finds(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = await some(world)
        whole = await everything(world)
        times = [one.open.at_ms for one in whole]
        asked: list[tuple[dict[str, Any], Any]] = [
            ({"exceptions": ["Error1"]}, lambda one: one.facts.exception == "Error1"),
            ({"exceptions": ["", "Error1"], "tasks": ["app.pay"]}, lambda one: one.facts.exception in ("", "Error1")),
            ({"exceptions": [""]}, lambda one: one.facts.exception == ""),
            ({"tasks": [""], "workers": [""], "reasons": [""]}, lambda _one: False),
            ({"kinds": ["failed"], "queues": ["r"]}, lambda one: one.open.kind == "failed" and one.open.queue == "r"),
            ({"kinds": ["acknowledged"]}, lambda one: one.open.kind == "acknowledged"),
            ({"gte": times[20], "lte": times[40]}, lambda one: times[20] <= one.open.at_ms <= times[40]),
            ({"ids": ids[5:9]}, lambda one: one.open.message_id in ids[5:9]),
            ({"task_ids": ["t3", "t30"]}, lambda one: one.facts.task_id in ("t3", "t30")),
        ]
        for limit in (2, 1000):
            for filters, matches in asked:
                for descending in (False, True):
                    found = await everything(world, limit, descending=descending, **filters)
                    assert sorted(ids_of(found)) == [one.open.message_id for one in whole if matches(one)], filters

    run(tmp_path / "s", steps, TINY)


def test_what_left_the_lists_is_gone(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = await some(world)
        gone = frozenset(ids[10:40])
        for name in QUEUES:
            selection = Selection(gone)
            await world.engine.settled_moves.delete(world.queue(name), "failed", selection, lambda _done: True)
        numbers = [one.open.place for one in await everything(world, kinds=["acknowledged"])]
        world.engine.commits.apply(HandleFailuresEffect(DISMISSED, world.clock.now_ms(), [numbers[3], 0]))
        left = await everything(world)
        assert not {one.open.message_id for one in left if one.open.kind == "failed"} & gone
        assert numbers[3] not in [one.open.place for one in left if one.open.kind == "acknowledged"]
        (handled,) = await everything(world, handled=True)
        assert handled.open.place == numbers[3]

    run(tmp_path / "s", steps, TINY)


def test_marks_survive_a_crash_and_leave_with_the_history(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        await fail(world, "q", acknowledged=True)
        ((one, _facts, _text),) = await everything(world)
        world.engine.commits.apply(HandleFailuresEffect(RETRIED, world.clock.now_ms(), [one.place, 7]))
        await world.engine.commits.commit()
        await world.crash()
        assert not await everything(world)
        assert world.engine.state.handled.find(one.place) == (one.place, RETRIED, world.clock.now_ms(), 7)
        await world.engine.commits.checkpoint()
        await world.crash()
        assert not await everything(world)
        for _ in range(300):  # the marks are by blocks of 256 attempts
            await fail(world, "q", acknowledged=True)
        await index_all(world.engine)
        world.clock.advance(int(1000 * SETTINGS.history_retention_seconds) + 1000)
        for _ in range(3):
            await world.engine.history.sweep(world.clock.now_ms())
            await world.engine.commits.checkpoint()
        assert one.place not in world.engine.state.handled

    world = run(tmp_path / "s", steps, TINY)
    assert not PlainStore(world.root).of[RecordKind.HANDLED_FAILURES]
    assert_verified(world.root)


def test_groups_count_each_once(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        await some(world)
        whole = await everything(world)
        filters = failure.check_filters()
        groups, complete = await world.engine.failures.groups(filters, lambda _queue: True, ("queue", "exception"))
        assert complete
        assert [group.count for group in groups] == sorted((g.count for g in groups), reverse=True)
        for group in groups:
            members = [one for one in whole if (one.open.queue, one.facts.exception) == group.values]
            assert group.count == len(members)
            assert group.acknowledged == sum(one.open.kind == "acknowledged" for one in members)
            assert (group.first_at_ms, group.last_at_ms) == (members[0].open.at_ms, members[-1].open.at_ms)

    run(tmp_path / "s", steps, TINY)


def test_without_history_failed_messages_are_shown(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.definitions.declare_queue("r", QueueSettings())
        id = await fail(world, "q", acknowledged=False)
        await fail(world, "q", acknowledged=True)
        (one,) = await everything(world)
        assert (one.open.message_id, one.facts.task, one.facts.reason) == (id, "app.pay", "")
        assert ids_of(await everything(world, ids=[id])) == [id]

    run(tmp_path / "s", steps, replace(TINY, history=False))


@pytest.mark.parametrize("closed", [True, False])
def test_attempts_that_end_while_a_reader_is_open_are_read(tmp_path: Path, closed: bool) -> None:
    async def steps(world: World) -> None:
        if closed:
            await fail(world, "q", acknowledged=True)
        async with world.engine.history.reading(indexed=False) as reader:
            before = world.engine.history.log.end[0]
            world.clock.advance(5)
            await fail(world, "q", acknowledged=True)
            assert await reader.first_attempt_since(world.clock.now_ms()) == before
            assert list(await reader.attempts([before])) == [before]

    run(tmp_path / "store", steps)
