"""The async client: the calls of the blocking one, with their types, on threads."""

from __future__ import annotations

import asyncio
import inspect
import threading
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any, assert_type

import pytest

from kombu_opendata import AsyncQueueClient, QueueClient
from kombu_opendata.errors import RequestError
from kombu_opendata.protocol.messages import FailuresRetried
from kombu_opendata.queue_client import Message
from tests.support.waiting import turns


def calls_of(kind: type) -> dict[str, Callable[..., Any]]:
    return {name: call for name, call in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def test_both_clients_have_the_same_calls() -> None:
    asynchronous, blocking = calls_of(AsyncQueueClient), calls_of(QueueClient)
    del asynchronous["perform"], blocking["cancellable"]
    assert asynchronous.keys() == blocking.keys()
    for name, call in asynchronous.items():
        twin = blocking[name]
        assert inspect.signature(call).parameters.keys() == inspect.signature(twin).parameters.keys(), name
        assert inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call), name
        assert inspect.isasyncgenfunction(call) == inspect.isgeneratorfunction(twin), name
        assert inspect.getdoc(call), f"{name} has no docstring"


def test_the_calls_have_types_for_users() -> None:
    """mypy checks this program."""

    async def program() -> None:
        async with AsyncQueueClient(f"opendata+memory://{uuid.uuid4().hex}") as client:
            await client.create("q")
            assert_type(await client.send("q", {"a": 1}, delay=0), int)
            assert_type(await client.read("q", 30, qty=1), list[Message])
            assert_type(client.consume("q"), AsyncGenerator[Message, None])
            assert [message.id async for message in client.iter_messages(queues=["q"], limit=1)]
            with pytest.raises(TypeError, match="dalay"):
                await client.send("q", 1, dalay=2)  # type: ignore[call-arg]
            with pytest.raises(TypeError, match="quues"):
                await client.list_messages(quues=["q"])  # type: ignore[call-arg]

    asyncio.run(program())


def test_progress_is_reported_on_the_event_loop() -> None:
    reports: list[tuple[int, FailuresRetried]] = []

    async def program() -> None:
        async with AsyncQueueClient(f"opendata+memory://{uuid.uuid4().hex}") as client:
            await client.create("q")
            await client.send("q", 1)
            await client.reject("q", (await client.read("q"))[0])
            done = await client.retry_failures(progress=lambda done: reports.append((threading.get_ident(), done)))
            assert reports == [(threading.get_ident(), done)]

    asyncio.run(program())


def test_an_error_of_the_progress_ends_the_call() -> None:
    def progress(_done: FailuresRetried) -> None:
        raise LookupError("enough")

    async def program() -> None:
        async with AsyncQueueClient(f"opendata+memory://{uuid.uuid4().hex}") as client:
            await client.create("q")
            await client.send("q", 1)
            await client.reject("q", (await client.read("q"))[0])
            with pytest.raises(LookupError, match="enough"):
                await client.retry_failures(progress=progress)

    asyncio.run(program())


@pytest.mark.parametrize("limit", [1, 2])
def test_an_iterator_requests_no_page_before_its_items_are_needed(limit: int) -> None:
    requested: list[str] = []

    class Counting(AsyncQueueClient):
        async def perform(self, name: str, *args: Any) -> Any:
            requested.append(name)
            return await super().perform(name, *args)

    async def program() -> None:
        async with Counting(f"opendata+memory://{uuid.uuid4().hex}") as client:
            await client.create("q")
            await client.send_batch("q", range(5))
            del requested[:]
            number = 0
            async for _message in client.iter_messages(queues=["q"], limit=limit, order="asc"):
                number += 1
                assert requested == ["list_messages"] * -(-number // limit)
            assert number == 5
            assert [state.state async for state in client.iter_by_state("q", "ready")] == ["available"] * 5

    asyncio.run(program())


def test_a_cancelled_call_makes_no_further_request() -> None:
    with QueueClient(f"opendata+memory://{uuid.uuid4().hex}") as client:
        cancelled = client.cancellable()
        cancelled.heartbeat()
        cancelled.calls.cancel()
        for call in (cancelled.heartbeat, cancelled.list_messages):
            with pytest.raises(RequestError, match="cancelled"):
                call()
        client.heartbeat()


def test_a_read_that_is_cancelled_at_the_end_of_its_client_is_cancelled() -> None:
    async def program() -> None:
        client = AsyncQueueClient(f"opendata+memory://{uuid.uuid4().hex}")
        await client.create("q")
        ended = threading.Event()
        submitted = client.waiting_threads.submit

        def submit(call: Callable[..., Any], /, *args: Any) -> Any:
            def run() -> Any:
                try:
                    return call(*args)
                finally:
                    ended.wait(10)

            return submitted(run)

        client.waiting_threads.submit = submit  # type: ignore[method-assign, assignment]
        reading = asyncio.create_task(client.read_with_poll("q", max_poll_seconds=600))
        await turns()
        await client.close()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        ended.set()

    asyncio.run(program())
