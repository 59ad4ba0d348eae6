"""The inbox of a connection: it shares the loop with the others, and always continues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, cast

import pytest

from kombu_opendata.broker.access.quotas import Quota, SessionQuotas
from kombu_opendata.broker.access.users_format import LimitsTable
from kombu_opendata.broker.calls.dispatch import Handler
from kombu_opendata.broker.delivery.publish_flow_control import Flow, Reason
from kombu_opendata.broker.wire.inbox import MAX_QUERIES, MAX_UNSENT_BYTES, Inbox, InboxState
from kombu_opendata.errors import FrameTooLarge, LimitExceeded, ProtocolError, StoreStalled
from kombu_opendata.protocol.framing import frame
from kombu_opendata.protocol.messages import Deliver, GetStatus, Ok, Ping, Publish, Settle
from kombu_opendata.protocol.messages.message_base import WireMessage
from tests.support.waiting import turns


class _Transport:
    """A connection without a socket."""

    def __init__(self) -> None:
        self.is_reading = True
        self.unsent_bytes = 0

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


class _Client:
    """A client whose slice of time is over after 32 messages."""

    def __init__(self, run: Callable[[Any], None] = lambda _message: None) -> None:
        self.done: list[Any] = []
        self.refused: list[Any] = []
        self.errors: list[Any] = []
        self.transport = _Transport()
        clock = count()
        self.flow = Flow(asyncio.get_running_loop())
        self.flow.time = lambda: float(next(clock))
        self._run = run
        self.inbox = Inbox(self._take, lambda message, _exc: self.refused.append(message), self.errors.append)
        self.inbox.open(cast(asyncio.Transport, self.transport))
        self.inbox.begin_session(HANDLERS, self.flow, None)

    def limit(self, user_rate: int, instance_rate: int, message_bytes: int | None = None) -> tuple[Quota, Quota]:
        """Give a user and an instance these rates of publishes a second."""
        user, instance = (
            Quota(whose, LimitsTable(publishes_per_second=rate, message_bytes=message_bytes))
            for whose, rate in (("user", user_rate), ("instance", instance_rate))
        )
        quotas = SessionQuotas(user, instance, Quota("connection", LimitsTable()))
        self.inbox.begin_session(HANDLERS, self.flow, quotas)
        return user, instance

    def _take(self, message: Any) -> None:
        if isinstance(message, Publish) and self.inbox.delays(message):
            return
        self.done.append(message)
        self._run(message)

    def send(self, *messages: Any) -> None:
        self.inbox.take_in(b"".join(map(frame, messages)))


def _handler(*, stores: bool, overtakes: bool) -> Handler:
    return Handler(lambda _call, _message: None, lambda _rights, _message: None, None, False, stores, overtakes, False)


HANDLERS: dict[type[WireMessage], Handler] = {
    Publish: _handler(stores=True, overtakes=False),
    Settle: _handler(stores=False, overtakes=True),
    Ping: _handler(stores=False, overtakes=False),
}


def _publish(rid: int, envelope: bytes = b"") -> Publish:
    return Publish(rid, 0, "", "q", envelope, {}, 0, rid)


async def _turns() -> None:
    await turns(100)


def test_messages_that_wait_for_a_filter_run_in_slices() -> None:
    async def program() -> None:
        client = _Client()
        client.inbox.change_preparing(True)
        client.send(*map(Ping, range(1, 1001)))
        await _turns()
        assert not client.done
        client.inbox.change_preparing(False)
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


def test_a_query_that_waited_and_halts_again_keeps_nothing_unread() -> None:
    async def program() -> None:
        def run(message: Any) -> None:
            client.inbox.begin_query(message.rid, "GetStatus")

        client = _Client(run)
        client.send(*map(GetStatus, range(1, MAX_QUERIES + 2)))
        assert len(client.done) == MAX_QUERIES
        assert not client.transport.is_reading
        client.inbox.answered([Ok(1)])
        await _turns()
        assert len(client.done) == MAX_QUERIES + 1
        client.inbox.answered([Ok(2)])
        await _turns()
        assert client.transport.is_reading

    asyncio.run(program())


def rids(messages: list[Any]) -> list[int]:
    return [message.rid for message in messages]


def test_messages_run_immediately_and_in_order_while_nothing_waits() -> None:
    async def program() -> None:
        client = _Client()
        client.send(Ping(1))
        assert client.done == [Ping(1)]
        client.send(Ping(2), Ping(3))
        assert rids(client.done) == [1, 2, 3]
        whole = frame(Ping(4))
        client.inbox.take_in(whole[:3])
        assert rids(client.done) == [1, 2, 3]
        client.inbox.take_in(whole[3:])
        assert rids(client.done) == [1, 2, 3, 4]
        assert client.transport.is_reading

    asyncio.run(program())


def test_a_halted_client_is_not_read_and_its_messages_wait() -> None:
    async def program() -> None:
        client = _Client()
        client.inbox.change_preparing(True)
        client.send(Ping(1))
        client.send(Ping(2))
        assert (client.inbox.state, client.done, client.transport.is_reading) == (InboxState.HALTED, [], False)
        client.inbox.change_preparing(False)
        client.inbox.go_on()
        assert (rids(client.done), client.transport.is_reading) == ([1, 2], True)

    asyncio.run(program())


def test_a_client_that_does_not_read_is_not_read() -> None:
    async def program() -> None:
        client = _Client()
        client.inbox.change_preparing(True)
        client.send(Ping(1))
        client.inbox.change_preparing(False)
        client.transport.unsent_bytes = MAX_UNSENT_BYTES + 1
        client.inbox.go_on()
        assert (client.done, client.transport.is_reading) == ([], False)
        client.transport.unsent_bytes = MAX_UNSENT_BYTES
        client.inbox.go_on()
        assert (rids(client.done), client.transport.is_reading) == ([1], True)

    asyncio.run(program())


def test_queries_are_counted_by_their_numbers() -> None:
    async def program() -> None:
        client = _Client()
        for rid in (1, 1, 2, 3):
            client.inbox.begin_query(rid, "GetStatus")
        assert (client.inbox.queries, client.inbox.state) == (MAX_QUERIES, InboxState.HALTED)
        client.inbox.answered([Ok(7), Ok(1)])
        assert (client.inbox.queries, client.inbox.state) == (3, InboxState.RUNNING)
        client.inbox.answered([Ok(1), Ok(1), Ok(2)])
        assert client.inbox.queries == 1, "the third reply of 1 is no query's"
        with pytest.raises(ProtocolError, match="GetStatus"):
            client.inbox.begin_query(0, "GetStatus")

    asyncio.run(program())


def test_settlements_overtake_delayed_publishes_and_other_calls_do_not() -> None:
    async def program() -> None:
        client = _Client()
        client.flow.change(Reason.MEMORY, True)
        client.send(_publish(1))
        assert (client.inbox.state, client.flow.waiting) == (InboxState.DELAYED, 1)
        client.send(Settle(1, 0, 1, []), Ping(2), _publish(3))
        assert client.done == [Settle(1, 0, 1, [])]
        assert client.transport.is_reading, "for settlements"
        client.send(*(_publish(4, bytes(8000)) for _ in range(8)))
        assert client.transport.is_reading, "64,000 bytes"
        client.send(_publish(4, bytes(8000)))
        assert not client.transport.is_reading, "more than 64 KiB"
        client.flow.change(Reason.MEMORY, False)
        await _turns()
        assert rids(client.done[1:]) == [1, 2, 3, *[4] * 9]
        assert (client.inbox.state, client.transport.is_reading) == (InboxState.RUNNING, True)
        client.flow.change(Reason.MEMORY, True)
        client.send(*(_publish(5, bytes(8000)) for _ in range(8)))
        assert client.transport.is_reading, "the bytes of the earlier delay do not count"

    asyncio.run(program())


def test_refused_publishes_are_those_before_the_next_other_call() -> None:
    async def program() -> None:
        client = _Client()
        client.flow.change(Reason.STALL, True)
        client.send(_publish(1), _publish(2), Ping(3), _publish(4))
        client.inbox.refuse(StoreStalled("", uncertain=False, seconds=1))
        assert (rids(client.refused), rids(client.done)) == ([1, 2], [3])
        assert client.inbox.state is InboxState.DELAYED, "the publish after the call waits"

    asyncio.run(program())


class _StillLoop(asyncio.SelectorEventLoop):
    """A loop whose time stands still unless a test advances it."""

    now = 1000.0

    def time(self) -> float:
        return self.now


def test_a_rate_delays_a_publish_by_its_user_first_and_then_by_its_instance() -> None:
    async def program() -> None:
        client, loop = _Client(), cast(_StillLoop, asyncio.get_running_loop())
        user, instance = client.limit(20, 10)
        user.delay(20, loop.now)
        client.send(_publish(1), Ping(2))
        assert instance.delay(10, loop.now) == 0.0, "the publish does not count before its user's delay is over"
        loop.now += 0.04
        await _turns()
        assert client.done == []
        loop.now += 0.02
        await _turns()
        assert client.done == [], "it waits for its instance"
        loop.now += 0.1
        await _turns()
        assert rids(client.done) == [1, 2]
        assert instance.delay(0, loop.now) == 0.0, "it counted once"
        assert instance.delay(1, loop.now) > 0.0

    with asyncio.Runner(loop_factory=_StillLoop) as runner:
        runner.run(program())


def test_a_connection_that_ends_gives_back_a_delayed_publish() -> None:
    async def program() -> None:
        client, now = _Client(), _StillLoop.now
        user, instance = client.limit(2, 1)
        user.delay(2, now)
        client.send(_publish(1))
        assert user.delay(0, now) == 0.5
        client.inbox.close()
        assert user.delay(0, now) == 0.0
        assert instance.delay(1, now) == 0.0
        assert (client.inbox.state, client.done) == (InboxState.CLOSED, [])

    with asyncio.Runner(loop_factory=_StillLoop) as runner:
        runner.run(program())


def test_a_publish_that_is_too_large_is_refused() -> None:
    async def program() -> None:
        client = _Client()
        client.limit(10, 10, message_bytes=5)
        client.send(_publish(1, b"12345"))
        with pytest.raises(LimitExceeded):
            client.send(_publish(2, b"123456"))
        assert rids(client.done) == [1]

    asyncio.run(program())


def test_bytes_that_are_no_message_end_the_connection_also_when_they_waited() -> None:
    async def program() -> None:
        client = _Client()
        with pytest.raises(ProtocolError):
            client.inbox.take_in(b"\xff" * 64)
        client = _Client()
        client.inbox.take_in(b"".join(map(frame, map(Ping, range(1, 41)))) + b"\xff" * 64)  # longer than a slice
        await _turns()
        assert [type(error) for error in client.errors] == [FrameTooLarge]

    asyncio.run(program())


def test_a_message_does_not_overtake_those_that_wait() -> None:
    async def program() -> None:
        client = _Client()
        client.inbox.change_preparing(True)
        client.send(Ping(1))
        client.inbox.change_preparing(False)
        client.send(Ping(2))
        client.inbox.go_on()
        assert rids(client.done) == [1, 2]

    asyncio.run(program())


def test_a_slice_lasts_as_long_as_its_time() -> None:
    async def program() -> None:
        client = _Client()
        client.flow.time = lambda: 5.0
        client.send(*map(Ping, range(1, 201)))
        assert len(client.done) == 200

    asyncio.run(program())


def test_messages_that_are_no_replies_answer_nothing() -> None:
    async def program() -> None:
        client = _Client()
        client.inbox.begin_query(1, "GetStatus")
        client.inbox.answered([Deliver(0, [])])
        assert client.inbox.queries == 1

    asyncio.run(program())


def test_a_delayed_client_is_read_up_to_64_kib() -> None:
    async def program() -> None:
        client = _Client()
        part = frame(_publish(1, bytes(4000)))
        whole, rest = divmod(64 << 10, len(part))
        for _ in range(2):
            client.flow.change(Reason.MEMORY, True)
            for _ in range(whole):
                client.inbox.take_in(part)
            client.inbox.take_in(part[:rest])
            assert client.transport.is_reading, "64 KiB"
            client.inbox.take_in(part[rest:])
            assert not client.transport.is_reading
            client.flow.change(Reason.MEMORY, False)
            await _turns()
            assert client.transport.is_reading

    asyncio.run(program())


def test_a_client_that_does_not_send_the_rest_of_a_message_is_cut_off() -> None:
    async def program() -> None:
        client, error = _Client(), ProtocolError("no rest")
        client.inbox.give_up(error)
        assert client.errors == [error]

    asyncio.run(program())


def test_rates_get_back_a_delayed_publish_once_and_no_other() -> None:
    async def program() -> None:
        client, now = _Client(), _StillLoop.now
        user, _instance = client.limit(2, 2)
        client.send(_publish(1))
        client.inbox.close()
        assert user.delay(1, now) == 0.0, "this one was published"
        assert user.delay(1, now) == 0.5
        client = _Client()
        user, _instance = client.limit(2, 2)
        user.delay(2, now)
        client.send(_publish(1))
        client.inbox.close()
        client.inbox.close()
        assert user.delay(1, now) == 0.5

    with asyncio.Runner(loop_factory=_StillLoop) as runner:
        runner.run(program())
