"""Connections of a client, and its consumers.

Each waiting read and each consumer has a separate connection, so no call waits for the reply of another one.
"""

from __future__ import annotations

import math
import os
import threading
from functools import partial
from typing import Any, cast

import msgspec

from ..client.client_clock import SYSTEM, ClientClock
from ..client.connection_options import DEFAULTS, Options
from ..client.session.broker_connection import BrokerConnection
from ..errors import BrokerStopping, ConnectionLost, MessageTooLarge, OpenDataError, RequestError, from_wire
from ..protocol import messages as m
from ..protocol.framing import Frame, client_messages
from ..protocol.header_types import base_value
from ..protocol.messages import Cancelled, Delivery, Failed, Lease, Read, ReadMessages, Send, Sent, StopReading
from ..protocol.messages.message_base import Reply, Request
from ..url import Address, parse

_encode = msgspec.msgpack.Encoder(enc_hook=base_value).encode

#: limit for idle connections that are kept for further waiting reads
_IDLE_CONNECTIONS = 4
#: seconds after its deadline at which a read is interrupted
_LATE_SECONDS = 0.25
_TAG = "queue-client"
CLOSED = "the client is closed: make a new one"


class ClientConnection(BrokerConnection):
    """Connection that sends batches and waits for reads. One thread may wait; :meth:`stop_waiting` ends its wait.

    If ``stop`` is set, the waiting read returns immediately, or else the next one.
    """

    stop = False

    def send_messages(self, message: Send, timeout: float | None = None) -> Sent:
        """Store messages; return when they are durable. A resume does not store them twice.

        Raises:
            MessageTooLarge: they were not sent.
            OpenDataError, socket.timeout: as :meth:`call`.
        """
        if (other := self.free()) is not self:
            return other.send_messages(message, timeout)
        with self.link.reentrance, self.link.lock:
            for envelope, *_rest in message.messages:
                self.io.check_size(len(envelope))
            try:
                return cast(Sent, self.io.exchange(message, self.session.start_publish, timeout))
            except MessageTooLarge as exc:
                if len(message.messages) > 1 and exc.values.get("limit") != self.io.max_message_bytes:
                    text = f"the batch of {len(message.messages)} messages is too large: send several; {exc.text}"
                    raise MessageTooLarge(text, **exc.values) from exc
                raise

    def call_waiting(self, message: Request[Reply]) -> Reply:
        """Send a request as :meth:`call`, but release the lock during the wait, because the reply may arrive late."""
        link, io, session = self.link, self.io, self.session
        with link.lock:
            link.ensure_open()
            data = session.start_request(message)
            rid = message.rid
        wait_ms = getattr(message, "wait_ms", 0)
        deadline = self.clock.monotonic() + wait_ms / 1000 + _LATE_SECONDS if wait_ms else math.inf
        try:
            with link.lock:
                io.check_frame(data)
                io.transmit(data)
                if self.stop:
                    io.send(StopReading(rid))
            answer = self._wait_for(rid, data, deadline)
        except BaseException:
            session.unanswered.pop(rid, None)
            session.answers.pop(rid, None)
            raise
        finally:
            link.reentrance.run()
        if type(answer) is Failed:
            raise from_wire(answer.code, answer.text, answer.values)
        return message.reply(answer)

    def _wait_for(self, rid: int, data: Frame, deadline: float) -> Any:
        """Return the reply to a read; after the deadline, request that the broker replies immediately."""
        link, io, session = self.link, self.io, self.session
        stopped_socket = None  # after a resume over another socket, the read waits again
        while True:
            with link.lock:
                answer = session.answers.pop(rid, None)
                if type(answer) is Failed and answer.code == BrokerStopping.code:
                    session.unanswered[rid] = data  # the next broker will answer
                    link.recover(BrokerStopping(answer.text))
                    continue
                if answer is not None:
                    return answer
                current = link.ensure_open(link.max_patience)
                io.check_alive()
                if rid in session.answers or link.current is not current:
                    continue
                rest = deadline - self.clock.monotonic()
                if rest <= 0 and current is not stopped_socket:
                    stopped_socket = current
                    io.send(StopReading(rid))
                    continue
                waker = link.make_waker()
                seconds = min(current.silence or math.inf, rest if rest > 0 else math.inf)
            link.reentrance.run()
            if current.wait(None if seconds == math.inf else seconds, waker=waker):
                waker.clear()

    def stop_waiting(self, message: Any) -> None:
        """Interrupt this waiting read. If the broker has replied already, the connection may serve another read."""
        if self.link.reentrance.is_entered():
            return self.link.reentrance.later(partial(self.stop_waiting, message))
        with self.link.lock:
            if message.rid and message.rid not in self.session.unanswered:
                return
            self.stop = True
            if message.rid and self.link.current is not None and not self.closed:
                self.io.send(StopReading(message.rid))

    def settle_held(self, outcome: int, lease: tuple[str, int, int]) -> bool:
        """End a lease of channel 1, if the session holds it; return True if it does."""
        self.link.reentrance.check()
        with self.link.reentrance, self.link.lock:
            is_held = lease in self.session.held
            if is_held:
                self._settle(1, outcome, [lease])
            return is_held

    def forget_held(self, lease: tuple[str, int, int]) -> None:
        """Forget a lease that another call has ended."""
        with self.link.lock:
            self.session.held.pop(lease, None)

    def take_event(self) -> Any:
        """Return the next received delivery or cancellation; None if there is none."""
        with self.link.lock:
            return self.events.popleft() if self.events else None

    def put_back_event(self, event: Any) -> None:
        """Put back an event that was not consumed, as the next one."""
        with self.link.lock:
            self.events.appendleft(event)


