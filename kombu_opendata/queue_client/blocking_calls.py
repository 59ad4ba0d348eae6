"""Connections of a blocking client, and its consumers.

Each waiting read and each consumer has a separate connection, so no call waits for the reply of another one.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import msgspec

from ..client.clock import SYSTEM, ClientClock
from ..client.connection_options import DEFAULTS, Options
from ..errors import ConnectionLost, OpenDataError, RequestError
from ..protocol import messages as m
from ..protocol.framing import client_messages
from ..protocol.messages import Cancelled, Delivery, Lease
from ..protocol.messages.queue_messages import Read, ReadMessages, Send, Sent
from ..url import Address, parse
from .waiting_connection import ClientConnection

_encode = msgspec.msgpack.Encoder().encode

#: limit for idle connections that are kept for further waiting reads
_IDLE_CONNECTIONS = 4
_TAG = "queue-client"
CLOSED = "the client is closed: make a new one"


class Calls:
    """Connections of a client, which are opened when they are needed."""

    def __init__(self, url: str, options: Options = DEFAULTS, *, clock: ClientClock = SYSTEM) -> None:
        self.address: Address = parse(url)
        self.options = options
        self.clock = clock
        self._id = os.urandom(16)
        self._lock = threading.RLock()  # a signal handler may interrupt the thread that holds it
        self._closed = False
        self._connection: ClientConnection | None = None
        self._idle: list[ClientConnection] = []
        self._waiting: dict[ClientConnection, Any] = {}
        self._subscriptions: set[Subscription] = set()

    # ------------------------------------------------------------ calls
    def call(self, message: Any) -> Any:
        """Send a request and wait for its reply.

        Raises:
            OpenDataError: the broker's reply is an error, or the connection could not be resumed.
        """
        check(message)
        return self._usable().call(message)

    def send(self, message: Send) -> Sent:
        """Store messages; return when they are durable."""
        return self._usable().send_messages(message)

    def read(self, message: Read) -> ReadMessages:
        """Read messages; a read that may wait uses a separate connection."""
        answer: ReadMessages = self.call_apart(message) if message.wait_ms else self.call(message)
        return answer

    def call_apart(self, message: Any) -> Any:
        """Send a request that may take long, on a separate connection."""
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
        """Make the broker reply to this waiting read immediately, or to all of them."""
        with self._lock:
            waiting = [(reader, read) for reader, read in self._waiting.items() if message is None or message is read]
        for connection, read in waiting:
            connection.stop_waiting(read)

    def subscribe(self, queue: str, prefetch: int) -> Subscription:
        """Start a consumer, on a separate connection."""
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
        """Forget a subscription that was closed."""
        with self._lock:
            self._subscriptions.discard(subscription)

    # ------------------------------------------------------------ connections
    def connect(self) -> None:
        """Connect immediately instead of with the first call.

        Raises:
            OpenDataError: no broker answers, or it refuses the login.
        """
        self._usable().connect()

    def _new(self) -> ClientConnection:
        if self._closed:
            raise RequestError(CLOSED)
        connection = ClientConnection(self.address, self.options, clock=self.clock)
        connection.session.client = self._id
        return connection

    def _usable(self) -> ClientConnection:
        """Return the connection; a new one if the last one was lost permanently."""
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
        """End the sessions.

        Messages of a subscription return to their queue immediately; messages of reads return when their visibility
        timeouts end.
        """
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
    """Consumer to which the broker pushes messages; its connection holds them until they are settled."""

    def __init__(self, calls: Calls, connection: ClientConnection, queue: str, prefetch: int) -> None:
        self._calls = calls
        self._connection = connection
        self.queue = queue
        self.ended = ""  # the reason why no more messages will arrive
        connection.connect()
        connection.set_prefetch(1, prefetch)
        connection.consume(m.Consume(0, 1, _TAG, queue, False, False, {}))

    def next(self, seconds: float | None) -> Delivery | None:
        """Return the next message; None if none arrived in time, or if ``ended`` is set.

        Raises:
            ConnectionLost: the connection could not be resumed.
        """
        while not self.ended:
            event = self._connection.take_event()
            if isinstance(event, Cancelled):
                self.ended = event.reason
            elif event is not None:
                delivery: Delivery = event
                return delivery
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
        """Put back a delivery that was not consumed, as the next one."""
        if delivery is not None:
            self._connection.put_back_event(delivery)

    def settle(self, outcome: int, lease: Lease) -> bool:
        """End a lease, if this connection holds it; return True if it does."""
        if self.ended == "closed":
            raise RequestError("the iterator of these messages is closed, and they have returned to their queue")
        return self._connection.settle_held(outcome, lease)

    def forget(self, lease: Lease) -> None:
        """Forget a lease that another call has ended."""
        self._connection.forget_held(lease)

    def close(self) -> None:
        """Close the consumer; its messages return to their queue, without counting an attempt."""
        if self.ended != "closed":
            self.ended = "closed"
            self._calls.ended(self)
            self._connection.close()


def check(message: Any) -> None:
    """Refuse a request that the broker could not decode, as it would close the connection.

    Raises:
        RequestError: a value has the wrong type, or a text can't be encoded as UTF-8.
    """
    try:
        client_messages.decode(_encode(message))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise RequestError(f"an argument can't be sent: {exc}") from exc
