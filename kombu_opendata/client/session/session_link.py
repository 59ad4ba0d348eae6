"""Link of a session to its broker: connects, and resumes the session on a new socket when the old one breaks.

A break alone is not an error. The session outlives its sockets: its leases, unconfirmed settlements, consumers and
unanswered requests are in :class:`.ClientSession`, and :func:`.open_session` sends them over the next socket. A publish
keeps its number, so the broker stores it once.

**Invariants.** ``current`` is a socket if and only if the state is OPEN or CLOSING, except in a forked child, which
leaves a closed one. Only ``_attempt`` sets it, after the broker has applied the session's state, and only ``_detach``
removes it. Both hold ``lock``, as does every method that sends or receives; waiting for bytes and pauses between
attempts release it. CLOSED is final.

========  ====================================  =========================================================
state     meaning                               leaves it
========  ====================================  =========================================================
NEW       the broker does not know the session  the first connect: OPEN; ``close``: CLOSED
OPEN      a socket is connected                 the socket breaks or is dropped: LOST; ``begin_close``:
                                                CLOSING; ``close``, or an error that no retry solves: CLOSED
LOST      the session waits for a new socket    a resume: OPEN; ``close``, a refusal, or an attempt that
                                                fails ``max_patience`` or more after the loss: CLOSED
CLOSING   the last request is in progress       its end, or a break, which is not resumed any more: CLOSED
CLOSED    every use raises ConnectionLost;
          unconfirmed publishes failed with it
========  ====================================  =========================================================

=====================================================  =========================  ==========================
event                                                  method                     the next attempt is made by
=====================================================  =========================  ==========================
the socket broke in a call that needs a reply          ``recover``                the call itself, blocking
it broke, or was silent, outside of such a call        ``lost``                   the observer; without one
                                                                                  the call, or the next use
the reconnect thread noticed that it hung up           ``hung_up``                that thread
an exception left half a frame sent or read            ``drop``                   the observer, or the next use
the broker refused, or violated the protocol           ``fail``                   none; the call, after a
                                                                                  :class:`.RetryLater`
a fork, in the child                                   ``leave_to_parent``        none: the child has another link
=====================================================  =========================  ==========================

**Before a broken socket is closed** its remaining bytes are read: a broker that stops or refuses has sent the reason,
and confirmations in them spare a repetition. Such an error is raised in place of the break.

**Limits.** A call that waits for the resume raises ConnectionLost ``reconnect_timeout`` after the break, but the
session stays LOST and the next call tries again: closing it would release leases of tasks that still run. A
thread that waits for deliveries, the reconnect thread and the observer try for ``max_patience``, normally
``resume_timeout``; the first attempt that fails later, of any caller, closes the session. Times count from the loss, by
a monotonic clock; a failed attempt does not begin them again. A call in the context of
:data:`outlasts_outage` waits without a limit, also for a first connection; the other callers then do not close the
session.

**Why not simply reconnect in each call.** Under an event loop a blocking resume would stop all tasks, so calls that
need no reply leave it to the observer (an event loop), which is notified and schedules :meth:`SessionLink.resume_once`.
Several threads may notice one break; the lock and ``current`` make all but the first of them find the new socket. A
caller that held the lock during its pauses would keep the others from using a new socket, and a signal handler in the
pause could not publish. So a pause releases the lock, and all conditions are checked again after it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Protocol

from ...errors import ConnectionLost, OpenDataError, ProtocolError, RetryLater, StartInterrupted
from ...protocol.messages import Welcome
from ...url import Address
from ..client_clock import ClientClock
from ..connection_options import Options
from ..socket.framed_socket import FramedSocket, Waker
from .open_session import open_session
from .reconnect_thread import ReconnectThread, threads_are_native
from .reentrance import Reentrance
from .route import FIRST_BACKOFF_SECONDS, BrokerRoute, longer
from .session import ClientSession

log = logging.getLogger(__name__)


class LinkState(Enum):
    """State of a link; see the table above."""

    NEW = "new"
    OPEN = "open"
    LOST = "lost"
    CLOSING = "closing"
    CLOSED = "closed"


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

    Args:
        more: returns the messages that every socket begins with, besides those of the session.
        parent: the link of the process from which this one was forked.
        within: as in :class:`.Reentrance`.

    Attributes:
        state: the state; see :class:`LinkState`.
        route: the order in which the address's brokers are tried.
        lock: held by the thread that uses the session or its socket.
        run_lock: held while the ``run`` of a delivered message changes; a task may end in any thread. If this used
            ``lock``, the end of a task would wait until the settlement of another one is sent.
        reentrance: handling of calls that interrupt a call of their thread.
        current: the connected socket; None while there is none.
        welcome: the broker's last Welcome.
        takes_reports: whether that broker requests reports of task outcomes.
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
        parent: SessionLink | None = None,
        within: Reentrance | None = None,
    ) -> None:
        self.session = session
        self.address = address
        self.route = BrokerRoute(address)
        self.options = options
        self.clock = clock
        self.lock = threading.RLock()
        self.run_lock = threading.RLock()
        self.reentrance = Reentrance(self.lock, session.waiting, within)
        self.current: FramedSocket | None = None
        self.state = LinkState.CLOSED if parent is not None and parent.is_closed else LinkState.NEW
        self.welcome: Welcome | None = parent.welcome if parent is not None else None
        self.takes_reports: bool = parent is not None and parent.takes_reports
        self.observer: Observer | None = None
        self.backoff = FIRST_BACKOFF_SECONDS
        self.reconnect_thread: ReconnectThread | None = None
        self._more = more
        self.waker: Waker | None = None
        self._lost_at: float | None = None
        self._last_error: Exception | None = None  # of the attempts to resume
        self._is_outlasting = False  # a call waits for the end of the outage, and the log reports it

    @property
    def is_closed(self) -> bool:
        """True if the link is closed permanently."""
        return self.state is LinkState.CLOSED

    # ------------------------------------------------------------ connecting
    def connect(self) -> None:
        """Connect for the first time.

        Raises:
            ConnectionLost: no broker answers, or the connection is closed.
            OpenDataError: the broker refuses, or can't be started.
        """
        embedded = self.address.kind == "embedded" and self.options.may_start
        with self.lock:
            patience = self.options.start_timeout if embedded else self.options.connect_timeout
            deadline = self.clock.monotonic() + patience
            pause = FIRST_BACKOFF_SECONDS
            while True:
                if self.is_closed:  # also during a pause
                    raise ConnectionLost("the connection is closed")
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
                    self.close()
                    raise
                if self._lost_seconds() >= self.max_patience and not self._outlasts(exc) and not self._is_outlasting:
                    self.close()
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
                log.warning,
                "the broker at %s is unreachable; the result of a task waits for it: %s",
                self.address,
                error,
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
        self.state = LinkState.OPEN
        self.welcome = welcome
        self.takes_reports = welcome.task_outcomes and self.options.task_outcomes
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
                self._lose(ConnectionResetError("the broker closed the connection"))

    def resume_after(self, grace_seconds: float) -> float | None:
        """Try to resume if the loss is older than this. Return the seconds until the next call, None if closed."""
        with self.reentrance, self.lock:
            if self.is_closed:
                return None
            rest = grace_seconds - self._lost_seconds()
            if rest > 0:
                return rest
            return 0.0 if self.resume_once() else self.backoff

    # ------------------------------------------------------------ losing the socket
    def recover(self, cause: BaseException) -> None:
        """Resume, blocking, after the socket broke during a call."""
        self._lose(cause)
        self.ensure_open()

    def lost(self, cause: BaseException, *, resume: bool = True) -> None:
        """Handle a socket that broke outside of a call; see the table above.

        Args:
            resume: without an observer, resume immediately instead of with the next use.
        """
        if resume and self.observer is None:
            return self.recover(cause)
        self._lose(cause)
        if self.observer is not None:
            self.observer.connection_lost()
            if self.session.events:
                self.observer.events_buffered()
        elif self.waker is not None:
            self.waker.wake()

    def fail(self, error: OpenDataError) -> None:
        """Handle a protocol error of the peer, or its refusal of this connection."""
        if isinstance(error, RetryLater):
            return self.recover(error)
        self.close()
        raise error

    def drop(self) -> None:
        """Close the socket because its frames may be out of step; the next use resumes."""
        current = self._detach()
        if current is not None:
            current.close()
            if self.observer is not None:
                self.observer.connection_lost()

    def _lose(self, cause: BaseException) -> None:
        """Close the broken socket after reading its remaining bytes; raise the error that the broker sent, if any."""
        self._log(log.debug, "connection to %s lost: %s", self.address, cause)
        is_closing = self.state is LinkState.CLOSING
        current = self._detach()
        try:
            while current is not None and (messages := current.receive_now()) is not None:
                self.session.receive(messages)
        except (OSError, RetryLater):
            pass
        except OpenDataError as exc:
            self.close()
            raise exc from cause
        finally:
            if current is not None:
                current.close()
        if is_closing:
            self.close()
            raise ConnectionLost(f"the connection broke while it was closed: {cause}") from cause

    def _detach(self) -> FramedSocket | None:
        current, self.current = self.current, None
        if current is not None:
            if self.state is not LinkState.CLOSED:
                self.state = LinkState.LOST
            if self.observer is not None:
                self.observer.socket_closing(current.fd)
            if self._lost_at is None:
                self._lost_at = self.clock.monotonic()
        if self.reconnect_thread is not None:
            self.reconnect_thread.wake()
        return current

    # ------------------------------------------------------------ closing
    def begin_close(self) -> None:
        """Announce the last request of the session; a break is no longer resumed."""
        if self.current is not None:
            self.state = LinkState.CLOSING

    def close(self) -> None:
        """Close permanently."""
        self.state = LinkState.CLOSED
        if self.session.in_flight.by_rid:
            self.session.fail_publishes(ConnectionLost("the connection ended before the broker confirmed it"))
        current = self._detach()
        if current is not None:
            current.close()
        if self.waker is not None:
            self.waker.wake()

    def leave_to_parent(self) -> None:
        """Close the inherited socket in a forked child; the child must not use this link again."""
        self.state = LinkState.CLOSED
        if self.current is not None:
            self.current.close()
