"""The sync client, and the async one behind the same calls, for each way to reach a broker."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import AsyncQueueClient, QueueClient

from ...support.processes import wait_until
from ..conftest import Reach

Opener = Callable[..., Any]


def options_of(reach: Reach) -> dict[str, Any]:
    """A client's options. A broker with users takes its time over each secret, and several connect at once."""
    tls = {"tls": reach.options["ssl"]} if "ssl" in reach.options else {}
    return {"connect_timeout": 60, **tls}


def wait_connected(client: Any, name: str) -> None:
    """Wait until a client of this name is connected: its waiting read, if that is its only call, is on the way."""
    wait_until(lambda: name in {worker.name for worker in client.workers()}, 60, f"the connection of {name}")


class Blocking:
    """An async client whose calls are waited for, so that a test is written once for both."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *args: Any, **options: Any) -> None:
        self._loop = loop
        self._client = AsyncQueueClient(*args, **options)

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._client, name)

        def call(*args: Any, **options: Any) -> Any:
            result = function(*args, **options)
            return self._iterate(result) if inspect.isasyncgen(result) else self._loop.run_until_complete(result)

        return call

    def _iterate(self, source: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._loop.run_until_complete(anext(source))
                except StopAsyncIteration:
                    return
        finally:
            self._loop.run_until_complete(source.aclose())  # type: ignore[attr-defined]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The two clients are the same code, so that the async one is seen with one way to reach a broker is enough.

    All of it over TCP with TLS takes long, and what TLS changes is below the client.
    """
    items[:] = [item for item in items if not _is_repetition(item)]
    for item in items:
        if "tls-" in item.name and item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.slow)


def _is_repetition(item: pytest.Item) -> bool:
    given: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return given.get("opener") == "async" and given["reach"].__name__ != "_unix"


@pytest.fixture(params=["sync", "async"])
def opener(request: pytest.FixtureRequest, reach: Reach, stack: ExitStack) -> Opener:
    """Opens clients of one kind: ``opener(name="reader")``."""
    options = options_of(reach)
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)

    def open_one(**more: Any) -> Any:
        if request.param == "sync":
            client: Any = QueueClient(reach.url, **options, **more)
        else:
            client = Blocking(loop, reach.url, **options, **more)
        stack.callback(client.close)
        return client

    return open_one


@pytest.fixture
def client(opener: Opener) -> Any:
    return opener(name="tester")


@pytest.fixture
def queue(client: Any, name: str) -> str:
    """A durable queue."""
    client.create(name)
    return name
