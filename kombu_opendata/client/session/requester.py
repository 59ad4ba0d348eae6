"""Requests and settlements over a link."""

from __future__ import annotations

from typing import Any, cast

from ...errors import BrokerStopping, ConnectionLost, MessageTooLarge, OpenDataError, RetryLater, from_wire
from ...protocol.framing import frame
from ...protocol.messages import Failed, Lease, Publish, Published, QueueInfo
from ..socket.framed_socket import Wire
from .resumable_socket import Link

#: leases that one Settle ends; the broker takes ten times as many
_LEASES = 10_000


class Requester(Link):
    """A link that asks and settles."""

    def call(self, message: Any, timeout: float | None = None) -> Any:
        """Send a request and wait for its answer; deliveries that come in meanwhile are kept in ``events``.

        Raises:
            OpenDataError: the broker's answer was an error, or the connection could not be resumed.
            socket.timeout: no answer in time; what the request asked for may still happen.
        """
        with self._lock:
            self._rid += 1
            message.rid = self._rid
            answer = self._exchange(message.rid, frame(message), timeout)
            self.session.topology.note(message, answer.queue if isinstance(answer, QueueInfo) else "")
            return answer

    def publish(self, message: Publish, timeout: float | None = None) -> Published:
        """Store a message; returns when it is durable. Resumes do not store it twice.

        Raises:
            MessageTooLarge: it was not sent.
            OpenDataError, socket.timeout: as :meth:`call`.
        """
        with self._lock:
            self._check_message(message)
            self._number(message)
            return cast(Published, self._exchange(message.rid, frame(message), timeout))

    def _check_size(self, size: int, what: str, instead: str) -> None:
        """Refuse what the broker would not take, before it is sent. It may open the connection: hold the lock."""
        if self.welcome is None:
            self._ensure_open()
        assert self.welcome is not None
        limit = self.welcome.max_message_bytes
        if size > limit:
            raise MessageTooLarge(
                f"the {what} has {size} bytes and the broker's limit is {limit}: {instead}, or raise the broker's "
                "--max-message-bytes",
                size=size,
                limit=limit,
            )

    def _check_message(self, message: Publish) -> None:
        self._check_size(len(message.envelope), "message", "store large data elsewhere and send a reference")

    def _number(self, message: Publish) -> None:
        session = self.session
        session.last_seq += 1
        self._rid += 1
        message.seq = session.last_seq
        message.rid = self._rid

    def _exchange(self, rid: int, data: bytes, timeout: float | None) -> Any:
        answers, unanswered = self._answers, self._unanswered
        deadline = None if timeout is None else self.clock.monotonic() + timeout
        if self._wire is None:
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
            if self.events:
                self._tell_buffered()
        if type(answer) is Failed:
            raise from_wire(answer.code, answer.text, answer.values)
        return answer

    def _check_frame(self, data: bytes) -> None:
        limit = self.welcome.max_frame_bytes if self.welcome is not None else 0
        if len(data) - 4 > limit:
            raise MessageTooLarge(
                f"the request has {len(data) - 4} bytes and the broker's limit for a frame is {limit}",
                size=len(data) - 4,
                limit=limit,
            )

    def _wait_until(self, deadline: float) -> None:
        rest = deadline - self.clock.monotonic()
        if rest <= 0 or not self._ensure_open().wait(rest):
            raise TimeoutError("the broker did not answer in time")

    def _tell_buffered(self) -> None:
        if self.events:
            if self.observer is not None:
                self.observer.events_buffered()
            if self._waker is not None:
                self._waker.wake()

    def read_available(self, *, resume: bool = True) -> None:
        """Take in what the socket holds, without waiting.

        A break is left to the observer. Without one it is resumed, blocking, or left to the next use.
        """
        with self._lock:
            wire = self._wire
            if wire is None:
                return
            try:
                messages = wire.receive_now()
                if messages:
                    self._dispatch(messages)
            except (OSError, RetryLater) as exc:
                self._break(exc, resume=resume)
            except OpenDataError as exc:
                self._give_up(exc)
            except BaseException:
                self._drop()
                raise

    def check_alive(self) -> None:
        """Look whether the broker was silent for two heartbeats; if so, the connection is resumed."""
        with self._lock:
            self.read_available(resume=False)
            wire = self._wire
            if wire is not None and wire.is_silent:
                self._break(TimeoutError(wire.silent_text), resume=False)

    def send(self, message: Any) -> None:
        """Send a message that has no answer."""
        with self._lock:
            self._transmit(frame(message))

    # ------------------------------------------------------------ leases
    def settle(self, channel: int, outcome: int, leases: list[Lease]) -> None:
        """End leases; sent at once and kept until the broker confirms it. Never blocks under an event loop."""
        if len(leases) > _LEASES:
            for start in range(0, len(leases), _LEASES):
                self.settle(channel, outcome, leases[start : start + _LEASES])
            return
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
            self._push(wire, data)
        except OSError as exc:
            self._break(exc)
        except OpenDataError as exc:
            self._fail(exc)
        except BaseException:
            self._drop()
            raise

    def _break(self, cause: BaseException, *, resume: bool = True) -> None:
        """The socket broke outside of a call: resume, by the observer if there is one."""
        if self.observer is None:
            if resume:
                return self._recover(cause)
            self._note_loss(cause)
            if self._waker is not None:
                self._waker.wake()
            return None
        last_word = self._lose()
        if last_word is not None:
            self._give_up(last_word)
        self.observer.connection_lost()
        if self.events:
            self.observer.events_buffered()
