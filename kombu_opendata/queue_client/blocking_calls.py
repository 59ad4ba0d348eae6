"""How the calls of a client reach the broker: blocking, or on threads for a program with an event loop.

The async client runs blocking calls on threads of its own. What makes a call good (resuming, publishing exactly once,
settling what is unconfirmed) is long and subtle, and exists once, in :mod:`kombu_opendata.client`; a thread's hop costs
less than the commit that a call waits for.

A read that waits has a connection of its own meanwhile, as has each subscription, so no call waits for another's.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import msgspec

from ..client.clock import SYSTEM, Clock
from ..client.connection_options import DEFAULTS, Options
from ..errors import ConnectionLost, OpenDataError, RequestError
from ..protocol import messages as m
from ..protocol.framing import client_messages
from ..protocol.messages import Cancelled, Delivery, Lease
from ..protocol.queue_messages import Read, ReadMessages, Send, Sent
from ..url import Address, parse
from .waiting_connection import ClientConnection

T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode

#: connections that are kept for the next read that waits
_IDLE_CONNECTIONS = 4
#: reads of one async client that may wait at a time; further ones wait for a thread
MAX_WAITING = 64
#: long calls of one async client, and consumers that start, at a time
_MAX_APART = 8
_TAG = "queue-client"
_CLOSED = "the client is closed: make a new one"


class Calls:
    """The connections of a client, opened by need."""

    def __init__(self, url: str, options: Options = DEFAULTS, *, clock: Clock = SYSTEM) -> None:
        self.address: Address = parse(url)
        self.options = options
        self.clock = clock
        self._id = os.urandom(16)
        self._lock = threading.Lock()
        self._closed = False
        self._connection: ClientConnection | None = None
        self._idle: list[ClientConnection] = []
        self._waiting: dict[ClientConnection, Any] = {}
        self._subscriptions: set[Subscription] = set()

    # ------------------------------------------------------------ calls
    def call(self, message: Any) -> Any:
        """Send a request and wait for its answer.

        Raises:
            OpenDataError: the broker's answer was an error, or the connection could not be resumed.
        """
        check(message)
        return self._usable().call(message)

    def apply(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call one of the functions of :mod:`kombu_opendata.client` that take a connection first."""
        return function(self._usable(), *args, **options)

    def send(self, message: Send) -> Sent:
        """Store messages; returns when they are durable."""
        return self._usable().send_messages(message)

    def read(self, message: Read) -> ReadMessages:
        """Read, on a connection that nothing else uses meanwhile if it may wait."""
        answer: ReadMessages = self.call_apart(message) if message.wait_ms else self.call(message)
        return answer

    def call_apart(self, message: Any) -> Any:
        """A call that may take long, on a connection that nothing else uses meanwhile."""
        check(message)
        connection = self._borrow(message)
        try:
            answer = connection.call_waiting(message)
        except OpenDataError:
            self._give_back(connection)
            raise
        except BaseException:
            with self._lock:
                self._waiting.pop(connection, None)
            connection.abandon()
            raise
        self._give_back(connection)
        return answer

    def stop_waiting(self, message: Read | None = None) -> None:
        """Have this read that waits answered now, or all of them."""
        with self._lock:
            waiting = [connection for connection, read in self._waiting.items() if message is None or message is read]
        for connection in waiting:
            connection.stop_waiting()

    def subscribe(self, queue: str, prefetch: int) -> Subscription:
        """Start a consumer, on a connection of its own."""
        connection = self._new()
        try:
            subscription = Subscription(self, connection, queue, prefetch)
        except BaseException:
            connection.abandon()
            raise
        with self._lock:
            self._subscriptions.add(subscription)
        return subscription

    def ended(self, subscription: Subscription) -> None:
        """A subscription was closed."""
        with self._lock:
            self._subscriptions.discard(subscription)

    # ------------------------------------------------------------ connections
    def connect(self) -> None:
        """Connect now, instead of with the first call.

        Raises:
            OpenDataError: nobody answers, or the broker refuses.
        """
        self._usable().connect()

    def _new(self) -> ClientConnection:
        if self._closed:
            raise RequestError(_CLOSED)
        connection = ClientConnection(self.address, self.options, clock=self.clock)
        connection.session.client = self._id
        return connection

    def _usable(self) -> ClientConnection:
        """The connection; a new one after one that was lost for good."""
        with self._lock:
            if self._connection is None or self._connection.closed:
                self._connection = self._new()
            return self._connection

    def _borrow(self, message: Any) -> ClientConnection:
        with self._lock:
            connection = self._idle.pop() if self._idle else self._new()
            connection.stop = False
            self._waiting[connection] = message
            return connection

    def _give_back(self, connection: ClientConnection) -> None:
        with self._lock:
            self._waiting.pop(connection, None)
            keep = not self._closed and not connection.closed and len(self._idle) < _IDLE_CONNECTIONS
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()

    def close(self) -> None:
        """End the sessions. What a subscription holds goes back at once, what was read when its time ends."""
        with self._lock:
            self._closed = True
            subscriptions, idle = list(self._subscriptions), list(self._idle)
            connection = self._connection
            self._idle.clear()
        self.stop_waiting()
        for subscription in subscriptions:
            subscription.close()
        for each in (*idle, connection):
            if each is not None:
                each.close()


