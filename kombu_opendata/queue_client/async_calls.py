"""Calls of an async client, on threads.

An async client runs blocking calls on its own threads. The code that resumes connections, publishes exactly once and
repeats unconfirmed settlements is long and subtle and exists only once, in :mod:`kombu_opendata.client`; the switch to
a thread costs less than the commit for which a call waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from ..client.clock import SYSTEM, ClientClock
from ..client.connection_options import DEFAULTS, Options
from ..errors import RequestError
from ..protocol.messages import Delivery, Lease
from ..protocol.messages.queue_messages import Ending, Read, ReadMessages, Send, Sent, SettleMessages
from .blocking_calls import CLOSED, Calls, Subscription

T = TypeVar("T")

#: limit for concurrent waiting reads of one client; further reads wait for a thread
MAX_WAITING = 64
#: limit for concurrent long calls and consumer starts of one client
_MAX_APART = 8


class AsyncCalls:
    """Connections of a client for an event loop: one thread makes the calls, others wait."""

    def __init__(self, url: str, options: Options = DEFAULTS, *, clock: ClientClock = SYSTEM) -> None:
        self._blocking = Calls(url, options, clock=clock)
        self._lane = ThreadPoolExecutor(1, "opendata-calls")
        self._waiting = ThreadPoolExecutor(MAX_WAITING, "opendata-waits")
        self._apart = ThreadPoolExecutor(_MAX_APART, "opendata-apart")
        self._closed = False

    @property
    def clock(self) -> ClientClock:
        return self._blocking.clock

    async def call(self, message: Any) -> Any:
        """Send a request as :meth:`Calls.call`. A cancelled call may still be executed."""
        return await run(self._threads(), self._blocking.call, message)

    async def stop_waiting(self) -> None:
        """Interrupt reads as :meth:`Calls.stop_waiting`."""
        await run(self._threads(), self._blocking.stop_waiting)

    async def call_apart(self, message: Any) -> Any:
        """Send a request as :meth:`Calls.call_apart`."""
        return await run(self._threads(self._apart), self._blocking.call_apart, message)

    async def send(self, message: Send) -> Sent:
        """Store messages as :meth:`Calls.send`."""
        return await run(self._threads(), self._blocking.send, message)

    async def read(self, message: Read) -> ReadMessages:
        """Read as :meth:`Calls.read`. Leases of a cancelled read are released, without counting an attempt."""

        def give_back(answer: ReadMessages) -> None:
            self._release(message.queue, answer)

        undo = None if message.pop else give_back
        if not message.wait_ms:
            return await run(self._threads(), self._blocking.read, message, undo=undo)
        try:
            return await run(self._threads(self._waiting), self._blocking.read, message, undo=undo)
        except asyncio.CancelledError:
            self._lane.submit(self._blocking.stop_waiting, message)
            raise

    def _release(self, queue: str, answer: ReadMessages) -> None:
        items = [(row[0], row[1]) for row in answer.messages]
        if items:
            self._blocking.call(SettleMessages(0, queue, Ending.RELEASE, items))

    async def subscribe(self, queue: str, prefetch: int) -> AsyncSubscription:
        """Start a consumer as :meth:`Calls.subscribe`."""
        started = await run(
            self._threads(self._apart), self._blocking.subscribe, queue, prefetch, undo=Subscription.close
        )
        return AsyncSubscription(started, self._lane)

    async def close(self) -> None:
        """Close the connections as :meth:`Calls.close`."""
        if self._closed:
            return
        self._closed = True
        await run(self._lane, self._blocking.close)
        self._lane.shutdown(wait=False)
        self._waiting.shutdown(wait=False)
        self._apart.shutdown(wait=False)

    def _threads(self, others: ThreadPoolExecutor | None = None) -> ThreadPoolExecutor:
        if self._closed:
            raise RequestError(CLOSED)
        return others or self._lane


class AsyncSubscription:
    """Consumer that waits on its own thread."""

    def __init__(self, blocking: Subscription, lane: ThreadPoolExecutor) -> None:
        self.blocking = blocking
        self._lane = lane
        self._thread = ThreadPoolExecutor(1, "opendata-consumes")

    @property
    def ended(self) -> str:
        return self.blocking.ended

    async def next(self, seconds: float | None) -> Delivery | None:
        """Return the next message as :meth:`Subscription.next`."""
        return await run(self._thread, self.blocking.next, seconds, undo=self.blocking.put_back)

    async def settle(self, outcome: int, lease: Lease) -> bool:
        """End a lease as :meth:`Subscription.settle`."""
        return await run(self._lane, self.blocking.settle, outcome, lease)

    def forget(self, lease: Lease) -> None:
        """Forget a lease as :meth:`Subscription.forget`."""
        self.blocking.forget(lease)

    async def close(self) -> None:
        """Close the consumer as :meth:`Subscription.close`."""
        if self.ended != "closed":
            await run(self._lane, self.blocking.close)
        self._thread.shutdown(wait=False)


async def run(
    threads: ThreadPoolExecutor, function: Callable[..., T], *args: Any, undo: Callable[[T], object] | None = None
) -> T:
    """Call a function on a thread. If the caller is cancelled during the call, ``undo`` receives the result."""
    future: Future[T] = threads.submit(function, *args)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if undo is not None:
            future.add_done_callback(lambda done: _undo(done, undo))
        raise


def _undo(done: Future[T], undo: Callable[[T], object]) -> None:
    if not done.cancelled() and done.exception() is None:
        undo(done.result())
