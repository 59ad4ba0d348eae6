"""A batch with a key for each message, whose answer was lost with the broker: it is stored once and told truly."""

from __future__ import annotations

import asyncio

import pytest

from kombu_opendata.broker.calls.queue_client import send as send_calls
from kombu_opendata.broker.calls.queue_client.send_idempotency import key_name
from kombu_opendata.errors import RetryLater
from kombu_opendata.protocol.messages import Outgoing, Send, Sent
from tests.support.caller import Caller
from tests.unit.broker.model.test_queue import World, run

pytestmark = pytest.mark.contract(1)


def batch(seq: int, bodies: str) -> Send:
    messages: list[Outgoing] = [(body.encode(), {}, 0, 0, -1) for body in bodies]
    digests = [16 * body.encode() for body in bodies]
    keys = [f"key of {body}" if body != "-" else "" for body in bodies]
    return Send(seq, seq, "", "dead", messages, 1, True, key_ttl_ms=1000, keys=keys, digests=digests)


async def send(world: World, message: Send) -> Sent:
    """The answer, when keys were looked for in the store."""
    world.call(message)
    return await answered(world)


async def answered(world: World) -> Sent:
    """The answer to the last call."""
    await world.call.done()
    answer = world.instance.background._retained[world.session.id][1]
    assert isinstance(answer, Sent)
    return answer


def restart(world: World) -> None:
    """Another broker on the same store, to which the client comes back."""
    world.restart()
    world.instance.sessions[world.session.id] = world.session
    world.call = Caller(world.instance, world.session)


def test_rows_that_were_stored_before_the_broker_ended_are_told_as_new() -> None:
    async def steps(world: World) -> None:
        await send(world, batch(1, "ab"))
        world.clock.advance(1)
        first = await send(world, batch(2, "bcdc"))
        assert first.new == [False, True, True, False]
        restart(world)
        again = await send(world, batch(2, "bcdc"))
        assert (again.ids, again.new) == (first.ids, first.new)
        assert (await send(world, batch(3, "bcdc"))).new == [False] * 4
        assert world.instance.queues["dead"].counts.published == 4

    run(True, steps)


def test_rows_without_a_key_are_known_to_be_stored() -> None:
    async def steps(world: World) -> None:
        assert (await send(world, batch(1, "a-"))).new == [True, True]
        restart(world)
        assert (await send(world, batch(1, "a-"))).ids == []
        assert world.instance.queues["dead"].counts.published == 2

    run(True, steps)


def test_a_client_cannot_fill_the_memory_with_batches_that_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_calls, "MAX_CHECKING_BYTES", 100)

    async def steps(world: World) -> None:
        messages: list[Outgoing] = [(b"b" * 10, {}, 0, 0, -1) for _number in range(20)]
        world.call(Send(1, 1, "", "dead", messages, 1))  # one may be larger
        with pytest.raises(RetryLater, match="200 bytes"):
            world.call(Send(2, 2, "", "dead", messages, 1))
        await world.call.done()
        world.call(Send(2, 2, "", "dead", messages, 1))
        await world.call.done()
        world.call(Send(3, 3, "", "dead", messages, 1))
        world.call(Send(4, 1, "", "dead", messages, 1))  # stored before, and repeated because its answer was lost
        await world.call.done()
        assert world.instance.queues["dead"].counts.published == 60

    run(True, steps)


def test_a_key_that_is_evicted_while_a_batch_is_checked_is_loaded_again() -> None:
    async def steps(world: World) -> None:
        first = await send(world, batch(1, "a"))
        await world.engine.commits.checkpoint()  # from now on the key is only cached
        second = batch(2, "a" + 3000 * "-")
        world.call(second)
        await asyncio.sleep(0)
        assert world.instance.queues["dead"].counts.published == 1  # the batch is being checked
        world.engine.state.idempotency.forget(key_name(second, second.keys[0]))
        answer = await answered(world)
        assert (answer.ids[0], answer.new[0]) == (first.ids[0], False)
        assert world.instance.queues["dead"].counts.published == 3001

    run(True, steps)


def test_a_batch_whose_keys_do_not_fit_the_cache_is_recognized() -> None:
    async def steps(world: World) -> None:
        cache = world.engine.state.idempotency
        cache.cache_bytes = 1500  # a key takes 516 bytes
        first = await send(world, batch(1, "abcdefgh"))
        await world.engine.commits.checkpoint()
        assert not all(cache.find(key_name(batch(1, "h"), f"key of {body}"))[0] for body in "abcdefgh")
        async with asyncio.timeout(60):
            again = await send(world, batch(2, "abcdefghi"))
        assert (again.ids[:8], again.new) == (first.ids, [False] * 8 + [True])
        await world.engine.commits.checkpoint()
        assert cache.size_bytes <= 1500

    run(True, steps)


def test_a_key_of_a_batch_that_is_too_large_for_the_cache_is_recognized() -> None:
    def large(seq: int) -> Send:
        messages: list[Outgoing] = [(b"b", {}, 0, 0, -1)] * 100
        return Send(seq, seq, "", "dead", messages, 1, key="key", digest=bytes(16), key_ttl_ms=1000)

    async def steps(world: World) -> None:
        world.engine.state.idempotency.cache_bytes = 1500
        first = await send(world, large(1))
        await world.engine.commits.checkpoint()
        async with asyncio.timeout(60):
            again = await send(world, large(2))
        assert (again.ids, again.repeated) == (first.ids, True)

    run(True, steps)
