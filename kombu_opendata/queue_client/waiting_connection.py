"""The queue client's connection: batches that are stored once, reads that wait and can be stopped."""

from __future__ import annotations

import math
from typing import Any, cast

from ..client.session.broker_connection import BrokerConnection
from ..errors import BrokerStopping, MessageTooLarge, from_wire
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
        with self.link.lock:
            for envelope, *_rest in message.messages:
                self.io.check_size(len(envelope))
            try:
                return cast(Sent, self.io.exchange(message, self.session.start_publish, timeout))
            except MessageTooLarge as exc:
                if len(message.messages) > 1 and exc.values.get("limit") != self.io.max_message_bytes:
                    text = f"the batch of {len(message.messages)} messages is too large: send several; {exc.text}"
                    raise MessageTooLarge(text, **exc.values) from exc
                raise

    def call_waiting(self, message: Any) -> Any:
        """As :meth:`call`, for an answer that comes late: the lock is free while this waits.

        Raises:
            OpenDataError: the broker's answer was an error, or the connection was closed or could not be resumed.
        """
        link, io, session = self.link, self.io, self.session
        with link.lock:
            link.ensure_open()
            data = session.start_request(message)
            rid = message.rid
        wait_ms = getattr(message, "wait_ms", 0)
        deadline = self.clock.monotonic() + wait_ms / 1000 + _LATE_SECONDS if wait_ms else math.inf
        told = None  # the socket over which the broker was told that the time is over
        try:
            with link.lock:
                io.check_frame(data)
                io.transmit(data)
                if self.stop:
                    io.send(StopReading(rid))
            while True:
                with link.lock:
                    answer = session.answers.pop(rid, None)
                    if type(answer) is Failed and answer.code == BrokerStopping.code:
                        session.unanswered[rid] = data  # its successor will answer
                        link.recover(BrokerStopping(answer.text))
                        continue
                    if answer is not None:
                        break
                    current = link.ensure_open(link.max_patience)
                    io.check_alive()
                    if rid in session.answers or link.current is not current:
                        continue
                    rest = deadline - self.clock.monotonic()
                    if rest <= 0 and current is not told:  # after a break it was asked again, and waits from then on
                        told = current
                        io.send(StopReading(rid))
                        continue
                    waker = link.make_waker()
                    seconds = min(current.silence or math.inf, rest if rest > 0 else math.inf)
                if current.wait(None if seconds == math.inf else seconds, waker=waker):
                    waker.clear()
        except BaseException:
            session.unanswered.pop(rid, None)
            session.answers.pop(rid, None)
            raise
        if type(answer) is Failed:
            raise from_wire(answer.code, answer.text, answer.values)
        return answer

    def stop_waiting(self) -> None:
        """Have the read that waits answered at once."""
        with self.link.lock:
            self.stop = True
            if self.link.current is not None and not self.closed:
                for rid in list(self.session.unanswered):
                    self.io.send(StopReading(rid))

    def settle_held(self, outcome: int, lease: tuple[str, int, int]) -> bool:
        """End a lease of channel 1, if the session holds it; returns whether it does."""
        with self.link.lock:
            is_held = lease in self.session.held
            if is_held:
                self.settle(1, outcome, [lease])
            return is_held

    def forget_held(self, lease: tuple[str, int, int]) -> None:
        """Somebody else ended this lease for the session."""
        with self.link.lock:
            self.session.held.pop(lease, None)

    def take_event(self) -> Any:
        """The next delivery or cancellation that came in; None if there is none."""
        with self.link.lock:
            return self.events.popleft() if self.events else None

    def put_back_event(self, event: Any) -> None:
        """Nobody took it after all."""
        with self.link.lock:
            self.events.appendleft(event)
