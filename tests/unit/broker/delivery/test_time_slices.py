"""Calls that list all queues do so in pieces: others have their turn in between."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from kombu_opendata.broker.model.sessions import Session
from kombu_opendata.broker.process.server import Server
from kombu_opendata.broker.wire.broker_settings import BrokerSettings
from kombu_opendata.protocol import messages as m
from kombu_opendata.storage import clock
from kombu_opendata.storage.clock import TimeSlice
from tests.support.clock import HastyLoop
from tests.support.waiting import turns

from ....support.caller import Caller

QUEUES = 200


def run_hastily(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=HastyLoop) as runner:
        runner.run(main)


async def turns_until_answered(call: Caller, message: Any) -> tuple[Any, int]:
    """The answer, and how many turns the loop made before it."""
    call.session.replies.clear()
    call(message)
    count = 0
    while not call.session.replies:
        count += 1
        assert count < 100 * QUEUES
        await turns()
    return call.session.replies[0], count


def rows_of(answer: Any) -> list[Any]:
    """What an answer has for each queue or binding."""
    if isinstance(answer, m.Status):
        return list(answer.report["instances"]["default"]["queues"].values())
    if isinstance(answer, m.Metrics):
        return list(answer.queues.values())
    return list(answer.bindings if isinstance(answer, m.Bindings) else getattr(answer, "queues", ()))


@pytest.mark.parametrize(
    "message",
    [m.GetStatus(1), m.ListBindings(1), m.ListQueues(1), m.GetMetrics(1, []), m.GetMetrics(1, [], 0), m.ListWorkers(1)],
    ids=["GetStatus", "ListBindings", "ListQueues", "GetMetrics", "GetMetrics-since", "ListWorkers"],
)
def test_a_call_about_all_queues_lets_others_have_their_turn(message: Any) -> None:
    async def main() -> None:
        server = Server(BrokerSettings(store=f"memory://{uuid.uuid4().hex}"))
        instance = await server.instances.get("default")
        call = Caller(instance, Session(bytes(16), "test"), server.status)
        for number in range(QUEUES):
            call(m.DeclareQueue(1, f"q{number}", number % 2 == 0, False, False, {}, False))
            call(m.Bind(1, f"q{number}", "amq.direct", "k", {}))
        answer, count = await turns_until_answered(call, message)
        assert answer.rid == 1
        assert count >= QUEUES // 2 // clock.LOOKS  # a status is about the stored queues, which are half of them
        for row in rows_of(answer):
            assert isinstance(row, msgspec.Raw), "objects for each queue would set the garbage collector going"
        if isinstance(answer, m.Status):
            report = answer.report["instances"]["default"]
            assert (len(report["queues"]), report["transient_queues"]) == (QUEUES // 2, QUEUES // 2)
        if isinstance(answer, m.Bindings):
            assert len(answer.bindings) == len(answer.arguments) >= QUEUES
        await server.close()

    run_hastily(main())


@pytest.mark.parametrize("kind", [m.GetStatus, m.ListBindings, m.ListQueues, m.ListWorkers])
def test_queues_that_come_and_go_during_such_a_call(kind: Any) -> None:
    async def main() -> None:
        server = Server(BrokerSettings(store=f"memory://{uuid.uuid4().hex}"))
        instance = await server.instances.get("default")
        call = Caller(instance, Session(bytes(16), "test"), server.status)
        for number in range(QUEUES):
            call(m.DeclareQueue(1, f"q{number}", False, False, False, {}, False))
            call(m.Bind(1, f"q{number}", "amq.topic", f"k{number}", {}))
        asking = asyncio.ensure_future(turns_until_answered(call, kind(1)))
        for number in range(0, QUEUES, 2):
            instance.queues[f"q{number}"].drop()
            call(m.DeclareQueue(0, f"new{number}", False, False, False, {}, False))
            call.session.replies.clear()
            await turns()
        answer, _turns = await asking
        assert not isinstance(answer, m.Failed)
        await server.close()

    run_hastily(main())


def test_pieces_are_short_and_not_one_an_item() -> None:
    async def main() -> None:
        began = TimeSlice()
        rests = 0
        real = began.rest

        async def rest() -> None:
            nonlocal rests
            rests += 1
            await real()

        began.rest = rest  # type: ignore[method-assign]
        assert [number async for number in began.over(range(1000))] == list(range(1000))
        assert rests <= 1000 // clock.LOOKS + 1

    asyncio.run(main())
