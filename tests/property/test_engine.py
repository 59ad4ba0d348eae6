"""The engine against a model, with a crash or a clean restart at any step.

In memory, where nothing can be copied, a crash is a second engine on the same store.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, precondition, rule

from kombu_opendata.errors import StoreError
from kombu_opendata.offline import StoreStats, open_store, stats
from kombu_opendata.storage.history import query
from kombu_opendata.storage.records.definitions import NO_OVERRIDES
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.records.payload import PayloadURI
from kombu_opendata.storage.slatedb import object_store
from kombu_opendata.storage.state.flow_limits import FlowLimits
from kombu_opendata.storage.state.settled_list import LISTS
from tests.property.engine_by_id import ByIdRules
from tests.property.engine_rules import RAISED, SESSIONS
from tests.property.engine_staged_rules import StagedRules
from tests.property.engine_store import SETTINGS
from tests.support.plain_store import PlainStore
from tests.support.verified import assert_verified

pytestmark = pytest.mark.contract(1, 2, 3, 5, 6, 9)


async def count(folder: Path) -> StoreStats:
    async with await open_store(folder) as store:
        return await stats(store)


class EngineMachine(ByIdRules, StagedRules):
    """On a local folder, with the journal: after each step the engine is as the model, at the end the store is too."""

    @invariant()
    def engine_is_as_the_model(self) -> None:
        self.run(self.loads())
        state, model = self.engine.state, self.model
        assert state.queues.keys() == model.queues.keys()
        bindings = {(queue, exchange, key) for queue, exchange, key, _arguments in state.topology.bindings()}
        assert bindings == model.bindings
        assert {place: letter.reason for place, letter in state.dead_letters.items()} == model.letters()
        assert {
            lease: (session, state.running.by_session[session][lease].number)
            for lease, session in state.running.by_lease.items()
        } == model.running
        assert {lease for tasks in state.running.by_session.values() for lease in tasks} == model.running.keys()
        leased = {(session, *place) for session, held in state.leases.items() for place in held}
        for name, expected in model.queues.items():
            queue = state.queues[name]
            assert queue.options[:4] == (
                expected.max_attempts, expected.done_retention, expected.failed_retention, expected.lease_seconds,
            )  # fmt: skip
            loaded = queue.messages.available.values()
            available = [(e.id, e.priority, e.visible_at, e.deadline, e.attempts) for e in loaded]
            available += self.run(self.cold_rows(queue))
            assert sorted(available) == sorted(
                (m.id, m.priority, m.visible_at, m.deadline, m.attempts) for m in expected.available.values()
            )
            assert len(queue.messages) == len(expected.available)
            sizes = [len(model.envelopes[id]) for id in expected.available]
            assert queue.messages.counts_bytes == expected.counts_bytes
            assert not expected.counts_bytes or queue.messages.available_bytes == sum(sizes)
            assert queue.overrides == expected.overrides
            deadlines = [m.deadline for m in expected.available.values() if m.deadline]
            assert not deadlines or 0 < queue.messages.next_deadline <= min(deadlines)
            assert sorted(
                (e.id, e.priority, e.deadline, e.attempts, e.claimed_at, e.lease_until, e.session)
                for e in queue.messages.in_flight.values()
            ) == sorted(
                (m.id, m.priority, m.deadline, m.attempts, m.token, m.lease_until, m.session)
                for m in expected.in_flight.values()
            )
            assert {place for place in leased if place[1] == name} == {
                (m.session, name, m.id) for m in expected.in_flight.values()
            }
            self.compare_limits(name, queue.flow or FlowLimits())
            for which in LISTS:
                assert self.run(self.settled_rows(queue, which)) == getattr(expected, which)
            ids = expected.ids()
            assert len(ids) == len(set(ids))

    def compare_limits(self, name: str, flow: FlowLimits) -> None:
        """Times in the past are as good as any other."""
        expected, now, running = self.model.queues[name], self.clock.now_ms(), self.engine.state.running
        assert max(flow.full_at_ns, (now - 50) * 1_000_000) == 1_000_000 * max(expected.full_at_ms, now - 50)
        assert max(flow.delayed_until_ms, now) == max(expected.delayed_until, now)
        assert running.by_queue.get(name, 0) == sum(lease[0] == name for lease in self.model.running)

    async def reported(self) -> list[tuple[int, int, str]]:
        """The attempts with a report, which have their errors."""
        filters = query.check_filters(states=query.TASK_STATES)
        paging = query.check_paging(query.ATTEMPTS, filters, order="asc", limit=1000, after=None, before=None)
        found = (await self.engine.history.list_attempts(filters, paging, tracebacks=True)).items
        for one in found:
            texts = one.error, one.traceback
            assert texts == ((RAISED.error, RAISED.traceback) if one.state == "raised" else ("", ""))
        return sorted((one.message_id, one.number, one.state) for one in found)

    # ------------------------------------------------------------------ without the engine
    @rule()
    def look_from_outside(self) -> None:
        """Beside the engine that runs, and right after each crash: as it was at the last commit."""
        self.check_from_outside()

    def after_crash(self) -> None:
        self.check_from_outside()
        super().after_crash()
        assert self.run(self.reported()) == sorted(self.model.ended)

    def check_from_outside(self) -> None:
        """The store is whole without its engine, and shows what was committed."""
        assert_verified(self.folder)
        seen = self.run(count(self.folder))
        assert {name: (queue.available, queue.in_flight) for name, queue in seen.queues.items()} == {
            name: (len(expected.available), len(expected.in_flight)) for name, expected in self.committed.queues.items()
        }

    # ------------------------------------------------------------------ the end
    def teardown(self) -> None:
        try:
            if hasattr(self, "engine") and sys.exc_info()[0] is None:
                self.run(self.engine.close())
                self.note_commit(checkpoint=True)
                self.check_store()
                self.open()
                self.settle_everything()
                self.run(self.engine.close())
                self.check_store()
        finally:
            self.loop.close()
            shutil.rmtree(self.root, ignore_errors=True)

    def settle_everything(self) -> None:
        """Afterwards no queue has anything, so nothing may be left of any message."""
        for name in self.model.jobs:
            self.route_job(name, 1_000_000)
        self.publish_dead_letters(1_000_000, True, False)
        self.clock.advance(10_000)
        for name, expected in self.model.queues.items():
            queue = self.engine.state.queues[name]
            self.settle(name, "ack", 1_000_000, True, False)
            self.clock.advance(1)
            while expected.next(self.clock.now_ms()) is not None:
                self.claim(name, SESSIONS[0], 1000, False)
                self.settle(name, "ack", 1000, True, True)
            assert self.run(self.next_entry(queue)) == (None, None)
            queue.options = queue.options._replace(done_retention_seconds=1, failed_retention_seconds=1)
            expected.done_retention = expected.failed_retention = 1
            self.delete_settled(name, "archived_failed", 0, True)
        self.clock.advance(200_000)
        self.publish_dead_letters(1_000_000, False, True)
        for _ in range(2):  # a bucket that is not stored yet is left for the next sweep
            self.sweep(True)
            self.checkpoint()
        assert self.model.needed() == set()

    def check_store(self) -> None:
        """What the database has, read without this package's engine."""
        assert_verified(self.folder)
        store = PlainStore(self.folder)
        ids = store.message_ids()
        there = ids[RecordKind.METADATA]
        self.check_objects(store, self.folder / "default.staged", there)
        assert self.model.needed() | self.kept() <= there <= self.model.needed() | self.may_be_kept()
        assert ids[RecordKind.PAYLOAD] == there >= ids[RecordKind.ATTEMPTS]
        assert sum(found.kept for found in store.of[RecordKind.LOG_RETENTION].values()) == len(
            there - self.model.needed()
        )
        stored = {(name, id): letter.reason for (id, name), letter in store.of[RecordKind.DEAD_LETTER].items()}
        assert stored == self.model.letters()
        assert ids[RecordKind.ROUTES_BLOCK] <= there
        large = {id for id in there & self.numbers.keys() if len(self.model.envelopes[id]) >= 900}
        assert {id for id in there if in_segment(store, id)} == large
        assert sum(use.messages for use in store.of[RecordKind.SEGMENT].values()) == len(large)
        assert ids[RecordKind.CHUNK] == {id for id in there - large if len(self.model.envelopes[id]) > 65_535}
        for id in there:
            assert store.envelope(id) == self.model.envelopes[id]
            assert store.of[RecordKind.METADATA][id].message_id == id
            assert list(store.of[RecordKind.ATTEMPTS].get(id, [])) == self.model.attempts.get(id, [])
        assert set(store.of[RecordKind.CONFIG]) == set(store.of[RecordKind.OPTIONS]) == set(self.model.queues)
        changed = {name: queue.overrides for name, queue in self.model.queues.items()}
        assert store.of[RecordKind.OVERRIDES] == {n: each for n, each in changed.items() if each != NO_OVERRIDES}
        assert store.of[RecordKind.CURSOR] == self.model.cursors
        bindings = {(queue, exchange, key) for exchange, queue, key in store.of[RecordKind.BINDING]}
        assert bindings == self.model.bindings
        for name, expected in self.model.queues.items():
            available, in_flight = store.active(name)
            assert {row[0] for row in available} == set(expected.available)
            assert {row[0] for row in in_flight} == set(expected.in_flight)
            assert store.rows(RecordKind.DONE, name) == expected.done
            assert store.rows(RecordKind.FAILED, name) == expected.failed
            assert store.rows(RecordKind.ARCHIVED_FAILED, name) == expected.archived_failed
            for kind in (RecordKind.ACTIVE, RecordKind.DONE, RecordKind.FAILED):
                buckets = store.buckets(kind, name)
                assert 0 in buckets
                for number, rows in buckets.items():
                    assert any(rows) or number in (0, max(buckets)), (kind, number)


