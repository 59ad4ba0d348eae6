"""A client's connection to a broker: calls, publishes, settlements and deliveries over one resumable session.

All methods may be used from several threads; one that waits for deliveries does not keep the others from sending. After
a fork the child has an empty session of its own, and what the parent held stays the parent's.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import Any, Optional, cast

from ..errors import BrokerStopping, ConnectionLost, MessageTooLarge, OpenDataError, from_wire
from ..protocol.framing import frame
from ..protocol.messages import (
    Cancel,
    CloseChannel,
    Consume,
    Delivery,
    Failed,
    Get,
    Goodbye,
    Got,
    Lease,
    Ok,
    Outcome,
    Publish,
    Published,
    Qos,
    QueueInfo,
)
from .link import Event, Link
from .wire import Waker, Wire


class BrokerConnection(Link):
    """A connection to a broker.

    Attributes:
        client: the object that opened it (Kombu asks its channels for it).
        channels: by number, whatever :meth:`add_channel` was given.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.client: Any = None
        self.channels: dict[int, Any] = {}
        super().__init__(*args, **kwargs)

    @property
    def connected(self) -> bool:
        """Not closed. A connection whose socket broke is still connected: its next use resumes it."""
        return not self.closed

    def fileno(self) -> int:
        """The descriptor to poll for reading; another one after a resume."""
        with self._lock:
            return self._ensure_open().fd

    # ------------------------------------------------------------ requests
    def call(self, message: Any, timeout: Optional[float] = None) -> Any:
        """Send a request and wait for its answer; deliveries that come in meanwhile are kept in ``events``.

        Raises:
            OpenDataError: the broker's answer was an error, or the connection could not be resumed.
            socket.timeout: no answer in time; what the request asked for may still happen.
        """
        with self._lock:
            self._rid += 1
            message.rid = self._rid
            answer = self._exchange(message.rid, frame(message), timeout)
            if not isinstance(message, Get):
                name = answer.queue if isinstance(answer, QueueInfo) else ""
                self.session.topology.note(message, name)
            return answer

    def publish(self, message: Publish, timeout: Optional[float] = None) -> Published:
        """Store a message; returns when it is durable. Resumes do not store it twice.

        Raises:
            MessageTooLarge: it was not sent.
            OpenDataError, socket.timeout: as :meth:`call`.
        """
        with self._lock:
            if self.welcome is None:
                self._ensure_open()
            size, limit = len(message.envelope), self._max_message_bytes()
            if size > limit:
                raise MessageTooLarge(
                    f"the message has {size} bytes and the broker's limit is {limit}: store large data elsewhere and "
                    "send a reference, or raise the broker's maximum",
                    size=size,
                    limit=limit,
                )
            session = self.session
            session.last_seq += 1
            self._rid += 1
            message.seq = session.last_seq
            message.rid = self._rid
            return cast(Published, self._exchange(self._rid, frame(message), timeout))

    def _max_message_bytes(self) -> int:
        assert self.welcome is not None
        return self.welcome.max_message_bytes

    def _exchange(self, rid: int, data: bytes, timeout: Optional[float]) -> Any:
        answers, unanswered = self._answers, self._unanswered
        deadline = None if timeout is None else self.clock.monotonic() + timeout
        self._ensure_open()
        self._check_frame(data)
        unanswered[rid] = data
        try:
            self._transmit(data)
            while True:
                while rid not in answers:
                    if deadline is not None:
                        self._wait_until(deadline)
                    self._pump()
                answer = answers.pop(rid)
                if not (type(answer) is Failed and answer.code == BrokerStopping.code) or self._closing:
                    break
                unanswered[rid] = data  # its successor will answer
                self._recover(BrokerStopping(answer.text))
        except BaseException:
            unanswered.pop(rid, None)
            answers.pop(rid, None)
            raise
        finally:
            self._tell_buffered()
        if type(answer) is Failed:
            raise from_wire(answer.code, answer.text, answer.values)
        return answer

    def _check_frame(self, data: bytes) -> None:
        limit = self.welcome.max_frame_bytes if self.welcome else 0
        if len(data) - 4 > limit:
            raise MessageTooLarge(
                f"the request has {len(data) - 4} bytes and the broker's limit for a frame is {limit}",
                size=len(data) - 4,
                limit=limit,
            )

    def _wait_until(self, deadline: float) -> None:
        rest = deadline - self.clock.monotonic()
        if rest <= 0 or not self._ensure_open().wait(rest):
            raise socket.timeout("the broker did not answer in time")

    def _tell_buffered(self) -> None:
        if self.events:
            if self.observer is not None:
                self.observer.events_buffered()
            if self._waker is not None:
                self._waker.wake()

    def send(self, message: Any) -> None:
        """Send a message that has no answer."""
        with self._lock:
            self._transmit(frame(message))

    # ------------------------------------------------------------ leases
    def settle(self, channel: int, outcome: int, leases: list[Lease]) -> None:
        """End leases; sent at once and kept until the broker confirms it. Never blocks under an event loop."""
        with self._lock:
            if self.closed:
                raise ConnectionLost("the connection is closed")
            data = frame(self.session.settle(outcome, channel, leases))
            wire = self._wire
            if wire is None:
                if not self._known or self.observer is None:
                    self._ensure_open()  # the Hello carries it
                return
            self._settle_on(wire, data)

    def _settle_on(self, wire: Wire, data: bytes) -> None:
        try:
            sent = wire.send_now(data)
            if sent != len(data):
                self._push(wire, memoryview(data)[sent:])
        except OSError as exc:
            self._break(exc)
        except OpenDataError as exc:
            self._fail(exc)
        except BaseException:
            self._drop()
            raise

    def _break(self, cause: BaseException) -> None:
        """The socket broke outside of a call: resume, by the observer if there is one."""
        if self.observer is None:
            return self._recover(cause)
        last_word = self._lose()
        if last_word is not None:
            self._give_up(last_word)
        self.observer.connection_lost()
        if self.events:
            self.observer.events_buffered()

    # ------------------------------------------------------------ consuming
    def consume(self, message: Consume) -> None:
        """Start a consumer."""
        key = (message.channel, message.tag)
        with self._lock:
            self.session.consumers[key] = message  # its deliveries may come before the answer
            try:
                self.call(message)
            except BaseException:
                self.session.consumers.pop(key, None)
                raise

    def cancel(self, channel: int, tag: str) -> None:
        """Stop a consumer. What it was sent and nobody has taken goes back to its queue."""
        with self._lock:
            consumer = self.session.consumers.get((channel, tag))
            if consumer is None:
                return
            self.call(Cancel(0, channel, tag))
            self.session.cancelled(channel, tag)
            unread = [e for e in self.events if isinstance(e, tuple) and e[0] == channel and e[1] == tag]
            if not unread:
                return
            kept = [e for e in self.events if not (isinstance(e, tuple) and e[0] == channel and e[1] == tag)]
            self.events = deque(kept)
            if not consumer.no_ack:
                self.settle(channel, Outcome.RELEASE, [(e[2], e[3], e[4]) for e in unread])

    def get(self, channel: int, queue: str, *, no_ack: bool) -> Optional[Delivery]:
        """Claim one message, or None."""
        with self._lock:
            answer: Got = self.call(Get(0, channel, queue, no_ack))
            if answer.delivery is not None and no_ack:
                self.session.held.pop(answer.delivery[2:5], None)
            return answer.delivery

    def set_prefetch(self, channel: int, count: int) -> None:
        """How many unsettled deliveries the channel may hold; 0 is no limit."""
        with self._lock:
            self.session.prefetch[channel] = count
            self.send(Qos(0, channel, count))

    # ------------------------------------------------------------ events
    def read_available(self) -> None:
        """Take in what the socket holds, without waiting; a break is left to the observer."""
        with self._lock:
            wire = self._wire
            if wire is None:
                return
            try:
                messages = wire.receive_now()
                if messages:
                    self._dispatch(messages)
            except OSError as exc:
                self._break(exc)
            except OpenDataError as exc:
                self._fail(exc)
            except BaseException:
                self._drop()
                raise

    def drain(self, timeout: Optional[float] = None) -> None:
        """Wait until there is an event; None waits for ever.

        Raises:
            socket.timeout: there is none in time.
        """
        if self.events:
            return
        deadline = None if timeout is None else self.clock.monotonic() + timeout
        while True:
            with self._lock:
                wire = self._ensure_open()
                self.read_available()
                if self.events:
                    return
                if self._wire is not wire:
                    continue  # it broke and was resumed just now
                if self._waker is None:
                    self._waker = Waker()
                waker = self._waker
            rest = None if deadline is None else deadline - self.clock.monotonic()
            if (rest is not None and rest <= 0) or not wire.wait(rest, waker=waker):
                raise socket.timeout("no event in time")
            waker.clear()

    # ------------------------------------------------------------ channels and the end
    def add_channel(self, channel: Any) -> int:
        """Give a channel the lowest free number, from 1 up."""
        with self._lock:
            number = next(n for n in range(1, len(self.channels) + 2) if n not in self.channels)
            self.channels[number] = channel
            return number

    def close_channel(self, number: int) -> None:
        """End a channel's consumers and give back what it holds."""
        with self._lock:
            if self.channels.pop(number, None) is None:
                return
            self.events = deque(e for e in self.events if _channel_of(e) != number)
            self.session.close_channel(number)
            if self._wire is not None and not self.closed:
                self.call(CloseChannel(0, number))
                # what came in before the answer is among what the broker took back
                self.events = deque(e for e in self.events if _channel_of(e) != number)
                self.session.close_channel(number)

    def after_fork_in_child(self) -> None:
        super().after_fork_in_child()
        for channel in self.channels.values():
            channel.after_fork_in_child()

    def close(self) -> None:
        """End the session: settlements are delivered, leases go back at once. Errors of the ending are not raised."""
        with self._lock:
            if self.closed:
                return
            try:
                if self._wire is None and self._known and self.session.unconfirmed:
                    self.resume_once()
                self._closing = True
                if self._wire is not None:
                    self._rid += 1
                    answer = self._exchange(self._rid, frame(Goodbye(self._rid)), self.options.close_timeout)
                    assert isinstance(answer, Ok)
            except (OpenDataError, OSError):
                pass
            finally:
                self._shut()

    def abandon(self) -> None:
        """End the session without waiting for anything."""
        with self._lock:
            if not self.closed and self._wire is not None:
                try:
                    self._wire.send_now(frame(Goodbye(self._rid + 1)))
                except OSError:
                    pass
            self._shut()


def _channel_of(event: Event) -> int:
    return event[0] if isinstance(event, tuple) else event.channel
