"""Link of a session to its broker: connects, and resumes the session on a new socket when the old one breaks.

A break alone is not an error. The remaining bytes of the old socket are read, a new socket is connected (an embedded
broker is started where needed), and the session's state is sent to the broker again, see :mod:`.session`. The requests
without a reply are sent once more; a publish keeps its number, so the broker stores it once.

A call that waits for the resume raises ConnectionLost ``reconnect_timeout`` after the break. The session and its leases
are kept for ``resume_timeout``: a thread that waits for deliveries continues to try, and so does the next call. A call
in the context of :data:`outlasts_outage` waits longer, also for a first connection, and keeps the session.

Without an observer a resume blocks the call that encountered the break. An observer (an event loop) is notified and
schedules the calls of :meth:`SessionLink.resume_once`; until then a call that needs a reply still blocks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol

from ...errors import ConnectionLost, OpenDataError, ProtocolError, RetryLater, StartInterrupted
from ...protocol.messages import Welcome
from ...url import Address
from ..clock import ClientClock
from ..connection_options import Options
from ..socket.framed_socket import FramedSocket, Waker
from .open_session import open_session
from .reconnect_thread import ReconnectThread, threads_are_native
from .reentrance import Reentrance
from .route import FIRST_BACKOFF_SECONDS, BrokerRoute, longer
from .session import ClientSession


class Observer(Protocol):
    """Event loop's side of a connection."""

    def socket_opened(self, fd: int) -> None: ...

    def socket_closing(self, fd: int) -> None: ...

    def events_buffered(self) -> None:
        """Handle events that arrived while a call waited for its reply; no poller reports them."""

    def will_flush(self) -> bool:
        """Return True if the event loop will call ``flush_reports`` within some milliseconds."""

    def connection_lost(self) -> None:
        """Call ``resume_once`` until it returns True."""


log = logging.getLogger(__name__)


@dataclass(slots=True)
class Outlasting:
    """Caller that waits until an outage is over, without a time limit.

    One connection at a time waits. A signal handler may interrupt the wait and use another connection in the same
    context, which must not wait without a limit.

    Attributes:
        is_allowed: returns True to continue; called after each attempt.
        waiting: the connection that waits.
    """

    is_allowed: Callable[[], bool]
    waiting: SessionLink | None = None


#: None if calls fail after ``reconnect_timeout``
outlasts_outage: ContextVar[Outlasting | None] = ContextVar("kombu_opendata_outlasts_outage", default=None)


class SessionLink:
    """Link of one session to its broker.

    Attributes:
        route: the order in which the address's brokers are tried.
        lock: held by the thread that uses the session or its socket.
        reentrance: handling of calls that interrupt a call of their thread.
        current: the connected socket; None while there is none.
        welcome: the broker's last Welcome.
        takes_reports: whether that broker requests reports of task outcomes.
        is_closed: whether the link is closed permanently.
        is_closing: the session is about to end; a break is no longer resumed.
        backoff: seconds to wait before the next attempt to resume.
        observer: the event loop that reads the socket, if there is one.
        waker: ends a thread's wait for the socket; None until a thread has waited.
        reconnect_thread: resumes while the process is in user code; None until it was started.
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
        self._is_outlasting = False  # a caller keeps the session although others give up; this was logged

    # ------------------------------------------------------------ connecting
    def connect(self) -> None:
        """Connect for the first time.

        Raises:
            ConnectionLost: no broker answers.
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
                    # an embedded broker may be exiting, idle or killed: its successor will answer
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
                pause = longer(pause)  # avoid overloading a broker with too many clients

    def resume_once(self) -> bool:
        """Try to resume. Return False if the caller must try again after ``backoff`` seconds.

        Raises:
            ConnectionLost: the resume took longer than ``resume_timeout``; the connection is closed.
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
        """Return the current socket, after a resume if needed.

        Args:
            patience: seconds after the loss until ConnectionLost is raised; None means ``reconnect_timeout``.
            deadline: time at which TimeoutError is raised.
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
        """Wait before the next attempt; other threads may use and resume the session during the wait."""
        with self.reentrance.outside():
            self.clock.sleep(seconds)

    def _log(self, method: Callable[..., object], text: str, *values: object) -> None:
        """Write a record to the log as soon as the lock is free."""
        self.reentrance.later(partial(method, text, *values))

    @property
    def max_patience(self) -> float:
        """Seconds after a loss for which a thread that waits for deliveries continues to try."""
        return max(self.options.resume_timeout, self.options.reconnect_timeout)

    def _outlasts(self, error: Exception | None) -> bool:
        """Return True if the caller waits until the outage is over, without a time limit."""
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
        """Return the waker that ends a thread's wait when another thread received events or changed the socket."""
        if self.waker is None:
            self.waker = Waker()
        return self.waker

    # ------------------------------------------------------------ the reconnect thread
    def start_reconnect_thread(self) -> None:
        """Start the thread that also resumes while the process is in user code (see :mod:`.reconnect_thread`)."""
        with self.lock:
            if self.reconnect_thread is None and not self.is_closed and threads_are_native():
                self.reconnect_thread = ReconnectThread(self)

    def hung_up(self, broken: FramedSocket) -> None:
        """Handle the hang-up of a socket that the reconnect thread noticed; no effect if it was handled before."""
        with self.reentrance, self.lock:
            if self.current is broken:
                self._note_loss(ConnectionResetError("the broker closed the connection"))

    def resume_after(self, grace_seconds: float) -> float | None:
        """Try to resume if the loss is older than this. Return the seconds until the next call, None if closed."""
        with self.reentrance, self.lock:
            if self.is_closed:
                return None
            rest = grace_seconds - self._lost_seconds()
            if rest > 0:
                return rest
            return 0.0 if self.resume_once() else self.backoff

    # ------------------------------------------------------------ breaking
    def recover(self, cause: BaseException) -> None:
        """Resume, blocking, after the socket broke during a call."""
        self._note_loss(cause)
        self.ensure_open()

    def broke(self, cause: BaseException, *, resume: bool = True) -> None:
        """Handle a socket that broke outside of a call: the observer resumes, if there is one."""
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
        """Close and detach the broken socket."""
        self._log(log.debug, "connection to %s lost: %s", self.address, cause)
        last_word = self._lose()
        if last_word is not None:
            self.shut()
            raise last_word from cause
        if self.is_closing:
            self.shut()
            raise ConnectionLost(f"the connection broke while it was closed: {cause}") from cause

    def fail(self, error: OpenDataError) -> None:
        """Handle a protocol error of the peer, or its refusal of this connection."""
        if isinstance(error, RetryLater):
            return self.recover(error)
        self.give_up(error)

    def give_up(self, error: OpenDataError) -> NoReturn:
        self.shut()
        raise error

    def _lose(self) -> OpenDataError | None:
        """Close the broken socket after reading its remaining bytes; return the error that the broker sent."""
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
        """Close the socket because its frames may be out of step; the next use resumes."""
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
        """Close permanently."""
        self.is_closed = True
        if self.session.in_flight.by_rid:
            self.session.fail_publishes(ConnectionLost("the connection ended before the broker confirmed it"))
        current = self._detach()
        if current is not None:
            current.close()
        if self.waker is not None:
            self.waker.wake()

    def leave_to_parent(self) -> None:
        """Close the inherited socket in a forked child; the child must not use this link again."""
        self.is_closed = True
        if self.current is not None:
            self.current.close()
