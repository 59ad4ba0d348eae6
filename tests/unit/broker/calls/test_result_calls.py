"""The callback of a chord: sent by the session that stored the last part, or by another one if that is gone."""

from __future__ import annotations

import asyncio

import pytest

from kombu_opendata.broker.model.sessions import Session
from kombu_opendata.protocol.messages import OpenChord, ResultStored, StoreResult
from tests.support.caller import Caller
from tests.support.waiting import turns, until
from tests.unit.broker.model.test_queue import World, run

pytestmark = pytest.mark.contract(11)


class Peer:
    """A connection that remembers the replies about results."""

    writable = True

    def __init__(self) -> None:
        self.stored: list[ResultStored] = []

    def send_all(self, messages: list[object]) -> None:
        self.stored += [message for message in messages if isinstance(message, ResultStored)]


def worker(world: World, letter: bytes) -> tuple[Caller, Peer]:
    session = world.instance.sessions[16 * letter] = Session(16 * letter, "a worker")
    peer = Peer()
    session.connection = peer  # type: ignore[assignment]
    return Caller(world.instance, session), peer


async def part(worker: tuple[Caller, Peer], index: int) -> bool:
    """Store a part of the chord; return True if the worker must send the callback."""
    call, peer = worker
    count = len(peer.stored)
    call(StoreResult(1, b"", 2, b"value", 0, chord=b"chord", index=index, member=b"%d" % index))
    await until(lambda: len(peer.stored) > count)
    return peer.stored[-1].complete


def test_one_session_sends_the_callback_while_it_lives() -> None:
    async def steps(world: World) -> None:
        first, second = worker(world, b"1"), worker(world, b"2")
        first[0](OpenChord(1, b"chord", 0, 2))
        assert not await part(first, 0)
        assert await part(first, 1)
        assert not await part(second, 1)  # a repetition, as after a redelivery
        assert await part(first, 1)
        del world.instance.sessions[16 * b"1"]
        assert await part(second, 1)

    run(True, steps)


@pytest.mark.parametrize("comes_back", [True, False])
def test_the_callback_waits_for_a_sender_without_a_connection(comes_back: bool) -> None:
    async def steps(world: World) -> None:
        first, second = worker(world, b"1"), worker(world, b"2")
        first[0](OpenChord(1, b"chord", 0, 1))
        assert await part(first, 0)
        sender = world.instance.sessions[16 * b"1"]
        connection, sender.connection = sender.connection, None
        again = asyncio.create_task(part(second, 0))  # its message was delivered again
        await turns(50)
        assert not again.done()
        if comes_back:
            sender.connection = connection
        else:
            del world.instance.sessions[16 * b"1"]
        assert await again is not comes_back

    run(True, steps)


def test_a_chord_waits_for_tasks_that_were_added() -> None:
    async def steps(world: World) -> None:
        first = worker(world, b"1")
        first[0](OpenChord(1, b"chord", 0, 1, 1))
        assert not await part(first, 0)
        assert await part(first, 1)

    run(True, steps)
