"""The connections of a blocking client, and its consumers.

A read that waits has a connection of its own, and so has each consumer, so no call waits for another one's answer.
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

#: how many connections are kept for further reads that wait
_IDLE_CONNECTIONS = 4
_TAG = "queue-client"
CLOSED = "the client is closed: make a new one"


class Calls:
    """The connections of a client, which are opened when they are needed."""

    def __init__(self, url: str, options: Options = DEFAULTS, *, clock: ClientClock = SYSTEM) -> None:
        self.address: Address = parse(url)
        self.options = options
        self.clock = clock
        self._id = os.urandom(16)
        self._lock = threading.RLock()  # a signal handler may interrupt its owner
        self._closed = False
        self._connection: ClientConnection | None = None
        self._idle: list[ClientConnection] = []
        self._waiting: dict[ClientConnection, Any] = {}
        self._subscriptions: set[Subscription] = set()

    # ------------------------------------------------------------ calls
    def call(self, message: Any) -> Any:
        """Send a request and wait for its answer.

        Raises:
            OpenDataError: the broker's answer is an error, or the connection could not be resumed.
        """
        check(message)
        return self._usable().call(message)

    def send(self, message: Send) -> Sent:
        """Store messages; returns when they are durable."""
        return self._usable().send_messages(message)

    def read(self, message: Read) -> ReadMessages:
        """Read; if the read may wait, on a connection of its own."""
        answer: ReadMessages = self.call_apart(message) if message.wait_ms else self.call(message)
        return answer

    def call_apart(self, message: Any) -> Any:
        """Make a call that may take long, on a connection of its own."""
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
        """Have this waiting read answered now, or all of them."""
        with self._lock:
            waiting = [(one, read) for one, read in self._waiting.items() if message is None or message is read]
        for connection, read in waiting:
            connection.stop_waiting(read)

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
        """Forget a subscription that was closed."""
        with self._lock:
            self._subscriptions.discard(subscription)

    # ------------------------------------------------------------ connections
    def connect(self) -> None:
        """Connect now and not with the first call.

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
        """The connection; a new one if the last one was lost for good."""
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

        What a subscription holds returns to its queue at once; what was read returns when its visibility timeout ends.
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
    """A consumer: the broker pushes messages to it, and its connection holds them until they are settled."""

    def __init__(self, calls: Calls, connection: ClientConnection, queue: str, prefetch: int) -> None:
        self._calls = calls
        self._connection = connection
        self.queue = queue
        self.ended = ""  # why no more messages will come
        connection.connect()
        connection.set_prefetch(1, prefetch)
        connection.consume(m.Consume(0, 1, _TAG, queue, False, False, {}))

    def next(self, seconds: float | None) -> Delivery | None:
        """The next message; None if none came in time, or if ``ended`` says why no more will come.

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
        """Make a delivery that nobody took the next one again."""
        if delivery is not None:
            self._connection.put_back_event(delivery)

    def settle(self, outcome: int, lease: Lease) -> bool:
        """End a lease, if this connection holds it; returns whether it does."""
        if self.ended == "closed":
            raise RequestError("the iterator of these messages is closed, and they have returned to their queue")
        return self._connection.settle_held(outcome, lease)

    def forget(self, lease: Lease) -> None:
        """Forget a lease that another call has ended."""
        self._connection.forget_held(lease)

    def close(self) -> None:
        """Stop; what is held returns to its queue, which costs no attempt."""
        if self.ended != "closed":
            self.ended = "closed"
            self._calls.ended(self)
            self._connection.close()


def check(message: Any) -> None:
    """Refuse a request that the broker could not decode, for which it would close the connection.

    Raises:
        RequestError: a value has the wrong type, or a text can't be encoded as UTF-8.
    """
    try:
        client_messages.decode(_encode(message))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise RequestError(f"an argument can't be sent: {exc}") from exc
