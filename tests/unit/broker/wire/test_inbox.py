"""The inbox of a connection: it shares the loop with the others, and always continues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, cast

from kombu_opendata.broker.delivery.publish_flow_control import Flow
from kombu_opendata.broker.wire.inbox import MAX_QUERIES, Inbox
from kombu_opendata.protocol.framing import frame
from kombu_opendata.protocol.messages import GetStatus, Ok, Ping
from tests.support.waiting import turns


class _Transport:
    """A connection without a socket."""

    def __init__(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


class _Client:
    """A client whose slice of time is over after 32 messages."""

    def __init__(self, run: Callable[[Any], None] = lambda _message: None) -> None:
        self.done: list[Any] = []
        self.transport = _Transport()
        flow, clock = Flow(asyncio.get_running_loop()), count()
        flow.time = lambda: float(next(clock))
        self._run = run
        self.inbox = Inbox(self._take, lambda _message, _exc: None, lambda _exc: None)
        self.inbox.open(cast(asyncio.Transport, self.transport))
        self.inbox.begin_session({}, flow, None)

    def _take(self, message: Any) -> None:
        self.done.append(message)
        self._run(message)

    def send(self, *messages: Any) -> None:
        self.inbox.take_in(b"".join(map(frame, messages)))


async def _turns() -> None:
    await turns(100)


def test_messages_that_wait_for_a_filter_run_in_slices() -> None:
    async def program() -> None:
        client = _Client()
        client.inbox.change_compiling(True)
        client.send(*map(Ping, range(1, 1001)))
        await _turns()
        assert not client.done
        client.inbox.change_compiling(False)
        client.inbox.go_on()
        assert len(client.done) < 100
        await _turns()
        assert [message.rid for message in client.done] == list(range(1, 1001))
        assert client.transport.is_reading

    asyncio.run(program())


def test_a_slice_that_ends_with_the_last_possible_query_is_continued_after_a_reply() -> None:
    async def program() -> None:
        def run(message: Any) -> None:
            if isinstance(message, GetStatus):
                client.inbox.begin_query(message.rid, "GetStatus")

        client = _Client(run)
        queries = [GetStatus(rid) for rid in range(100, 100 + MAX_QUERIES)]
        client.send(*map(Ping, range(1, 33 - MAX_QUERIES)), *queries, *map(Ping, range(200, 210)))
        await _turns()
        assert len(client.done) == 32
        client.inbox.answered([Ok(100)])
        await _turns()
        assert len(client.done) == 42
        assert client.transport.is_reading

    asyncio.run(program())
