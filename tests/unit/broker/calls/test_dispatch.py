"""The handlers of messages: which there are, and which calls wait or are done once."""

from __future__ import annotations

import pytest

from kombu_opendata.broker.calls.dispatch import BrokerCalls, Context, bind_handlers, handles
from kombu_opendata.protocol import messages as m
from tests.support.waiting import turns
from tests.unit.broker.delivery.test_background import connect
from tests.unit.broker.model.test_queue import World, run


def test_every_message_of_a_client_has_one_handler() -> None:
    async def steps(world: World) -> None:
        assert world.call.handlers.keys() == set(m.OPERATIONS)

    run(True, steps)


def test_a_message_with_two_handlers_is_noticed() -> None:
    class Twice(BrokerCalls):
        @handles(m.Heartbeat)
        def one(self, call: Context, msg: m.Heartbeat) -> None: ...

        @handles(m.Heartbeat)
        def two(self, call: Context, msg: m.Heartbeat) -> None: ...

    with pytest.raises(ValueError, match="Heartbeat has two handlers"):
        bind_handlers(Twice())


def test_a_handler_of_a_message_without_a_declaration_is_noticed() -> None:
    with pytest.raises(AttributeError, match="operation"):

        @handles(m.Hello)
        def hello(self: object, call: Context, msg: m.Hello) -> None: ...


def test_a_definition_waits_for_a_deletion() -> None:
    async def steps(world: World) -> None:
        world.session.replies.clear()
        async with world.instance.queues.lock:
            world.call(m.DeclareQueue(1, "another", True, False, False, {}, False))
            world.call(m.Qos(2, 1, 10))
            await turns()
            assert [type(answer) for answer in world.session.replies] == [m.Ok]
        await world.call.done()
        assert [type(answer) for answer in world.session.replies] == [m.Ok, m.QueueDeclared]

    run(True, steps)


def test_a_definition_does_not_overtake_one_that_waits() -> None:
    """After a reconnect a client sends its declarations and its consumers without waiting for answers."""

    async def steps(world: World) -> None:
        world.session.replies.clear()
        async with world.instance.queues.lock:
            world.call(m.DeclareQueue(1, "another", True, False, False, {}, False))
            await turns()
        world.call(m.Consume(2, 1, "tag", "another", False, False, {}))  # the lock is free, the queue is not there yet
        await world.call.done()
        assert [type(answer) for answer in world.session.replies] == [m.QueueDeclared, m.Ok]

    run(True, steps)


def test_a_definition_that_waits_is_not_made_for_a_connection_that_is_gone() -> None:
    """The client has asked again, or will: a consumer that it does not know of would take messages."""

    async def steps(world: World) -> None:
        async with world.instance.queues.lock:
            connect(world)
            world.call(m.Consume(1, 1, "tag", "q", False, False, {}))
            world.instance.lifecycle.detach(world.session)
        await world.call.done()
        assert world.queue.consumers == []
        assert world.session.replies == []

    run(True, steps)