class ClientConnections:
    """Connections of a client, which are opened when they are needed."""

    def __init__(self, url: str, options: Options = DEFAULTS, *, clock: ClientClock = SYSTEM) -> None:
        self.address: Address = parse(url)
        self.options = options
        self.clock = clock
        self._id = os.urandom(16)
        self._lock = threading.RLock()  # a signal handler may interrupt the thread that holds it
        self._is_closed = False
        self._connection: ClientConnection | None = None
        self._idle: list[ClientConnection] = []
        self._waiting: dict[ClientConnection, Any] = {}
        self._subscriptions: set[Subscription] = set()

    def usable(self) -> ClientConnection:
        """Return the connection of short calls; a new one if the last one was lost permanently."""
        with self._lock:
            if self._connection is None or self._connection.closed:
                self._connection = self._new()
            return self._connection

    def connect(self) -> None:
        """Connect now, not with the first call; raise OpenDataError if no broker answers or it refuses the login."""
        self.usable().connect()

    def call_apart(self, message: Request[Reply]) -> Reply:
        """Send a request on a separate connection and wait for its reply."""
        with self._lock:
            connection = self._idle.pop() if self._idle else self._new()
            connection.stop = False
            self._waiting[connection] = message
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

    def _new(self) -> ClientConnection:
        if self._is_closed:
            raise RequestError(CLOSED)
        return ClientConnection(self.address, self.options, clock=self.clock, client_id=self._id)

    def _give_back(self, connection: ClientConnection) -> None:
        with self._lock:
            self._waiting.pop(connection, None)
            keep = not self._is_closed and not connection.closed and len(self._idle) < _IDLE_CONNECTIONS
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()

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

    def unsubscribed(self, subscription: Subscription) -> None:
        """Forget a subscription that was closed."""
        with self._lock:
            self._subscriptions.discard(subscription)

    def close(self) -> None:
        """End the sessions. Leases of reads last until their timeouts; messages of iterators return to their queues."""
        with self._lock:
            self._is_closed = True
            subscriptions, idle = list(self._subscriptions), list(self._idle)
            connection = self._connection
            self._idle.clear()
        self.stop_waiting()
        for subscription in subscriptions:
            subscription.close()
        for each in (*idle, connection):
            if each is not None:
                each.close()


class Calls:
    """Requests of a client, or of one call that another thread can cancel; ``waiting`` is its last waiting read."""

    def __init__(self, connections: ClientConnections) -> None:
        self.connections = connections
        self.waiting: Read | None = None
        self._refusal = ""

    def call(self, message: Request[Reply]) -> Reply:
        """Send a request and wait for its reply; raise OpenDataError if that is an error, or the connection is lost."""
        self._check(message)
        return unnumbered(self.connections.usable().call(message))

    def call_apart(self, message: Request[Reply]) -> Reply:
        self._check(message)
        return unnumbered(self.connections.call_apart(message))

    def send(self, message: Send) -> Sent:
        self._check()
        return self.connections.usable().send_messages(message)

    def read(self, message: Read) -> ReadMessages:
        """Read messages; a read that may wait uses a separate connection."""
        if message.wait_ms:
            self.waiting = message
        return self.call_apart(message) if message.wait_ms else self.call(message)

    def cancel(self, reason: str = "the call was cancelled") -> None:
        """Refuse further requests for this reason."""
        self._refusal = reason

    def _check(self, message: Any = None) -> None:
        """Raise RequestError if the caller was cancelled, or if the broker could not decode the request.

        The broker closes the connection after such a request.
        """
        if self._refusal:
            raise RequestError(self._refusal)
        try:
            if message is not None:
                client_messages.decode(_encode(message))
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as exc:
            raise RequestError(f"an argument can't be sent: {exc}") from exc


def unnumbered(answer: Reply) -> Reply:
    """Remove a reply's number, so that replies with equal values are equal."""
    answer.rid = 0
    return answer


class Subscription:
    """Consumer to which the broker pushes messages; its connection holds them until they are settled."""

    def __init__(self, connections: ClientConnections, connection: ClientConnection, queue: str, prefetch: int) -> None:
        self._connections = connections
        self._connection = connection
        self.queue = queue
        self.ended = ""  # the reason why no more messages will arrive
        connection.connect()
        connection.set_prefetch(1, prefetch)
        connection.consume(m.Consume(0, 1, _TAG, queue, False, False, {}))

    def next(self, seconds: float | None) -> Delivery | None:
        """Return the next message; None if none arrived in time, or if ``ended`` is set. Raises ConnectionLost."""
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
            self._connections.unsubscribed(self)
            self._connection.close()
