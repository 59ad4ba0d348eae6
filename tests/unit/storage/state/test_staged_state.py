from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from kombu_opendata.protocol.task_reports import TaskState
from kombu_opendata.storage.effects.staged_jobs import DeleteJobEffect
from kombu_opendata.storage.records import keys
from kombu_opendata.storage.records.staged_jobs import REMOVED as REMOVED_TASK
from kombu_opendata.storage.state.staged_state import (
    DONE,
    NO_OPTIONS,
    RATE_SECONDS,
    REMOVED,
    StagedBatch,
    StagedState,
)


class Rows:
    """The records of a store, as far as a state reads them."""

    def __init__(self, records: dict[bytes, bytes]) -> None:
        self._records = records

    async def scan_batches(self, start: bytes, end: bytes) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        yield sorted((key, value) for key, value in self._records.items() if start <= key < end)


class Batch:
    """What a checkpoint writes."""

    def __init__(self) -> None:
        self.records: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes) -> None:
        self.records[key] = value

    def put_or_delete(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.delete(key)
        else:
            self.put(key, value)

    def delete(self, key: bytes) -> None:
        self.records.pop(key, None)


def loaded(records: dict[bytes, bytes]) -> StagedState:
    state, rows = StagedState(), Rows(records)
    asyncio.run(state.load(rows))  # type: ignore[arg-type]
    return state


def flush(state: StagedState, store: dict[bytes, bytes]) -> None:
    batch: Any = Batch()
    batch.records = store
    state.snapshot(batch)
    state.end_flush()


def with_job(rows: int) -> StagedState:
    state = StagedState()
    state.commit("job", 1000, 10, [StagedBatch("", rows, 1, 1)], NO_OPTIONS)
    state.routed("job", rows, 0, False, 1000)
    state.jobs["job"].add_routed("q", rows)
    return state


def test_running_tasks_of_a_job_of_version_1_have_not_ended() -> None:
    """Their messages are done."""
    head = struct.pack("<BQQIQqQQQqH", 1, 10, 4, 1, 99, 1000, 4, 0, 0, 0, 1)
    value = head + b"\x01\0q" + struct.pack("<QQQQ", 4, 3, 0, 0)
    state = loaded({keys.staged_job_key("job"): value})
    state.upgrade([11, 12, 99])
    job = state.jobs["job"]
    assert (job.tasks, job.ended[0], state.is_dirty) == (4, 1, True)
    state.finished(11, TaskState.SUCCEEDED, 2000)
    state.finished(12, TaskState.RAISED, 2000)
    assert not job.settled_at_ms
    state.ended("q", 13, DONE, TaskState.SUCCEEDED, 3000)
    assert (job.settled_at_ms, sum(job.ended)) == (3000, 4)
    store: dict[bytes, bytes] = {}
    flush(state, store)
    again = loaded(store).find("job")
    assert again is not None
    assert (again.ended, again.tasks) == (job.ended, 4)


def test_ends_are_in_blocks_that_survive_a_restart() -> None:
    rows = 4096 + 5
    state, store = with_job(rows), dict[bytes, bytes]()
    for id in range(10, 10 + rows, 2):
        state.ended("q", id, DONE, TaskState.SUCCEEDED, 2000)
    flush(state, store)
    for id in range(11, 10 + rows, 2):
        state.ended("q", id, DONE, TaskState.RAISED, 2000)
    flush(state, store)
    assert {key for key in store if key.startswith(keys.RecordKind.STAGED_ENDS.prefix)} == {
        keys.staged_ends_key(10), keys.staged_ends_key(10 + 4096),
    }  # fmt: skip
    state = loaded(store)
    assert state.active == []
    for id in (10, 11, 10 + rows - 1):
        state.back("q", id, DONE)
    job = state.jobs["job"]
    assert (job.tasks, sum(job.ended), job.settled_at_ms) == (rows, rows - 3, 0)
    assert (job.ended[TaskState.RAISED], state.active) == (rows // 2 - 1, [job])
    flush(state, store)
    assert not any(key.startswith(keys.RecordKind.STAGED_EXPIRY.prefix) for key in store)


def test_a_follower_that_runs_is_counted_after_its_message_is_deleted() -> None:
    """Its queue may be deleted, or it may run for longer than the retention."""
    state, store = with_job(1), dict[bytes, bytes]()
    state.ended("q", 10, DONE, TaskState.RETRIED, 2000)
    state.follow(20, 10, ["q"])
    state.left("q", 20, DONE)
    batch: Any = Batch()
    batch.records = store
    state.snapshot(batch)
    state.collected([10, 20], batch)
    state.end_flush()
    state = loaded(store)
    state.finished(20, TaskState.SUCCEEDED, 3000)
    job = state.jobs["job"]
    assert (job.settled_at_ms, job.ended[TaskState.SUCCEEDED]) == (3000, 1)
    flush(state, store)
    assert keys.staged_follower_key(20) not in store


def test_an_end_during_a_checkpoint_that_deletes_its_message_is_repeated_after_a_crash() -> None:
    state, store = with_job(1), dict[bytes, bytes]()
    state.ended("q", 10, DONE, TaskState.RETRIED, 2000)
    state.follow(20, 10, ["q"])
    state.left("q", 20, DONE)
    batch: Any = Batch()
    batch.records = store
    state.snapshot(batch)
    state.finished(20, TaskState.RAISED, 3000)
    state.collected([10, 20], batch)
    state.end_flush()
    again = loaded(store)
    again.finished(20, TaskState.RAISED, 3000)
    for each in (state, again):
        job = each.jobs["job"]
        assert (job.settled_at_ms, job.ended[TaskState.RAISED]) == (3000, 1)


@pytest.mark.parametrize("how", ["cancelled", "unroutable"])
def test_rows_that_are_dropped_during_a_checkpoint_are_dropped_once_in_spite_of_a_crash(how: str) -> None:
    """The object must remain while a message needs it."""
    state, store = StagedState(), dict[bytes, bytes]()
    state.commit("job", 1000, 10, [StagedBatch("job/file", 4, 1, 1)], NO_OPTIONS)
    state.routed("job", 2, 0, False, 1000)
    state.jobs["job"].add_routed("q", 2)

    def drop(each: StagedState) -> None:
        if how == "cancelled":
            each.cancel("job", 2000)
        else:
            each.routed("job", 2, 2, False, 2000)

    batch: Any = Batch()
    batch.records = store
    state.snapshot(batch)
    drop(state)
    state.collected([10], batch)
    state.end_flush()
    again = loaded(store)
    drop(again)
    for each in (state, again):
        assert each.objects[10].live == 1
        records = dict(store)
        flush(each, records)
        assert loaded(records).objects[10].live == 1
        batch.records = records
        each.collected([11], batch)
        each.end_flush()
        assert (each.unneeded, each.objects, loaded(records).objects) == (["job/file"], {}, {})


def test_a_forgotten_job_leaves_no_records() -> None:
    state, store = with_job(2), dict[bytes, bytes]()
    state.ended("q", 10, DONE, TaskState.RETRIED, 2000)
    state.follow(20, 10, ["q"])
    state.ended("q", 11, DONE, TaskState.SUCCEEDED, 2000)
    flush(state, store)
    state.ended("q", 20, DONE, TaskState.RAISED, 2000)
    flush(state, store)
    job = state.find("job")
    assert job is not None
    assert (job.tasks, job.ended[TaskState.RAISED], job.ended[TaskState.RETRIED]) == (2, 1, 0)
    state.forget("job", job.settled_at_ms - 1)
    assert state.find("job") is not None, "the expiry is of an earlier end"
    state.forget("job", job.settled_at_ms)
    flush(state, store)
    assert (store, state.ids(), state.job_id_of(10)) == ({}, set(), None)


def test_a_deletion_is_repeated_after_a_crash_though_the_time_of_the_end_is_another() -> None:
    """Tasks that are in flight when their queue is deleted end at the newest time that the process knows."""
    state, store = with_job(1), dict[bytes, bytes]()
    state.commit("later", 5000, 20, [], NO_OPTIONS)
    flush(state, store)
    again = loaded(store)
    for each in (state, again):
        each.ended("q", 10, REMOVED, REMOVED_TASK)
    settled_at_ms = state.jobs["job"].settled_at_ms
    assert settled_at_ms > again.jobs["job"].settled_at_ms > 0
    for each in (state, again):
        stores: Any = SimpleNamespace(staged=each)
        DeleteJobEffect("job", settled_at_ms).apply(stores)
    assert (state.find("job"), again.find("job")) == (None, None)
    flush(again, store)
    assert [*store] == [keys.staged_job_key("later"), keys.staged_expiry_key(5000, "later")]


def test_the_rate_is_that_of_the_last_minute() -> None:
    state = with_job(100)
    for number in range(50):
        state.ended("q", 10 + number, DONE, REMOVED_TASK, 1_000_000 + 100 * number)
    assert state.rate("job", 1_005_000) == 10
    assert state.rate("job", 1_005_000 + 1000 * RATE_SECONDS) == 0
    assert state.rate("other", 1_005_000) == 0


@pytest.mark.parametrize("with_followers", [False, True])
def test_messages_that_are_acknowledged_together_count_as_individually(with_followers: bool) -> None:
    """The messages of three jobs, one of which has ended, and perhaps one that follows another."""
    random = Random(7)

    def prepared() -> StagedState:
        state = StagedState()
        for name, first in (("a", 10), ("b", 20), ("c", 30)):
            state.commit(name, 1000, first, [StagedBatch("", 10, 1, 1)], NO_OPTIONS)
            state.routed(name, 10, 0, False, 1000)
            state.jobs[name].add_routed("q", 10)
        state.ended("q", 12, REMOVED, REMOVED_TASK, 1001)
        if with_followers:
            state.follow(40, 14, ["q"])
        return state

    for _ in range(50):
        alone, together = prepared(), prepared()
        ids = [id for id in range(10, 41) if id != 12]
        random.shuffle(ids)
        at, stores = 2000, (dict[bytes, bytes](), dict[bytes, bytes]())
        while ids:
            some, ids = ids[: (size := random.randrange(1, 12))], ids[size:]
            runs = [part for _id in some for part in (random.choice(list(TaskState)), 5, 1)]
            runs = random.choice(([], runs))
            at += random.choice((0, 900))
            for place, id in enumerate(some):
                alone.ended("q", id, DONE, runs[3 * place] if runs else 0, at)
            together.acknowledged("q", some, runs, at)
            assert [described(alone, name, at) for name in "abc"] == [described(together, name, at) for name in "abc"]
            if random.random() < 0.3:
                for state, store in zip((alone, together), stores, strict=True):
                    flush(state, store)
                assert stores[0] == stores[1]


def described(state: StagedState, name: str, now_ms: int) -> Any:
    job = state.existing(name)
    return job.queues, job.tasks, job.ended, job.settled_at_ms, state.rate(name, now_ms)
