"""Calls that take longer than a turn of the loop: however they end, they are answered, and the broker goes on."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from kombu_opendata.broker.model.sessions import SessionConnection
from kombu_opendata.protocol.messages import DeleteSettled, Failed
from kombu_opendata.protocol.messages.message_base import WireMessage
from kombu_opendata.storage.operations.archive_and_delete import SettledMoves
from tests.unit.broker.model.test_queue import World, run


class Told:
    """A connection that remembers what was sent."""

    writable = True

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self._came = asyncio.Event()

    def send_all(self, outgoing: list[WireMessage]) -> None:
        self.messages += outgoing
        self._came.set()

    def abort(self) -> None:
        """Nothing to close."""

    async def next(self) -> Any:
        async with asyncio.timeout(60):
            while not self.messages:
                self._came.clear()
                await self._came.wait()
        return self.messages.pop(0)


def connect(world: World) -> Told:
    told = Told()
    world.session.replies.clear()
    world.session.connection = cast(SessionConnection, told)
    return told


def test_an_unforeseen_error_is_answered_and_ends_no_broker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_arguments: object) -> int:
        raise ZeroDivisionError("nobody thought of that")

    async def steps(world: World) -> None:
        monkeypatch.setattr(SettledMoves, "delete", broken)
        told = connect(world)
        world.call(DeleteSettled(7, "q", "done", -1, None, True))
        answer = await told.next()
        assert isinstance(answer, Failed)
        assert (answer.rid, "nobody thought of that" in answer.text) == (7, True)
        assert not world.instance.failure.future.done()
        assert "nobody thought of that" in caplog.text

    run(True, steps)
