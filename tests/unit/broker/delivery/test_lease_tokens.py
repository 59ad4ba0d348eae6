"""Leases: who may end them and how often, and what a session keeps when it comes back."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kombu_opendata.broker.access.rights import ANONYMOUS, User
from kombu_opendata.broker.access.users_format import UserTable
from kombu_opendata.broker.model.sessions import Session, SessionConnection
from kombu_opendata.errors import AccessRefused
from kombu_opendata.protocol.messages import Get, Hello, Outcome, PauseQueue, Resume, ResumeQueue
from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.storage.state.queue_buckets import QueueEntry
from tests.support.waiting import turns
from tests.unit.broker.model.test_queue import World, both_kinds, run

pytestmark = pytest.mark.contract(3, 4, 10, 17)

SUCCEEDED = TaskReport(TaskState.SUCCEEDED, 5, 6, "task")


class Peer:
    """A connection that sends nothing."""

    is_local, writable, heartbeat_seconds = True, True, 0.0

    def send_all(self, messages: list[Any]) -> None:
        """Forget the messages."""

    def abort(self) -> None:
        """End nothing."""


def lease(entry: QueueEntry) -> tuple[str, int, int]:
    return "q", entry.id, entry.claimed_at


async def claimed(world: World) -> QueueEntry:
    """A message that the session holds."""
    world.publish()
    entry = await world.claim()
    assert entry is not None
    return entry


def settle(world: World, outcome: Outcome, token: tuple[str, int, int]) -> None:
    world.instance.leases.settle(world.session, outcome, [token])


def resumed(world: World, *held: tuple[str, int, int], user: User = ANONYMOUS) -> int:
    """The number of leases that the session keeps when it comes back with these."""
    hello = Hello(1, world.session.id, "a consumer", resume=True)
    greeting = Resume(1, [(1, *token) for token in held], [])
    peer = cast(SessionConnection, Peer())
    return world.instance.lifecycle.begin(hello, greeting, peer, user)[1]


@both_kinds
def test_a_token_ends_only_the_lease_that_it_is_of(durable: bool) -> None:
    async def steps(world: World) -> None:
        first = lease(await claimed(world))
        settle(world, Outcome.REQUEUE, first)
        second = await world.claim()  # in the same millisecond
        assert second is not None
        assert second.claimed_at != first[2]
        settle(world, Outcome.ACK, first)
        assert list(world.queue.messages.in_flight) == [second.id]
        settle(world, Outcome.ACK, lease(second))
        settle(world, Outcome.ACK, lease(second))
        assert world.queue.counts.acked == 1

    run(durable, steps)


@both_kinds
def test_a_settlement_that_has_a_token_twice_acks_once(durable: bool) -> None:
    async def steps(world: World) -> None:
        tokens = [lease(await claimed(world)) for _ in range(3)]
        world.instance.leases.settle(world.session, Outcome.ACK, [*tokens, tokens[0], ("q", 99, 1), tokens[2]])
        assert not world.queue.messages.in_flight
        assert (world.queue.counts.acked, world.session.done, world.session.settled) == (3, 3, 6)
        assert not world.session.leases
        assert not world.session.lease_channels

    run(durable, steps)


@both_kinds
def test_a_session_ends_only_its_own_leases(durable: bool) -> None:
    async def steps(world: World) -> None:
        entry = await claimed(world)
        world.instance.leases.settle(Session(16 * b"o", "another"), Outcome.ACK, [lease(entry)])
        assert list(world.queue.messages.in_flight) == [entry.id]

    run(durable, steps)


@both_kinds
def test_a_session_that_comes_back_keeps_what_it_still_holds(durable: bool) -> None:
    async def steps(world: World) -> None:
        held, unknown = await claimed(world), await claimed(world)
        assert resumed(world, lease(held)) == 1
        assert list(world.queue.messages.in_flight) == [held.id]
        assert list(world.queue.messages.available) == [unknown.id]
        settle(world, Outcome.ACK, lease(held))
        assert world.queue.counts.acked == 1

    run(durable, steps)


def test_no_user_resumes_the_session_of_another() -> None:
    async def steps(world: World) -> None:
        entry = await claimed(world)
        other = User("mallory", UserTable(roles=frozenset({"admin"})))
        with pytest.raises(AccessRefused, match="belongs to another user"):
            resumed(world, lease(entry), user=other)
        assert list(world.queue.messages.in_flight) == [entry.id]

    run(True, steps)


def test_no_user_resumes_the_session_of_another_after_a_restart() -> None:
    async def steps(world: World) -> None:
        alice, mallory = (User(name, UserTable(roles=frozenset({"admin"}))) for name in ("alice", "mallory"))
        world.session.user = alice
        resumed(world, user=alice)
        entry = await claimed(world)
        world.restart()
        with pytest.raises(AccessRefused, match="belongs to another user"):
            resumed(world, lease(entry), user=mallory)
        assert resumed(world, lease(entry), user=alice) == 1
        world.restart()
        assert resumed(world, lease(entry)) == 1, "a broker without users"
        world.restart()
        assert resumed(world, lease(entry), user=mallory) == 1, "the session began without users"

    run(True, steps)


@both_kinds
def test_a_paused_queue_delivers_nothing(durable: bool) -> None:
    async def steps(world: World) -> None:
        world.publish()
        world.call(PauseQueue(1, "q"))
        world.call(Get(2, 1, "q", False))
        await turns()
        assert world.queue.counts.delivered == 0
        world.call(ResumeQueue(3, "q"))
        assert await world.claim() is not None

    run(durable, steps)


def states(world: World) -> dict[int, int]:
    """Runs by their final state."""
    counted = [runs.states for runs in world.instance.task_outcomes.tasks.values()]
    return {state: count for state, count in enumerate(map(sum, zip(*counted, strict=True))) if count}


@both_kinds
def test_the_outcome_of_a_started_task_counts_once(durable: bool) -> None:
    async def steps(world: World) -> None:
        token = lease(await claimed(world))
        settle(world, Outcome.START, token)
        for _ in range(2):  # the second is a repetition after a reconnect
            world.instance.leases.report(world.session, [(Outcome.REPORT, *token, SUCCEEDED)])
        assert states(world) == {TaskState.SUCCEEDED: 1}

    run(durable, steps)


def test_a_task_of_a_session_that_ends_is_lost() -> None:
    async def steps(world: World) -> None:
        settle(world, Outcome.START, lease(await claimed(world)))
        world.instance.lifecycle.close(world.session, Outcome.REQUEUE)
        assert states(world) == {TaskState.LOST: 1}

    run(True, steps)
