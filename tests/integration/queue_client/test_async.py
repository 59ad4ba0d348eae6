"""What only the async client has: tasks that wait together, and tasks that are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from kombu_opendata import AsyncQueueClient, QueueClient
from kombu_opendata.queue_client.async_client import MAX_WAITING
from tests.support.waiting import turns, until

from ...support.processes import wait_until
from ..conftest import Reach
from .conftest import options_of


def run(work: Any) -> Any:
    return asyncio.run(work)


@pytest.fixture
def options(reach: Reach) -> dict[str, Any]:
    return options_of(reach)


def test_many_tasks_share_a_client(reach: Reach, options: dict[str, Any], name: str) -> None:
    async def work() -> None:
        async with AsyncQueueClient(reach.url, **options) as client:
            await client.create(name)
            polls = [asyncio.create_task(client.read_with_poll(name, max_poll_seconds=60)) for _ in range(5)]
            ids = await asyncio.gather(*(client.send(name, number) for number in range(25)))
            assert len(set(ids)) == 25
            read = [message for poll in polls for message in await poll]
            assert len({message.id for message in read}) == 5
            await asyncio.gather(*(client.ack(message) for message in read))
            assert (await client.metrics(name)).done == 5

    run(work())


def test_polls_leave_threads_to_other_calls(reach: Reach, options: dict[str, Any], name: str) -> None:
    async def work() -> None:
        async with AsyncQueueClient(reach.url, **options) as client:
            await client.create(name)
            await client.create(f"{name}-2")
            await client.send(f"{name}-2", "a")
            polls = [
                asyncio.create_task(client.read_with_poll(name, max_poll_seconds=600)) for _ in range(MAX_WAITING + 1)
            ]
            while sum([worker.connections for worker in await client.workers()]) < MAX_WAITING:
                pass  # each call lets the polls go on
            assert await client.list_messages(queues=[name]) is not None
            assert (await client.redrive(name)).moved == 0
            async for message in client.consume(f"{name}-2"):
                assert message.body == "a"
                break
            for poll in polls:
                poll.cancel()
            await asyncio.gather(*polls, return_exceptions=True)

    run(work())


def test_a_cancelled_poll_takes_nothing(reach: Reach, options: dict[str, Any], name: str) -> None:
    async def work() -> None:
        async with AsyncQueueClient(reach.url, **options) as client:
            await client.create(name)
            for _ in range(5):
                poll = asyncio.create_task(client.read_with_poll(name, max_poll_seconds=600))
                await client.heartbeat()
                poll.cancel()
                await client.send(name, "a")
                with pytest.raises(asyncio.CancelledError):
                    await poll
                (message,) = await client.read_with_poll(name, max_poll_seconds=60)
                assert message.attempts == 1
                await client.ack(message)

    run(work())


def test_a_cancelled_iterator_loses_nothing(reach: Reach, options: dict[str, Any], name: str) -> None:
    async def work() -> None:
        async with AsyncQueueClient(reach.url, **options) as client:
            await client.create(name)
            await client.send_batch(name, range(10))
            seen: list[int] = []

            async def consume() -> None:
                async for message in client.consume(name, prefetch=3):
                    seen.append(message.body)
                    await client.ack(message)
                    await turns()

            def has_seen(count: int) -> bool:
                return len(seen) >= count or len(set(seen)) >= 10

            while len(set(seen)) < 10:  # one that was seen and whose ack was cancelled comes again
                task = asyncio.create_task(consume())
                await until(partial(has_seen, len(seen) + 2))
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert sorted(set(seen)) == list(range(10))

            async def drain() -> None:
                while (await client.metrics(name)).length:  # those whose acks were cancelled came back
                    for message in await client.read_with_poll(name, qty=10, max_poll_seconds=1):
                        await client.ack(message)

            await asyncio.wait_for(drain(), 60)

    run(work())


def test_a_client_in_another_loop(reach: Reach, options: dict[str, Any], name: str) -> None:
    client = AsyncQueueClient(reach.url, **options)
    run(client.create(name))
    sent = run(client.send(name, "a"))
    assert [message.id for message in run(client.read(name))] == [sent]
    run(client.close())


def test_a_generator_that_is_left(reach: Reach, options: dict[str, Any], name: str) -> None:
    async def first(messages: AsyncIterator[Any]) -> Any:
        async for message in messages:
            return message

    async def work() -> None:
        async with AsyncQueueClient(reach.url, **options) as client:
            await client.create(name)
            await client.send_batch(name, "ab")
            messages = client.consume(name, prefetch=1)
            assert (await first(messages)).body == "a"
            await messages.aclose()
            assert [message.body for message in await client.read(name, 30, 2)] == ["a", "b"]

    run(work())


def test_ten_at_once_with_one_key(reach: Reach, options: dict[str, Any], name: str) -> None:
    async def work() -> None:
        clients = [AsyncQueueClient(reach.url, **options) for _ in range(10)]
        await clients[0].create(name)
        ids = await asyncio.gather(*(client.send(name, "a", idempotency_key="k") for client in clients))
        assert len(set(ids)) == 1
        assert (await clients[0].metrics(name)).length == 1
        for client in clients:
            await client.close()

    run(work())


def test_a_client_that_vanishes_leaves_no_waiting_read(reach: Reach, options: dict[str, Any], name: str) -> None:
    with QueueClient(reach.url, name="stays", **options) as stays:
        stays.create(name)

        async def work() -> None:
            gone = AsyncQueueClient(reach.url, name=f"{name}-gone", **options)
            poll = asyncio.create_task(gone.read_with_poll(name, max_poll_seconds=600))
            await until(lambda: asyncio.to_thread(is_there, stays, f"{name}-gone"))
            await gone.close()
            assert await poll == []

        run(work())
        stays.send(name, "a")
        assert [message.body for message in stays.read(name)] == ["a"]
        wait_until(lambda: not any(w.name == f"{name}-gone" for w in stays.workers()), 60, "the end of the session")


def is_there(client: QueueClient, name: str) -> bool:
    return any(worker.name == name for worker in client.workers())