class Subscription:
    """A consumer: messages that the broker pushes, held by this connection until they are settled."""

    def __init__(self, calls: Calls, connection: ClientConnection, queue: str, prefetch: int) -> None:
        self._calls = calls
        self._connection = connection
        self.queue = queue
        self.ended = ""  # why there will be no more
        connection.connect()
        connection.set_prefetch(1, prefetch)
        connection.consume(m.Consume(0, 1, _TAG, queue, False, False, {}))

    def next(self, seconds: float | None) -> Delivery | None:
        """The next message; None if there is none in time, or if ``ended`` says why there will be none.

        Raises:
            ConnectionLost: it could not be resumed.
        """
        while not self.ended:
            event = self._connection.take_event()
            if isinstance(event, Cancelled):
                self.ended = event.reason
            elif event is not None:
                found: Delivery = event
                return found
            else:
                try:
                    self._connection.drain(seconds)
                except TimeoutError:
                    return None
                except ConnectionLost:
                    if not self.ended:
                        raise
        return None

    def put_back(self, delivery: Delivery | None) -> None:
        """Nobody took it after all: it is the next one again."""
        if delivery is not None:
            self._connection.put_back_event(delivery)

    def settle(self, outcome: int, lease: Lease) -> bool:
        """End a lease that this connection holds; returns whether it does."""
        if self.ended == "closed":
            raise RequestError("the iterator of these messages is closed, and they went back to their queue")
        return self._connection.settle_held(outcome, lease)

    def forget(self, lease: Lease) -> None:
        """A call that named the lease has ended it."""
        self._connection.forget_held(lease)

    def close(self) -> None:
        """Stop; what is held goes back, at no cost of an attempt."""
        if self.ended != "closed":
            self.ended = "closed"
            self._calls.ended(self)
            self._connection.close()


class AsyncCalls:
    """The same on threads, for an event loop: one for the calls, others for what waits."""

    def __init__(self, url: str, options: Options = DEFAULTS, *, clock: Clock = SYSTEM) -> None:
        self._blocking = Calls(url, options, clock=clock)
        self._lane = ThreadPoolExecutor(1, "opendata-calls")
        self._waiting = ThreadPoolExecutor(MAX_WAITING, "opendata-waits")
        self._apart = ThreadPoolExecutor(_MAX_APART, "opendata-apart")
        self._closed = False

    @property
    def clock(self) -> Clock:
        return self._blocking.clock

    @property
    def options(self) -> Options:
        return self._blocking.options

    async def call(self, message: Any) -> Any:
        """See :meth:`Calls.call`. A call that is cancelled may be done all the same."""
        return await run(self._threads(), self._blocking.call, message)

    async def apply(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """See :meth:`Calls.apply`."""
        return await run(self._threads(), partial(self._blocking.apply, function, *args, **options))

    async def stop_waiting(self) -> None:
        """See :meth:`Calls.stop_waiting`."""
        await run(self._threads(), self._blocking.stop_waiting)

    async def call_apart(self, message: Any) -> Any:
        """See :meth:`Calls.call_apart`."""
        return await run(self._threads(self._apart), self._blocking.call_apart, message)

    async def send(self, message: Send) -> Sent:
        """See :meth:`Calls.send`."""
        return await run(self._threads(), self._blocking.send, message)

    async def read(self, message: Read) -> ReadMessages:
        """See :meth:`Calls.read`. What a cancelled one got goes back, at no cost of an attempt."""

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
        from ..protocol.queue_messages import Ending, SettleMessages

        items = [(row[0], row[1]) for row in answer.messages]
        if items:
            self._blocking.call(SettleMessages(0, queue, Ending.RELEASE, items))

    async def subscribe(self, queue: str, prefetch: int) -> AsyncSubscription:
        """See :meth:`Calls.subscribe`."""
        started = await run(
            self._threads(self._apart), self._blocking.subscribe, queue, prefetch, undo=Subscription.close
        )
        return AsyncSubscription(started, self._lane)

    async def close(self) -> None:
        """See :meth:`Calls.close`."""
        if self._closed:
            return
        self._closed = True
        await run(self._lane, self._blocking.close)
        self._lane.shutdown(wait=False)
        self._waiting.shutdown(wait=False)
        self._apart.shutdown(wait=False)

    def _threads(self, others: ThreadPoolExecutor | None = None) -> ThreadPoolExecutor:
        if self._closed:
            raise RequestError(_CLOSED)
        return others or self._lane


class AsyncSubscription:
    """A consumer whose waiting has a thread of its own."""

    def __init__(self, blocking: Subscription, lane: ThreadPoolExecutor) -> None:
        self.blocking = blocking
        self._lane = lane
        self._thread = ThreadPoolExecutor(1, "opendata-consumes")

    @property
    def ended(self) -> str:
        return self.blocking.ended

    async def next(self, seconds: float | None) -> Delivery | None:
        """See :meth:`Subscription.next`."""
        return await run(self._thread, self.blocking.next, seconds, undo=self.blocking.put_back)

    async def settle(self, outcome: int, lease: Lease) -> bool:
        """See :meth:`Subscription.settle`."""
        return await run(self._lane, self.blocking.settle, outcome, lease)

    def forget(self, lease: Lease) -> None:
        """See :meth:`Subscription.forget`."""
        self.blocking.forget(lease)

    async def close(self) -> None:
        """See :meth:`Subscription.close`."""
        if self.ended != "closed":
            await run(self._lane, self.blocking.close)
        self._thread.shutdown(wait=False)


def check(message: Any) -> None:
    """Refuse a request that the broker could not read, and for which it would close the connection.

    Raises:
        RequestError: a value of the wrong type, or a text that has no UTF-8 form.
    """
    try:
        client_messages.decode(_encode(message))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise RequestError(f"an argument can't be sent: {exc}") from exc


async def run(
    threads: ThreadPoolExecutor, function: Callable[..., T], *args: Any, undo: Callable[[T], object] | None = None
) -> T:
    """Call it on a thread. ``undo`` gets the result that came too late for who was cancelled."""
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
