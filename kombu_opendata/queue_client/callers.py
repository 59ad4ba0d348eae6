"""How the calls of a client reach the broker: blocking, or on threads for a program with an event loop.

The async client runs blocking calls on threads of its own. What makes a call good (resuming, publishing exactly once,
settling what is unconfirmed) is long and subtle, and exists once, in :mod:`kombu_opendata.client`; a thread's hop costs
less than the commit that a call waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from ..client.clock import SYSTEM, Clock
from ..client.connection import BrokerConnection
from ..client.options import DEFAULTS, Options
from ..url import Address, parse

T = TypeVar("T")


class Calls:
    """One connection, opened by the first call."""

    def __init__(self, url: str, options: Options = DEFAULTS, *, clock: Clock = SYSTEM) -> None:
        self.address: Address = parse(url)
        self.options = options
        self.clock = clock
        self._connection = BrokerConnection(self.address, options, clock=clock)

    def call(self, message: Any, timeout: float | None = None) -> Any:
        """Send a request and wait for its answer.

        Raises:
            OpenDataError: the broker's answer was an error, or the connection could not be resumed.
        """
        return self._connection.call(message, timeout)

    def close(self) -> None:
        self._connection.close()


class AsyncCalls:
    """The same on a thread, for an event loop."""

    def __init__(self, url: str, options: Options = DEFAULTS, *, clock: Clock = SYSTEM) -> None:
        self._blocking = Calls(url, options, clock=clock)
        self._lane = ThreadPoolExecutor(1, "opendata-calls")

    async def call(self, message: Any, timeout: float | None = None) -> Any:
        """See :meth:`Calls.call`."""
        return await self._run(self._blocking.call, message, timeout)

    async def _run(self, function: Callable[..., T], *args: Any) -> T:
        future: Future[T] = self._lane.submit(function, *args)
        return await asyncio.wrap_future(future)

    async def close(self) -> None:
        await self._run(self._blocking.close)
        self._lane.shutdown(wait=False)
