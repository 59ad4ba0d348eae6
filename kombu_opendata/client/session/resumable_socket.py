"""Keeps a session connected: connects, and resumes on a new socket when the old one breaks.

A break is no error by itself. The link reads what the old socket still holds, connects again (starting an embedded
broker where needed), says Hello with the leases in hand and the unconfirmed settlements, declares again what does not
outlive a connection, and sends the unanswered requests once more; a publish keeps its number, so it is stored once.
A call that waits for that sees ConnectionLost ``reconnect_timeout`` after the break. The session is kept all the same,
for ``resume_timeout``, and so is what the client holds: who waits for deliveries goes on trying, and so does the next
call.

Without an observer a resume blocks the call that met the break. With one (an event loop), the observer is told and
calls :meth:`Link.resume_once` when it likes; a call that needs an answer meanwhile still blocks. A :mod:`.keeper` does
the same for a process that is in user code.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import NoReturn

from ...errors import ConnectionLost, OpenDataError, ProtocolError, RetryLater, StartInterrupted
from ...protocol.framing import frame
from ..socket.connect import dial_memory, dial_socket, dial_tcp
from ..socket.framed_socket import Wire
from ..socket.handshake import greet
from .reconnect_thread import Keeper, threads_are_native
from .stream import FIRST_BACKOFF_SECONDS, Stream

logger = logging.getLogger(__name__)

MAX_BACKOFF_SECONDS = 1.0


class Link(Stream):
    """A stream that connects itself."""

    def connect(self) -> None:
        """Connect for the first time.

        Raises:
            ConnectionLost: nobody answers.
            OpenDataError: the broker refuses, or can't be started.
        """
        embedded = self.address.kind == "embedded" and self.options.may_start
        with self._lock:
            patience = self.options.start_timeout if embedded else self.options.connect_timeout
            deadline = self.clock.monotonic() + patience
            pause = FIRST_BACKOFF_SECONDS
            while True:
                try:
                    return self._attempt()
                except (RetryLater, ConnectionLost) as exc:
                    # an embedded broker may just be leaving, idle or killed: its successor will answer
                    hopeless = isinstance(exc, (ProtocolError, StartInterrupted))
                    hopeless = hopeless or not (embedded or isinstance(exc, RetryLater))
                    if hopeless or self.clock.monotonic() >= deadline:
                        raise
                self.clock.sleep(pause)
                pause = min(pause * 2, MAX_BACKOFF_SECONDS)  # a broker that has too many to serve is not to be hammered

    def resume_once(self) -> bool:
        """Try to resume; False: not yet, try again after ``backoff`` seconds.

        Raises:
            ConnectionLost: it took longer than ``resume_timeout``; the connection is closed.
            OpenDataError: the broker refuses; the connection is closed.
        """
        with self._lock:
            if self.closed:
                raise ConnectionLost("the connection is closed")
            if self._wire is not None:
                return True
            try:
                self._attempt()
            except ProtocolError:
                self._shut()
                raise
            except (ConnectionLost, RetryLater) as exc:
                patience = max(self.options.resume_timeout, self.options.reconnect_timeout)
                if self._lost_for() < patience:
                    if self._why is None:
                        logger.warning("the connection to %s is lost, resuming it: %s", self.address, exc)
                    self._why = exc
                    self.backoff = min(self.backoff * 2, MAX_BACKOFF_SECONDS)
                    return False
                self._shut()
                raise self._not_resumed(patience, exc) from exc
            except OpenDataError:
                self._shut()
                raise
            return True

    # ------------------------------------------------------------ the keeper
    @property
    def wire(self) -> Wire | None:
        """The socket it has now."""
        return self._wire

    def start_keeper(self) -> None:
        """From now on, resume also while the process is in user code (see :mod:`.keeper`)."""
        with self._lock:
            if self.keeper is None and not self.closed and threads_are_native():
                self.keeper = Keeper(self)

    def put_away(self, wire: Wire) -> None:
        """The keeper saw this socket hang up; does nothing if somebody else saw it, too."""
        with self._lock:
            if self._wire is wire:
                self._note_loss(ConnectionResetError("the broker closed the connection"))

    def resume_for_owner(self, hands_off: float) -> float | None:
        """Try to resume, if the loss is ``hands_off`` seconds old; returns when to look again, None if closed."""
        with self._lock:
            if self.closed:
                return None
            rest = hands_off - self._lost_for()
            if rest > 0:
                return rest
            return 0.0 if self.resume_once() else self.backoff

    def _lost_for(self) -> float:
        return 0.0 if self._lost_at is None else self.clock.monotonic() - self._lost_at

    def _not_resumed(self, seconds: float, cause: Exception | None) -> ConnectionLost:
        return ConnectionLost(
            f"the connection to {self.address} was lost and not resumed within {seconds:g} s: {cause}",
            address=str(self.address),
        )

    def _ensure_open(self, patience: float | None = None, deadline: float | None = None) -> Wire:
        """The wire, after a resume where one is needed.

        Args:
            patience: seconds after the loss when to give up; None is ``reconnect_timeout``.
            deadline: when to raise TimeoutError.
        """
        while self._wire is None:
            if self.closed:
                raise ConnectionLost("the connection is closed")
            if not self._known:
                self.connect()
            elif not self.resume_once():
                limit = self.options.reconnect_timeout if patience is None else patience
                if self._lost_for() >= limit:
                    raise self._not_resumed(limit, self._why) from self._why
                if deadline is not None and self.clock.monotonic() >= deadline:
                    raise TimeoutError("the connection is lost, and was not resumed in time")
                self.clock.sleep(self.backoff)
        return self._wire

    def _attempt(self) -> None:
        address, options = self.address, self.options
        sock = self._dial()
        try:
            self._rid += 1
            hello = self.session.hello(
                self._rid,
                options.name or f"{socket.gethostname()}:{os.getpid()}",
                address.instance,
                options.user or address.user,
                options.resolve_secret() or address.secret,
                resume=self._known,
                heartbeat_ms=int(1000 * options.heartbeat),
            )
            resume = self.session.resume(self._rid) if self._known else None
            wire, welcome, rest = greet(sock, hello, options.connect_timeout, resume)
            if resume is not None and welcome.adopted < len(resume.held):
                logger.info("%d leases ended while the connection was lost", len(resume.held) - welcome.adopted)
            self.welcome = welcome
            self.session.welcomed()
            if welcome.heartbeat_ms:
                wire.expect_beats(welcome.heartbeat_ms / 1000, self.clock.monotonic)
            self._known = True
            self._dispatch(rest)
            self._replay(wire)
        except OSError as exc:
            sock.close()
            raise ConnectionLost(f"the connection to {address} broke: {exc}") from exc
        except BaseException:
            sock.close()
            raise
        self._wire = wire
        if self._why is not None:
            logger.warning("the connection to %s is back after %.1f s", address, self._lost_for())
        self._why = self._lost_at = None
        self.backoff = FIRST_BACKOFF_SECONDS
        if self.observer is not None:
            self.observer.socket_opened(wire.fd)
            if self.events:
                self.observer.events_buffered()
        if self._waker is not None:
            self._waker.wake()
        if self.keeper is not None:
            self.keeper.wake()

    def _dial(self) -> socket.socket:
        if self.address.kind == "memory":
            return dial_memory(self.address.name)
        if self.address.kind == "tcp":
            return dial_tcp(self.address, self.options)
        if self.address.kind == "unix":
            return dial_socket(self.address, self.options)
        from ..launch import attach

        return attach(self.address, self.options, self.clock)

    def _replay(self, wire: Wire) -> None:
        """Declare again what ended with the old connection, then send again what was not answered."""
        replayed = self._replayed
        replayed.clear()
        frames = [frame(message) for message in self.session.credits()]
        for message in self.session.replay():
            if message.rid in self._unanswered:
                continue  # a Consume that is sent again below
            self._rid += 1
            message.rid = self._rid
            replayed[self._rid] = message
            frames.append(frame(message))
        self._push(wire, b"".join(frames))
        while replayed:
            if not wire.wait(self.options.connect_timeout):
                raise ConnectionLost("the broker did not answer the declarations of a resumed session")
            self._dispatch(wire.receive())
        self._push(wire, b"".join(self._unanswered.values()))

    # ------------------------------------------------------------ sending and receiving
    def _transmit(self, data: bytes) -> None:
        """Send a frame. After a break it went out with the resume, if it was among the unanswered."""
        wire = self._wire or self._ensure_open()
        try:
            self._push(wire, data)
        except OSError as exc:
            self._recover(exc)
        except OpenDataError as exc:
            self._fail(exc)
        except BaseException:
            self._drop()  # half a frame may be out
            raise

    def _pump(self) -> None:
        """Wait for bytes and take in the messages they complete."""
        wire = self._wire or self._ensure_open()
        try:
            self._dispatch(wire.receive())
        except OSError as exc:
            self._recover(exc)
        except OpenDataError as exc:
            self._fail(exc)
        except BaseException:
            self._drop()  # bytes may have been read and not been taken in
            raise

    # ------------------------------------------------------------ breaking
    def _recover(self, cause: BaseException) -> None:
        """The socket broke in the middle of a call: resume, blocking."""
        self._note_loss(cause)
        self._ensure_open()

    def _note_loss(self, cause: BaseException) -> None:
        """Put the broken socket away."""
        logger.debug("connection to %s lost: %s", self.address, cause)
        last_word = self._lose()
        if last_word is not None:
            self._shut()
            raise last_word from cause
        if self._closing:
            self._shut()
            raise ConnectionLost(f"the connection broke while it was closed: {cause}") from cause

    def _fail(self, error: OpenDataError) -> None:
        """The peer sent garbage, or gave this connection up."""
        if isinstance(error, RetryLater):
            return self._recover(error)
        self._give_up(error)

    def _give_up(self, error: OpenDataError) -> NoReturn:
        self._shut()
        raise error
