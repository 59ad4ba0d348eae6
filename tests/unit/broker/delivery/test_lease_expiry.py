"""The times at which leases from before a restart, and timed leases, return to their queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kombu_opendata.broker.delivery.lease_expiry import LeaseExpiry
from kombu_opendata.protocol.messages import Ending, Read, SettleMessages
from kombu_opendata.storage.records.session_records import RunningTask
from kombu_opendata.storage.state.task_state import RunningTasks
from tests.support.waiting import until
from tests.unit.broker.model.test_queue import World, both_kinds, run

pytestmark = pytest.mark.contract(3)

GRACE_MS = 2000
OPENED_AT_MS = 100_000


class Reopened:
    """An instance that was opened with a lease of a session that is not there."""

    def __init__(self, lease_until: int) -> None:
        self.now_ms = OPENED_AT_MS
        self.returned: list[tuple[Any, str, bool]] = []
        self.entry = SimpleNamespace(queue="q", lease_until=lease_until)
        self.lost: list[bytes] = []
        self.sessions: dict[bytes, Any] = {}
        state = self.state = SimpleNamespace(
            leases={b"session": {1: self.entry}}, session_names={b"session": "name"}, producers={},
            running=RunningTasks(),
        )  # fmt: skip
        self.forgotten: list[bytes] = []
        operations = SimpleNamespace(forget_session=self.forgotten.append)
        nothing = SimpleNamespace(schedule=lambda: None, wake=lambda _queue: None, get=lambda _name: self)
        clock = SimpleNamespace(now_ms=lambda: self.now_ms)
        core = SimpleNamespace(sessions=self.sessions, queues=nothing, clock=clock, outbox=nothing)
        leases = SimpleNamespace(lose_tasks=self.lost.append, expects_reports=True)
        parts: list[Any] = [core, nothing, leases, state, operations, GRACE_MS, GRACE_MS]
        self.expiry = LeaseExpiry(*parts)

    def end(self, entry: Any, _outcome: int, name: str, *, lease_expired: bool) -> None:
        """As that of the queue."""
        self.returned.append((entry, name, lease_expired))

    def expire(self, after_ms: int) -> None:
        self.now_ms = OPENED_AT_MS + after_ms
        self.expiry.expire()


@pytest.mark.parametrize(
    ("lease_ends_after_ms", "kept_until_ms"), [(-60_000, GRACE_MS), (500, GRACE_MS), (30_000, 30_000)]
)
def test_a_lease_lasts_and_never_less_than_the_grace(lease_ends_after_ms: int, kept_until_ms: int) -> None:
    instance = Reopened(OPENED_AT_MS + lease_ends_after_ms)
    instance.expire(0)
    instance.expire(kept_until_ms - 1)
    assert instance.returned == []
    instance.expire(kept_until_ms)
    assert instance.returned == [(instance.entry, "name", True)]


def test_the_owner_of_a_session_without_a_lease_is_known_for_the_grace() -> None:
    instance = Reopened(OPENED_AT_MS + 30_000)
    instance.state.session_names.update({b"idle": "idle", b"back": "back"})
    instance.sessions[b"back"] = SimpleNamespace(connection=instance)
    instance.expire(GRACE_MS - 1)
    assert instance.forgotten == []
    instance.expire(GRACE_MS)
    assert instance.forgotten == [b"idle"]


def test_tasks_from_before_a_restart_have_a_minute() -> None:
    instance = Reopened(OPENED_AT_MS)
    instance.state.running.start(b"worker", "q", RunningTask(1, 2, 3, 4, 5))
    instance.expire(0)
    instance.expire(30_000)
    instance.sessions[b"worker"] = SimpleNamespace(connection=instance)  # it is back
    instance.expire(59_000)
    del instance.sessions[b"worker"]
    instance.expire(61_000)
    instance.expire(61_000 + 59_999)
    assert instance.lost == []
    instance.expire(61_000 + 60_000)
    assert instance.lost == [b"worker"]


@both_kinds
def test_an_extended_timed_lease_ends_at_its_new_time(durable: bool) -> None:
    async def steps(world: World) -> None:
        expire = world.instance.timed.expire
        world.publish()
        world.call(Read(1, "q", 1, 60_000))
        await until(lambda: world.queue.messages.in_flight)
        (entry,) = world.queue.messages.in_flight.values()
        world.clock.advance(30_000)
        world.call(SettleMessages(2, "q", Ending.SET_VT, [(entry.id, entry.claimed_at)], 60_000))
        world.clock.advance(59_999)
        assert expire() == 0
        assert list(world.queue.messages.in_flight) == [entry.id]
        world.clock.advance(1)
        assert expire() == 1
        assert not world.queue.messages.in_flight

    run(durable, steps)
