"""Requests and their answers, and all other messages, over whatever socket a session has now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from ...errors import BrokerStopping, MessageTooLarge, OpenDataError, RetryLater, from_wire
from ...protocol.framing import frame
from ...protocol.messages import Failed, Publish, PublishConfirm
from .session import LEFT_TO_SUCCESSOR, ClientSession
from .session_link import SessionLink


class SessionIO:
    """Reads and writes for one session. A socket that breaks meanwhile is left to the session's link to replace."""

    __slots__ = ("link", "session")

    def __init__(self, session: ClientSession, link: SessionLink) -> None:
        self.session = session
        self.link = link

    def exchange(self, message: Any, start: Callable[[Any], bytes], timeout: float | None) -> Any:
        """Start a request and wait for its answer; hold the lock.

        Args:
            start: the session's way to start it.

        Raises:
            MessageTooLarge: it was not sent.
            OpenDataError: the broker's answer was an error, or the connection could not be resumed.
            socket.timeout: no answer in time; what the request asked for may still happen.
        """
        session, link = self.session, self.link
        deadline = None if timeout is None else link.clock.monotonic() + timeout
        if link.current is None:
            link.ensure_open()
        answers, unanswered = session.answers, session.unanswered
        data = start(message)
        rid = message.rid
        try:
            if len(data) > link.welcome.max_frame_bytes:  # type: ignore[union-attr]
                self.check_frame(data)
            self.transmit(data)
            while True:
                while rid not in answers:
                    self.pump(deadline)
                answer = answers.pop(rid)
                if not (type(answer) is Failed and answer.code in LEFT_TO_SUCCESSOR) or link.is_closing:
                    break
                unanswered[rid] = data
                link.recover(BrokerStopping(answer.text))
        except BaseException:
            unanswered.pop(rid, None)
            answers.pop(rid, None)
            raise
        finally:
            if session.events:
                self.announce_events()
        if type(answer) is Failed:
            raise from_wire(answer.code, answer.text, answer.values)
        return answer

    def publish(self, message: Publish, timeout: float | None = None) -> PublishConfirm:
        """Store a message; returns when it is durable. Resumes do not store it twice.

        Raises:
            MessageTooLarge: it was not sent.
            OpenDataError, socket.timeout: as :meth:`exchange`.
        """
        link = self.link
        try:
            with link.lock:
                if link.welcome is None or len(message.envelope) > link.welcome.max_message_bytes:
                    self.check_size(len(message.envelope))
                return cast(PublishConfirm, self.exchange(message, self.session.start_publish, timeout))
        finally:
            if self.session.waiting:
                link.reentrance.run()

    def send(self, message: Any) -> None:
        """Send a message that has no answer."""
        with self.link.lock:
            self.transmit(frame(message))

    def transmit(self, data: bytes) -> None:
        """Send a frame. If the socket breaks, the resume has sent it with the unanswered requests."""
        current = self.link.current or self.link.ensure_open()
        if self.session.settlements.reports:
            data = self.session.settlements.take_reports() + data
        try:
            if (sent := current.send_now(data)) < len(data):
                current.send_all(memoryview(data)[sent:], self.session.receive)
        except OSError as exc:
            self.link.recover(exc)
        except OpenDataError as exc:
            self.link.fail(exc)
        except BaseException:
            self.link.drop()  # half a frame may be out
            raise

    def pump(self, deadline: float | None = None) -> None:
        """Wait for bytes and take in the messages that they complete.

        It also returns after a resume, because another thread may have taken in the awaited messages meanwhile.

        Raises:
            socket.timeout: there are none before the deadline.
        """
        current = self.link.current
        if current is None:
            self.link.ensure_open()
            return
        if deadline is not None:
            rest = deadline - self.link.clock.monotonic()
            if rest <= 0 or not current.wait(rest):
                raise TimeoutError("the broker did not answer in time")
        try:
            self.session.receive(current.receive())
        except OSError as exc:
            self.link.recover(exc)
        except OpenDataError as exc:
            self.link.fail(exc)
        except BaseException:
            self.link.drop()  # bytes may have been read and not been taken in
            raise
        if self.session.to_send:
            self._send_replies()

    def _send_replies(self) -> None:
        data = b"".join(self.session.to_send)
        self.session.to_send.clear()
        self.post(data)

    def post(self, data: bytes) -> None:
        """Send a frame whose content a resume would send too. Never blocks under an event loop."""
        current = self.link.current
        if current is None:
            if not self.session.is_known or self.link.observer is None:
                self.link.ensure_open()
            return
        if self.session.settlements.reports:
            data = self.session.settlements.take_reports() + data
        try:
            current.send_all(data, self.session.receive)
        except OSError as exc:
            self.link.broke(exc)
        except OpenDataError as exc:
            self.link.fail(exc)
        except BaseException:
            self.link.drop()
            raise

    def read_available(self, *, resume: bool = True) -> None:
        """Take in what the socket holds, without waiting.

        A break is left to the observer. Without one it is resumed, blocking, or left to the next use.
        """
        try:
            with self.link.lock:
                self._read_available(resume)
        finally:
            if self.session.waiting:
                self.link.reentrance.run()

    def _read_available(self, resume: bool) -> None:
        current = self.link.current
        if current is None:
            return
        try:
            messages = current.receive_now()
            if messages:
                self.session.receive(messages)
        except (OSError, RetryLater) as exc:
            self.link.broke(exc, resume=resume)
        except OpenDataError as exc:
            self.link.give_up(exc)
        except BaseException:
            self.link.drop()
            raise
        if self.session.to_send:
            self._send_replies()

    def check_alive(self) -> None:
        """If the broker was silent for two heartbeats, the connection is lost and will be resumed."""
        with self.link.lock:
            self.read_available(resume=False)
            current = self.link.current
            if current is not None and current.is_silent:
                self.link.broke(TimeoutError(current.silent_text), resume=False)

    def announce_events(self) -> None:
        """If a call took in events, tell whoever waits for them."""
        if self.session.events:
            if self.link.observer is not None:
                self.link.observer.events_buffered()
            if self.link.waker is not None:
                self.link.waker.wake()

    def check_size(
        self, size: int, what: str = "message", instead: str = "store large data elsewhere and send a reference"
    ) -> None:
        """Refuse a message, or a result, that the broker would refuse. May open the connection: hold the lock.

        Raises:
            MessageTooLarge: it is over the broker's limit.
        """
        if self.link.welcome is None:
            self.link.ensure_open()
        limit = self.max_message_bytes
        if size > limit:
            raise MessageTooLarge(
                f"the {what} has {size} bytes and the broker's limit is {limit}: {instead}, or raise the broker's "
                "--max-message-bytes",
                size=size,
                limit=limit,
            )

    @property
    def max_message_bytes(self) -> int:
        """The broker's limit for a message; 0 until it has said it."""
        return self.link.welcome.max_message_bytes if self.link.welcome is not None else 0

    def check_frame(self, data: bytes) -> None:
        """Raises MessageTooLarge if the broker would refuse the frame."""
        size, limit = len(data) - 4, self.link.welcome.max_frame_bytes if self.link.welcome is not None else 0
        if size > limit:
            raise MessageTooLarge(
                f"the request has {size} bytes and the broker's limit for a frame is {limit}", size=size, limit=limit
            )
