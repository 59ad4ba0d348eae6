"""A client's connection to a broker: calls, publishes, settlements and deliveries over one resumable session.

All methods may be used from several threads; one that waits for deliveries does not keep the others from sending. After
a fork the child has an empty session of its own, and what the parent held stays the parent's.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from ...errors import OpenDataError
from ...protocol.framing import frame
from ...protocol.messages import Cancel, CloseChannel, Consume, Credit, Delivery, Get, Goodbye, Got, Ok, Outcome, Qos
from ..socket.framed_socket import Waker
from .publish_pipeline import Pipeline
from .stream import Event


class BrokerConnection(Pipeline):
    """A connection to a broker.

    Attributes:
        client: the object that opened it (Kombu asks its channels for it).
        channels: by number, whatever :meth:`add_channel` was given.
        gated: channels that grant the broker one delivery at a time, when they like.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.client: Any = None
        self.channels: dict[int, Any] = {}
        self.gated: list[Any] = []
        super().__init__(*args, **kwargs)

    @property
    def connected(self) -> bool:
        """Not closed. A connection whose socket broke is still connected: its next use resumes it."""
        return not self.closed

    def fileno(self) -> int:
        """The descriptor to poll for reading; another one after a resume."""
        with self._lock:
            return self._ensure_open().fd

    def with_socket(self, function: Callable[[int], None]) -> None:
        """Call it with the descriptor, if there is one now; it stays open meanwhile."""
        with self._lock:
            if self._wire is not None:
                function(self._wire.fd)

    # ------------------------------------------------------------ consuming
    def consume(self, message: Consume) -> None:
        """Start a consumer."""
        key = (message.channel, message.tag)
        with self._lock:
            self._ensure_open()  # a resume starts the session's consumers again
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

    def get(self, channel: int, queue: str, *, no_ack: bool) -> Delivery | None:
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
            if not self._will_resume():
                self.send(Qos(0, channel, count))

    def set_credit(self, channel: int, count: int) -> None:
        """How many more deliveries the channel's consumers may get, besides the prefetch limit."""
        with self._lock:
            self.session.credit[channel] = count
            if not self._will_resume():
                self.send(Credit(channel, count))

    def _will_resume(self) -> bool:
        """Whether an event loop is about to resume, which tells the broker all that the session knows."""
        return self._wire is None and self._known and self.observer is not None and not self.closed

    # ------------------------------------------------------------ events
    def drain(self, timeout: float | None = None) -> None:
        """Wait until there is an event; None waits for ever.

        Raises:
            socket.timeout: there is none in time.
        """
        if self.events:
            return
        deadline = None if timeout is None else self.clock.monotonic() + timeout
        while True:
            with self._lock:
                wire = self._ensure_open(max(self.options.resume_timeout, self.options.reconnect_timeout), deadline)
                self.check_alive()
                if self.events:
                    return
                if self._wire is not wire:
                    continue  # it broke just now
                if self._waker is None:
                    self._waker = Waker()
                waker = self._waker
            rest = None if deadline is None else deadline - self.clock.monotonic()
            if rest is not None and rest <= 0:
                raise TimeoutError("no event in time")
            limits = [limit for limit in (rest, wire.silence) if limit is not None]
            if wire.wait(min(limits, default=None), waker=waker):
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
        self.gated.clear()
        for channel in self.channels.values():
            channel.after_fork_in_child()

    def close(self) -> None:
        """End the session: settlements are delivered, leases go back at once. Errors of the ending are not raised.

        Raises:
            PublishFailed: publishes that nobody waited for were not confirmed. The session has ended all the same.
        """
        with self._lock:
            if self.closed:
                return self.raise_failures()
            try:
                self._close_pipeline()
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
            self.raise_failures()

    def abandon(self) -> None:
        """End the session without waiting for anything."""
        with self._lock:
            if not self.closed and self._wire is not None:
                with contextlib.suppress(OSError):
                    self._wire.send_now(frame(Goodbye(self._rid + 1)))
            self._shut()
            self.log_failures()


def _channel_of(event: Event) -> int:
    return event[0] if isinstance(event, tuple) else event.channel
