"""A session's socket: takes in what the broker sends, and puts a broken socket away.

Nothing here connects; :mod:`.link` does.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from ...errors import BrokerStopping, ConnectionLost, FailedPublish, OpenDataError, RetryLater, from_wire
from ...protocol.framing import frame
from ...protocol.messages import (
    BrokerMessage,
    Cancelled,
    Consume,
    Deliver,
    Delivery,
    Failed,
    Got,
    Outcome,
    Published,
    Settled,
    Welcome,
)
from ...url import Address
from ..clock import SYSTEM, Clock
from ..connection_options import DEFAULTS, Options
from ..socket.framed_socket import Waker, Wire
from .session import Session

if TYPE_CHECKING:
    from .reconnect_thread import Keeper

logger = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 0.05

#: what a connection hands out: a delivery, or the end of a consumer
Event: TypeAlias = Delivery | Cancelled


class InFlight(NamedTuple):
    """A publish that was sent and not waited for; ``failures`` gets it if it fails."""

    size: int
    exchange: str
    routing_key: str
    task_id: str
    message_id: str
    failures: list[FailedPublish]

    def fail(self, error: OpenDataError) -> None:
        self.failures.append(FailedPublish(self.exchange, self.routing_key, self.task_id, self.message_id, error))


class Observer(Protocol):
    """What an event loop wants to know of a connection."""

    def socket_opened(self, fd: int) -> None: ...

    def socket_closing(self, fd: int) -> None: ...

    def events_buffered(self) -> None:
        """Events came in while a call waited for its answer; no poller will tell."""

    def connection_lost(self) -> None:
        """``resume_once`` should be called until it returns True."""


class Stream:
    """One session, and the socket it has at the moment.

    Attributes:
        session: what survives the socket.
        events: deliveries and ended consumers that nobody has taken yet.
        closed: for good.
        failures: publishes that failed after nobody waited for them, and that nobody was told of yet.
        backoff: seconds to wait before the next attempt to resume.
        keeper: the thread that resumes while the process is in user code, where one was started.
    """

    def __init__(
        self,
        address: Address,
        options: Options = DEFAULTS,
        *,
        clock: Clock = SYSTEM,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.address = address
        self.options = options
        self.clock = clock
        self._entropy = entropy
        self.observer: Observer | None = None
        self.welcome: Welcome | None = None
        self.closed = False
        self._closing = False
        self._waker: Waker | None = None
        self._wire: Wire | None = None
        self._reset()
        _links.add(self)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self.session = Session(self._entropy(16))
        self.events: deque[Event] = deque()
        self._known = False  # whether the broker knows this session
        self._rid = 0
        self._unanswered: dict[int, bytes] = {}
        self._answers: dict[int, Any] = {}
        self._in_flight: dict[int, InFlight] = {}
        self._in_flight_bytes = 0
        self.failures: list[FailedPublish] = []
        self._replayed: dict[int, Any] = {}
        self._lost_at: float | None = None
        self._why: Exception | None = None  # why the last attempt to resume failed
        self.backoff = FIRST_BACKOFF_SECONDS
        self.keeper: Keeper | None = None

    def after_fork_in_child(self) -> None:
        """Leave the parent's session to the parent; the next use opens a session of this process."""
        self.observer = None
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        self._waker = None
        self._reset()

    # ------------------------------------------------------------ sending and receiving
    def _push(self, wire: Wire, data: bytes | memoryview) -> None:
        """Send all of it, reading meanwhile: the broker does not read on while it can't write to us."""
        rest = memoryview(data)
        while rest:
            rest = rest[wire.send_now(rest) :]
            if rest:
                if not wire.wait(wire.silence, write=True):
                    raise TimeoutError(wire.silent_text)
                self._dispatch(wire.receive_now() or ())

    def _dispatch(self, messages: Any) -> None:
        """Take messages in; raises the error of a connection that the broker gave up."""
        unanswered, in_flight, fatal = self._unanswered, self._in_flight, None
        for message in messages:
            kind = type(message)
            if kind is Published and message.rid in unanswered:
                del unanswered[message.rid]
                if message.rid in in_flight:
                    self._landed(message.rid)
                else:
                    self._answers[message.rid] = message
            elif kind is Deliver:
                if message.settled:
                    self.session.confirm(message.settled)
                self.events.extend(message.deliveries)
                self.session.take(message.deliveries)
            elif kind is Settled:
                self.session.confirm(message.settled)
            elif kind is Cancelled:
                self.session.cancelled(message.channel, message.tag)
                self.events.append(message)
            else:
                rid = getattr(message, "rid", None)
                if rid is None:
                    continue  # BrokerHeartbeat; BrokerGoodbye, which the end of the stream follows
                if rid in in_flight:
                    self._take_refusal(message)
                elif rid in unanswered:
                    del unanswered[rid]
                    self._answers[rid] = message
                    if kind is Got and message.delivery is not None:
                        self.session.take((message.delivery,))
                elif rid in self._replayed:
                    self._take_replayed(self._replayed.pop(rid), message)
                elif rid == 0 and kind is Failed:
                    fatal = from_wire(message.code, message.text, message.values)
                elif kind is Got:
                    self._give_back(message)
        if fatal is not None:
            raise fatal

    def _take_replayed(self, message: Any, answer: BrokerMessage) -> None:
        if not isinstance(answer, Failed):
            return
        logger.warning("after a reconnect, %s failed: %s", type(message).__name__, answer.text)
        if isinstance(message, Consume):
            self.session.cancelled(message.channel, message.tag)
            self.events.append(Cancelled(message.channel, message.tag, answer.text))

    # ------------------------------------------------------------ publishes in flight
    def _landed(self, rid: int) -> InFlight | None:
        entry = self._in_flight.pop(rid, None)
        if entry is not None:
            self._in_flight_bytes -= entry.size
        return entry

    def _take_refusal(self, answer: Failed) -> None:
        if answer.code == BrokerStopping.code:
            return  # its successor will answer
        self._unanswered.pop(answer.rid, None)
        entry = self._landed(answer.rid)
        if entry is not None:
            entry.fail(from_wire(answer.code, answer.text, answer.values))

    def _give_up_in_flight(self, error: OpenDataError) -> None:
        """Nobody will tell what became of them."""
        for rid in list(self._in_flight):
            self._unanswered.pop(rid, None)
            entry = self._landed(rid)
            if entry is not None:
                entry.fail(error)

    def _give_back(self, late: Got) -> None:
        """The answer to a Get that nobody waits for any more."""
        if late.delivery is not None and self._wire is not None:
            settle = self.session.settle(Outcome.RELEASE, late.delivery[0], [late.delivery[2:5]])
            self._push(self._wire, frame(settle))

    # ------------------------------------------------------------ breaking
    def _lose(self) -> OpenDataError | None:
        """The socket broke: read what it still holds and close it; returns the broker's last word, if any."""
        wire = self._detach()
        if wire is None:
            return None
        last_word: OpenDataError | None = None
        try:
            while (messages := wire.receive_now()) is not None:
                self._dispatch(messages)
        except OSError:
            pass
        except OpenDataError as exc:
            last_word = exc
        wire.close()
        return None if isinstance(last_word, RetryLater) else last_word

    def _drop(self) -> None:
        """The stream may be out of step: close the socket; the next use resumes."""
        wire = self._detach()
        if wire is not None:
            wire.close()
            if self.observer is not None:
                self.observer.connection_lost()

    def _detach(self) -> Wire | None:
        wire, self._wire = self._wire, None
        if wire is not None:
            if self.observer is not None:
                self.observer.socket_closing(wire.fd)
            if self._lost_at is None:
                self._lost_at = self.clock.monotonic()
        if self.keeper is not None:
            self.keeper.wake()
        return wire

    def _shut(self) -> None:
        """Close for good."""
        self.closed = True
        if self._in_flight:
            self._give_up_in_flight(ConnectionLost("the connection ended before the broker confirmed it"))
        wire = self._detach()
        if wire is not None:
            wire.close()
        if self._waker is not None:
            self._waker.wake()


_links: weakref.WeakSet[Stream] = weakref.WeakSet()


def open_streams() -> list[Stream]:
    """All of this process that are not closed."""
    return [link for link in list(_links) if not link.closed]


def _after_fork_in_child() -> None:
    for link in list(_links):
        link.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
