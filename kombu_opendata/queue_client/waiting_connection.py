"""Connection of the queue client, which sends batches that are stored once and waits for interruptible reads."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, cast

from ..client.session.broker_connection import BrokerConnection
from ..errors import BrokerStopping, MessageTooLarge, from_wire
from ..protocol.messages import Failed
from ..protocol.messages.queue_messages import Send, Sent, StopReading

#: seconds after its deadline at which a read is interrupted
_LATE_SECONDS = 0.25


class ClientConnection(BrokerConnection):
    """Connection that sends batches and waits for reads. One thread may wait; :meth:`stop_waiting` ends its wait.

    Attributes:
        stop: whether the next read, or the waiting one, must return immediately.
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

    def call_waiting(self, message: Any) -> Any:
        """Send a request as :meth:`call`, for a reply that arrives late: the lock is free during the wait.

        Raises:
            OpenDataError: the broker's reply is an error, or the connection was closed or could not be resumed.
        """
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
        return answer

    def _wait_for(self, rid: int, data: bytes, deadline: float) -> Any:
        """Return the reply to a request; from the deadline on, the broker is requested to reply immediately."""
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
        """Forget a lease that was ended in another way."""
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
