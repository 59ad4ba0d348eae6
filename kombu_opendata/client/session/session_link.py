"""Keeps a session connected: connects, and resumes the session on a new socket when the old one breaks.

A break is not an error by itself. What the old socket still holds is read, a new one is connected (an embedded broker
is started where needed), and the session's state goes to the broker again, see :mod:`.session`. The requests without an
answer are sent once more; a publish keeps its number, so the broker stores it once.

A call that waits for this raises ConnectionLost ``reconnect_timeout`` after the break. The session, and what the client
holds, is kept for ``resume_timeout``: whoever waits for deliveries goes on trying, and so does the next call. A call in
the context of :data:`outlasts_outage` waits longer, also for a first connection, and keeps the session.

Without an observer a resume blocks the call that met the break. With one (an event loop), the observer is told and
calls :meth:`SessionLink.resume_once` when it likes; a call that needs an answer meanwhile still blocks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from ...errors import ConnectionLost, OpenDataError, ProtocolError, RetryLater, StartInterrupted
from ...protocol.messages import Welcome
from ...url import Address
from ..clock import ClientClock
from ..connection_options import Options
from ..socket.framed_socket import FramedSocket, Waker
from .observer import Observer
from .open_session import open_session
from .reconnect_thread import ReconnectThread, threads_are_native
from .reentrance import Reentrance
from .route import FIRST_BACKOFF_SECONDS, BrokerRoute, longer
from .session import ClientSession

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Outlasting:
    """A caller that waits until an outage is over, however long it takes.

    One connection at a time waits. A signal handler may interrupt the wait and use another connection in the same
    context, which must not wait like that.

    Attributes:
        is_allowed: returns whether to continue; asked after each attempt.
        waiting: the connection that waits.
    """

    is_allowed: Callable[[], bool]
    waiting: SessionLink | None = None


#: None if calls give up after ``reconnect_timeout``
outlasts_outage: ContextVar[Outlasting | None] = ContextVar("kombu_opendata_outlasts_outage", default=None)


class SessionLink:
    """Keeps one session connected.

    Attributes:
        route: the order in which the address's brokers are tried.
        lock: held by whoever uses the session or its socket.
        reentrance: what becomes of calls that interrupt a call of their own thread.
        current: the connected socket; None while there is none.
        welcome: the broker's last one.
        takes_reports: whether that broker wants to know what becomes of tasks.
        is_closed: for good.
        is_closing: the session is about to end; a break is not resumed any more.
        backoff: seconds to wait before the next attempt to resume.
        observer: the event loop that reads the socket, if there is one.
        waker: ends a thread's wait for the socket, once one has waited.
        reconnect_thread: resumes while the process is in user code, once it was started.
    """

    def __init__(
        self,
        session: ClientSession,
        address: Address,
        options: Options,
        clock: ClientClock,
        more: Callable[[], Iterable[Any]],
    ) -> None:
        self.session = session
        self.address = address
        self.route = BrokerRoute(address)
        self.options = options
        self.clock = clock
        self.lock = threading.RLock()
        self.reentrance = Reentrance(self.lock, session.waiting)
        self.current: FramedSocket | None = None
        self.welcome: Welcome | None = None
        self.takes_reports = False
        self.is_closed = False
        self.is_closing = False
        self.observer: Observer | None = None
        self.backoff = FIRST_BACKOFF_SECONDS
        self.reconnect_thread: ReconnectThread | None = None
        self._more = more  # see open_session
        self.waker: Waker | None = None
        self._lost_at: float | None = None
        self._last_error: Exception | None = None  # of the attempts to resume
        self._is_outlasting = False  # a caller keeps the session, whoever else gives up; and it was logged

    # ------------------------------------------------------------ connecting
    def connect(self) -> None:
        """Connect for the first time.

        Raises:
            ConnectionLost: nobody answers.
            OpenDataError: the broker refuses, or can't be started.
        """
        embedded = self.address.kind == "embedded" and self.options.may_start
        with self.lock:
            patience = self.options.start_timeout if embedded else self.options.connect_timeout
            deadline = self.clock.monotonic() + patience
            pause = FIRST_BACKOFF_SECONDS
            while True:
                try:
                    return self._attempt()
                except (RetryLater, ConnectionLost) as exc:
                    # an embedded broker may just be leaving, idle or killed: its successor will answer
                    hopeless = isinstance(exc, (ProtocolError, StartInterrupted))
                    hopeless = hopeless or not (embedded or (isinstance(exc, RetryLater) and self.options.patient))
                    if hopeless or self.clock.monotonic() >= deadline:
                        if not self._outlasts(exc):
                            raise
                        if self._last_error is None:
                            self._lost_at = self.clock.monotonic()
                        self._last_error = exc
                self._pause(pause)
                if self.current is not None:
                    return None  # another thread connected
                pause = longer(pause)  # a broker with too many clients should not be hammered

    def resume_once(self) -> bool:
        """Try to resume; False means not yet: try again after ``backoff`` seconds.

        Raises:
            ConnectionLost: it took longer than ``resume_timeout``; the connection is closed.
            OpenDataError: the broker refuses; the connection is closed.
        """
        with self.reentrance, self.lock:
            if self.is_closed:
                raise ConnectionLost("the connection is closed")
            if self.current is not None:
                return True
            try:
                self._attempt()
            except OpenDataError as exc:
                if isinstance(exc, ProtocolError) or not isinstance(exc, (ConnectionLost, RetryLater)):
                    self.shut()
                    raise
                if self._lost_seconds() >= self.max_patience and not self._outlasts(exc) and not self._is_outlasting:
                    self.shut()
                    raise self._not_resumed(self.max_patience, exc) from exc
                if self._last_error is None:
                    self._log(log.warning, "the connection to %s is lost, resuming it: %s", self.address, exc)
                self._last_error = exc
                self.backoff = longer(self.backoff)
                return False
            return True

    def ensure_open(self, patience: float | None = None, deadline: float | None = None) -> FramedSocket:
        """The current socket, after a resume where one is needed.

        Args:
            patience: seconds after the loss when to give up; None means ``reconnect_timeout``.
            deadline: when to raise TimeoutError.
        """
        while self.current is None:
            if self.is_closed:
                raise ConnectionLost("the connection is closed")
            if not self.session.is_known:
                self.connect()
            elif not self.resume_once():
                limit = self.options.reconnect_timeout if patience is None else patience
                if self._lost_seconds() >= limit and not self._outlasts(self._last_error):
                    raise self._not_resumed(limit, self._last_error) from self._last_error
                if deadline is not None and self.clock.monotonic() >= deadline:
                    raise TimeoutError("the connection is lost and was not resumed in time")
                self._pause(self.backoff)
        return self.current

    def _pause(self, seconds: float) -> None:
        """Wait before the next attempt; other threads may use the session, and may resume it."""
        with self.reentrance.outside():
            self.clock.sleep(seconds)

    def _log(self, method: Callable[..., object], text: str, *values: object) -> None:
        """Write a record to the log as soon as the lock is free."""
        self.reentrance.later(partial(method, text, *values))

    @property
    def max_patience(self) -> float:
        """For how many seconds after a loss whoever waits for deliveries goes on trying."""
        return max(self.options.resume_timeout, self.options.reconnect_timeout)

    def _outlasts(self, error: Exception | None) -> bool:
        """Return whether the caller waits until the outage is over, however long it takes."""
        caller = outlasts_outage.get()
        if caller is None or caller.waiting not in (None, self) or isinstance(error, ProtocolError):
            return False
        if not caller.is_allowed():
            self._is_outlasting = self._is_outlasting and caller.waiting is not self
            return False
        caller.waiting = self
        if not self._is_outlasting:
            self._log(
                log.warning, "the broker at %s is away, and what a task has done waits for it: %s", self.address, error
            )
        self._is_outlasting = True
        return True

    def _lost_seconds(self) -> float:
        return 0.0 if self._lost_at is None else self.clock.monotonic() - self._lost_at

    def _not_resumed(self, seconds: float, cause: Exception | None) -> ConnectionLost:
        return ConnectionLost(
            f"the connection to {self.address} was lost and not resumed within {seconds:g} s: {cause}",
            address=str(self.address),
        )

    def _attempt(self) -> None:
        self.current, welcome = open_session(self.session, self.route, self.options, self.clock, self._more)
        self.welcome, self.takes_reports = welcome, welcome.task_outcomes and self.options.task_outcomes
        if self._last_error is not None:
            self._log(log.warning, "the connection to %s is back after %.1f s", self.route.active, self._lost_seconds())
        self._last_error = self._lost_at = None
        if self._is_outlasting and (caller := outlasts_outage.get()) is not None and caller.waiting is self:
            caller.waiting = None
        self._is_outlasting = False
        self.backoff = FIRST_BACKOFF_SECONDS
        if self.observer is not None:
            self.observer.socket_opened(self.current.fd)
            if self.session.events:
                self.observer.events_buffered()
        if self.waker is not None:
            self.waker.wake()
        if self.reconnect_thread is not None:
            self.reconnect_thread.wake()

    def make_waker(self) -> Waker:
        """What ends a thread's wait for the socket when another one took in events or changed the socket."""
        if self.waker is None:
            self.waker = Waker()
        return self.waker

    # ------------------------------------------------------------ the reconnect thread
    def start_reconnect_thread(self) -> None:
        """From now on, resume also while the process is in user code (see :mod:`.reconnect_thread`)."""
        with self.lock:
            if self.reconnect_thread is None and not self.is_closed and threads_are_native():
                self.reconnect_thread = ReconnectThread(self)

    def hung_up(self, broken: FramedSocket) -> None:
        """The reconnect thread saw this socket hang up; nothing happens if it was noticed before."""
        with self.reentrance, self.lock:
            if self.current is broken:
                self._note_loss(ConnectionResetError("the broker closed the connection"))

    def resume_after(self, grace_seconds: float) -> float | None:
        """Try to resume, if the loss is older than this; returns when to look again, None if closed."""
        with self.reentrance, self.lock:
            if self.is_closed:
                return None
            rest = grace_seconds - self._lost_seconds()
            if rest > 0:
                return rest
            return 0.0 if self.resume_once() else self.backoff

    # ------------------------------------------------------------ breaking
    def recover(self, cause: BaseException) -> None:
        """The socket broke in the middle of a call: resume, blocking."""
        self._note_loss(cause)
        self.ensure_open()

    def broke(self, cause: BaseException, *, resume: bool = True) -> None:
        """The socket broke outside of a call: the observer resumes, if there is one."""
        if self.observer is None:
            if resume:
                return self.recover(cause)
            self._note_loss(cause)
            if self.waker is not None:
                self.waker.wake()
            return None
        last_word = self._lose()
        if last_word is not None:
            self.give_up(last_word)
        self.observer.connection_lost()
        if self.session.events:
            self.observer.events_buffered()

    def _note_loss(self, cause: BaseException) -> None:
        """Put the broken socket away."""
        self._log(log.debug, "connection to %s lost: %s", self.address, cause)
        last_word = self._lose()
        if last_word is not None:
            self.shut()
            raise last_word from cause
        if self.is_closing:
            self.shut()
            raise ConnectionLost(f"the connection broke while it was closed: {cause}") from cause

    def fail(self, error: OpenDataError) -> None:
        """The peer sent garbage, or gave this connection up."""
        if isinstance(error, RetryLater):
            return self.recover(error)
        self.give_up(error)

    def give_up(self, error: OpenDataError) -> NoReturn:
        self.shut()
        raise error

    def _lose(self) -> OpenDataError | None:
        """Close the broken socket, after what it still holds is read; returns the error that the broker left."""
        current = self._detach()
        if current is None:
            return None
        last_word: OpenDataError | None = None
        try:
            while (messages := current.receive_now()) is not None:
                self.session.receive(messages)
        except OSError:
            pass
        except OpenDataError as exc:
            last_word = exc
        current.close()
        return None if isinstance(last_word, RetryLater) else last_word

    def drop(self) -> None:
        """The frames may be out of step: close the socket; the next use resumes."""
        current = self._detach()
        if current is not None:
            current.close()
            if self.observer is not None:
                self.observer.connection_lost()

    def _detach(self) -> FramedSocket | None:
        current, self.current = self.current, None
        if current is not None:
            if self.observer is not None:
                self.observer.socket_closing(current.fd)
            if self._lost_at is None:
                self._lost_at = self.clock.monotonic()
        if self.reconnect_thread is not None:
            self.reconnect_thread.wake()
        return current

    def shut(self) -> None:
        """Close for good."""
        self.is_closed = True
        if self.session.in_flight.by_rid:
            self.session.fail_publishes(ConnectionLost("the connection ended before the broker confirmed it"))
        current = self._detach()
        if current is not None:
            current.close()
        if self.waker is not None:
            self.waker.wake()

    def leave_to_parent(self) -> None:
        """In a forked child: close the inherited socket, and never use this link again."""
        self.is_closed = True
        if self.current is not None:
            self.current.close()
