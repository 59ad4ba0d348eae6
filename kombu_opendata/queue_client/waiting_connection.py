"""The queue client's connection: batches that are stored once, reads that wait and can be stopped."""

from __future__ import annotations

import math
from typing import Any, cast

from ..client.session.broker_connection import BrokerConnection
from ..client.socket.framed_socket import Waker
from ..errors import BrokerStopping, MessageTooLarge, from_wire
from ..protocol.framing import frame
from ..protocol.messages import Failed
from ..protocol.queue_messages import Send, Sent, StopReading

#: how long after a read's time the broker is told to end it
_LATE_SECONDS = 0.25


class ClientConnection(BrokerConnection):
    """A connection that sends batches and waits for reads. One thread may wait; :meth:`stop_waiting` ends that.

    Attributes:
        stop: the next read, or the one that waits, is to be answered at once.
    """

    stop = False

    def send_messages(self, message: Send, timeout: float | None = None) -> Sent:
        """Store messages; returns when they are durable. Resumes do not store them twice.

        Raises:
            MessageTooLarge: they were not sent.
            OpenDataError, socket.timeout: as :meth:`call`.
        """
        with self._lock:
            for envelope, *_rest in message.messages:
                self._check_size(len(envelope), "message", "store large data elsewhere and send a reference")
            self._number(message)  # type: ignore[arg-type]
            try:
                return cast(Sent, self._exchange(message.rid, frame(message), timeout))
            except MessageTooLarge as exc:
                if len(message.messages) > 1 and exc.values.get("limit") != self._message_limit:
                    text = f"the batch of {len(message.messages)} messages is too large: send several; {exc.text}"
                    raise MessageTooLarge(text, **exc.values) from exc
                raise

    @property
    def _message_limit(self) -> int:
        return self.welcome.max_message_bytes if self.welcome is not None else 0

    def call_waiting(self, message: Any) -> Any:
        """As :meth:`call`, for an answer that comes late: the lock is free while this waits.

        Raises:
            OpenDataError: the broker's answer was an error, or the connection was closed or could not be resumed.
        """
        with self._lock:
            self._ensure_open()
            self._rid += 1
            rid = message.rid = self._rid
            data = frame(message)
            self._check_frame(data)
            self._unanswered[rid] = data
        wait_ms = getattr(message, "wait_ms", 0)
        deadline = self.clock.monotonic() + wait_ms / 1000 + _LATE_SECONDS if wait_ms else math.inf
        told = None  # the wire over which the broker was told that the time is over
        try:
            with self._lock:
                self._transmit(data)
                if self.stop:
                    self.send(StopReading(rid))
            while True:
                with self._lock:
                    answer = self._answers.pop(rid, None)
                    if type(answer) is Failed and answer.code == BrokerStopping.code:
                        self._unanswered[rid] = data  # its successor will answer
                        self._recover(BrokerStopping(answer.text))
                        continue
                    if answer is not None:
                        break
                    wire = self._ensure_open(max(self.options.resume_timeout, self.options.reconnect_timeout))
                    self.check_alive()
                    if rid in self._answers or self._wire is not wire:
                        continue
                    rest = deadline - self.clock.monotonic()
                    if rest <= 0 and wire is not told:  # after a break it was asked again, and waits from then on
                        told = wire
                        self.send(StopReading(rid))
                        continue
                    if self._waker is None:
                        self._waker = Waker()
                    waker = self._waker
                    seconds = min(wire.silence or math.inf, rest if rest > 0 else math.inf)
                if wire.wait(None if seconds == math.inf else seconds, waker=waker):
                    waker.clear()
        except BaseException:
            self._unanswered.pop(rid, None)
            self._answers.pop(rid, None)
            raise
        if type(answer) is Failed:
            raise from_wire(answer.code, answer.text, answer.values)
        return answer

    def stop_waiting(self) -> None:
        """Have the read that waits answered at once."""
        with self._lock:
            self.stop = True
            if self._wire is not None and not self.closed:
                for rid in list(self._unanswered):
                    self.send(StopReading(rid))

    def settle_held(self, outcome: int, lease: tuple[str, int, int]) -> bool:
        """End a lease of channel 1, if the session holds it; returns whether it does."""
        with self._lock:
            is_held = lease in self.session.held
            if is_held:
                self.settle(1, outcome, [lease])
            return is_held

    def forget_held(self, lease: tuple[str, int, int]) -> None:
        """Somebody else ended this lease for the session."""
        with self._lock:
            self.session.held.pop(lease, None)

    def take_event(self) -> Any:
        """The next delivery or cancellation that came in; None if there is none."""
        with self._lock:
            return self.events.popleft() if self.events else None

    def put_back_event(self, event: Any) -> None:
        """Nobody took it after all."""
        with self._lock:
            self.events.appendleft(event)
