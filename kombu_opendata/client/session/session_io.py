"""Requests, replies and all other messages over the current socket of a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import BrokerStopping, MessageTooLarge, OpenDataError, RetryLater, from_wire
from ...protocol.framing import Frame, frame
from ...protocol.messages import Failed, Publish, PublishConfirm
from .session import LEFT_TO_SUCCESSOR, ClientSession
from .session_link import LinkState, SessionLink


class SessionIO:
    """Reader and writer of one session. The session's link replaces a socket that breaks during a call."""

    __slots__ = ("link", "session")

    def __init__(self, session: ClientSession, link: SessionLink) -> None:
        self.session = session
        self.link = link

    def exchange(self, message: Any, start: Callable[[Any], Frame], timeout: float | None) -> Any:
        """Start a request and wait for its reply. The caller holds the lock.

        Args:
            start: the session's method that starts it.

        Raises:
            MessageTooLarge: it was not sent.
            OpenDataError: the broker's reply was an error, or the connection could not be resumed.
            socket.timeout: no reply in time; the broker may still execute the request.
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
                if not (type(answer) is Failed and answer.code in LEFT_TO_SUCCESSOR) or link.state is LinkState.CLOSING:
                    break
                unanswered[rid] = data
                link.recover(BrokerStopping(answer.text))
        except BaseException:
            unanswered.pop(rid, None)
            answers.pop(rid, None)
            raise
        finally:
            if session.events and (link.observer is not None or link.waker is not None):
                self.announce_events()
        if type(answer) is Failed:
            raise from_wire(answer.code, answer.text, answer.values)
        return answer

    def publish(self, message: Publish, timeout: float | None = None) -> PublishConfirm:
        """Store a message; return when it is durable. Resumes do not store it twice.

        Raises:
            MessageTooLarge: it was not sent.
            OpenDataError, socket.timeout: as :meth:`exchange`.
        """
        link = self.link
        try:
            with link.lock:
                if link.welcome is None or len(message.envelope) > link.welcome.max_message_bytes:
                    self.check_size(len(message.envelope))
                confirm: PublishConfirm = self.exchange(message, self.session.start_publish, timeout)
                return confirm
        finally:
            if self.session.waiting:
                link.reentrance.run()

    def send(self, message: Any) -> None:
        """Send a message that has no reply."""
        with self.link.lock:
            self.transmit(frame(message))

    def transmit(self, data: Frame) -> None:
        """Send a frame. If the socket breaks, the resume sends the frame with the unanswered requests."""
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
            self.link.drop()  # half a frame may have been sent
            raise

    def pump(self, deadline: float | None = None) -> None:
        """Wait for bytes and process the messages that they complete.

        The method also returns after a resume, because another thread may have processed the awaited messages by then.

        Raises:
            socket.timeout: no bytes before the deadline.
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
            self.link.drop()  # bytes may have been read and not been processed
            raise
        if self.session.to_send:
            self._send_replies()

    def _send_replies(self) -> None:
        data = b"".join(self.session.to_send)
        self.session.to_send.clear()
        self.post(data)

    def post(self, data: bytes) -> None:
        """Send a frame whose content a resume would send, too. Never blocks under an event loop."""
        current = self.link.current
        if current is None:
            if not self.session.is_known or self.link.observer is None:
                self.link.ensure_open()
            return
        if self.session.settlements.reports:
            data = self.session.settlements.take_reports() + data
        try:
            if (sent := current.send_now(data)) < len(data):
                current.send_all(memoryview(data)[sent:], self.session.receive)
        except OSError as exc:
            self.link.lost(exc)
        except OpenDataError as exc:
            self.link.fail(exc)
        except BaseException:
            self.link.drop()
            raise

    def read_available(self, *, resume: bool = True) -> None:
        """Process the available bytes of the socket, without waiting.

        If the socket breaks, the observer resumes the session. Without an observer, this call resumes it (blocking) if
        ``resume`` is set, and otherwise the next use does.
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
            self.link.lost(exc, resume=resume)
        except OpenDataError as exc:
            self.link.fail(exc)
        except BaseException:
            self.link.drop()
            raise
        if self.session.to_send:
            self._send_replies()

    def check_alive(self) -> None:
        """Mark the connection as lost if the broker was silent for two heartbeats; it will be resumed."""
        with self.link.lock:
            self.read_available(resume=False)
            current = self.link.current
            if current is not None and current.is_silent:
                self.link.lost(TimeoutError(current.silent_text), resume=False)

    def announce_events(self) -> None:
        """Notify waiting threads and the event loop if a call received events."""
        if self.session.events:
            if self.link.observer is not None:
                self.link.observer.events_buffered()
            if self.link.waker is not None:
                self.link.waker.wake()

    def check_size(
        self, size: int, what: str = "message", instead: str = "store large data elsewhere and send a reference"
    ) -> None:
        """Refuse a message, or a result, that the broker would refuse.

        This may open the connection; the caller holds the lock.

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
        """Broker's limit for a message; 0 until the broker has sent it."""
        return self.link.welcome.max_message_bytes if self.link.welcome is not None else 0

    def check_frame(self, data: Frame) -> None:
        """Raise MessageTooLarge if the broker would refuse the frame."""
        size = len(data) - 4
        limit = self.link.welcome.max_frame_bytes if self.link.welcome is not None else 0
        if size > limit:
            raise MessageTooLarge(
                f"the request has {size} bytes and the broker's limit for a frame is {limit}", size=size, limit=limit
            )