def in_segment(store: PlainStore, id: int) -> bool:
    stored = store.of[RecordKind.PAYLOAD][id]
    return isinstance(stored, PayloadURI) and stored.uri.startswith("segment:")


class KeepingMachine(EngineMachine):
    """The log keeps everything until its own deadline, whether a queue needs it or not."""

    settings = replace(SETTINGS, log_retention_seconds=math.inf)

    def kept(self) -> set[int]:
        now = self.clock.now_ms()
        return {id for id in self.model.envelopes if not self.model.stored_messages[id].is_expired(now)}

    def may_be_kept(self) -> set[int]:
        return set(self.model.envelopes)


class StoreModeMachine(EngineMachine):
    """In memory, without a journal: every commit is a checkpoint."""

    def url(self) -> str:
        return f"memory://{self.root}"

    def freeze(self) -> Callable[[], None]:
        return lambda: None

    def abandon(self) -> None:
        """Opening the store again fences the old engine."""
        self.abandoned.append(self.engine)

    def teardown(self) -> None:
        super().teardown()
        loop = asyncio.new_event_loop()
        for engine in self.abandoned:
            with contextlib.suppress(StoreError):
                loop.run_until_complete(engine.store.close())
        loop.close()
        object_store._memory_stores.pop(str(self.root), None)

    @precondition(lambda self: False)
    @rule()
    def crash_in_checkpoint(self) -> None:
        """Whether the write or the fence comes first is not ours to choose."""

    def check_store(self) -> None:
        """The store is this process's memory."""

    def check_from_outside(self) -> None:
        """There is no outside."""


COMMON: dict[str, Any] = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": list(HealthCheck),
}
TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=25, stateful_step_count=40, **COMMON)
TestKeeping = KeepingMachine.TestCase
TestKeeping.settings = settings(max_examples=10, stateful_step_count=40, **COMMON)
TestStoreMode = StoreModeMachine.TestCase
TestStoreMode.settings = settings(max_examples=15, stateful_step_count=40, **COMMON)
