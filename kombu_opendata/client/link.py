"""Keeps a session connected: sends, receives, and resumes on a new socket when the old one breaks.

A break is no error by itself. The link reads what the old socket still holds, connects again (starting an embedded
broker where needed), says Hello with the leases in hand and the unconfirmed settlements, declares again what does not
outlive a connection, and sends the unanswered requests once more; a publish keeps its number, so it is stored once.
Only when that fails for ``reconnect_timeout`` does the caller see ConnectionLost.

Without an observer a resume blocks the call that met the break. With one (an event loop), the observer is told and
calls :meth:`Link.resume_once` when it likes; a call that needs an answer meanwhile still blocks.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import weakref
from collections import deque
from typing import Any, Callable, NoReturn, Optional, Protocol, Union

from ..errors import ConnectionLost, OpenDataError, ProtocolError, RetryLater, from_wire
from ..protocol.framing import frame
from ..protocol.messages import (
    BrokerMessage,
    Cancelled,
    Consume,
    Deliver,
    Delivery,
    Failed,
    Got,
    Outcome,
    Settled,
    Welcome,
)
from ..url import Address
from .clock import SYSTEM, Clock
from .dial import dial_memory, dial_tcp
from .greeting import greet
from .options import Options
from .session import Session
from .wire import Waker, Wire

logger = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 0.05
MAX_BACKOFF_SECONDS = 1.0

#: what a connection hands out: a delivery, or the end of a consumer
Event = Union[Delivery, Cancelled]


class Observer(Protocol):
    """What an event loop wants to know of a link."""

    def socket_opened(self, fd: int) -> None: ...

    def socket_closing(self, fd: int) -> None: ...

    def events_buffered(self) -> None:
        """Events came in while a call waited for its answer; no poller will tell."""

    def connection_lost(self) -> None:
        """:meth:`Link.resume_once` should be called until it returns True."""


class Link:
    """One session and the socket it has at the moment.

    Attributes:
        session: what survives the socket.
        events: deliveries and ended consumers that nobody has taken yet.
        closed: for good.
        backoff: seconds to wait before the next :meth:`resume_once`.
    """

    def __init__(
        self,
        address: Address,
        options: Options = Options(),
        *,
        clock: Clock = SYSTEM,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.address = address
        self.options = options
        self.clock = clock
        self._entropy = entropy
        self.observer: Optional[Observer] = None
        self.welcome: Optional[Welcome] = None
        self.closed = False
        self._closing = False
        self._waker: Optional[Waker] = None
        self._wire: Optional[Wire] = None
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
        self._replayed: dict[int, Any] = {}
        self._lost_at: Optional[float] = None
        self.backoff = FIRST_BACKOFF_SECONDS

    def after_fork_in_child(self) -> None:
        """Leave the parent's session to the parent; the next use opens a session of this process."""
        self.observer = None
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        self._waker = None
        self._reset()

    # ------------------------------------------------------------ connecting
    def connect(self) -> None:
        """Connect for the first time.

        Raises:
            ConnectionLost: nobody answers.
            OpenDataError: the broker refuses, or can't be started.
        """
        embedded = self.address.kind == "embedded"
        with self._lock:
            patience = self.options.start_timeout if embedded else self.options.connect_timeout
            deadline = self.clock.monotonic() + patience
            while True:
                try:
                    return self._attempt()
                except (RetryLater, ConnectionLost) as exc:
                    # an embedded broker may just be leaving, idle or killed: its successor will answer
                    hopeless = isinstance(exc, ProtocolError) or not (embedded or isinstance(exc, RetryLater))
                    if hopeless or self.clock.monotonic() >= deadline:
                        raise
                self.clock.sleep(FIRST_BACKOFF_SECONDS)

    def resume_once(self) -> bool:
        """Try to resume; False: not yet, try again after ``backoff`` seconds.

        Raises:
            ConnectionLost: it took longer than ``reconnect_timeout``; the connection is closed.
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
                lost_at = self._lost_at or 0.0
                if self.clock.monotonic() - lost_at < self.options.reconnect_timeout:
                    self.backoff = min(self.backoff * 2, MAX_BACKOFF_SECONDS)
                    return False
                self._shut()
                raise ConnectionLost(
                    f"the connection to {self.address} was lost and not resumed within "
                    f"{self.options.reconnect_timeout:g} s: {exc}",
                    address=str(self.address),
                ) from exc
            except OpenDataError:
                self._shut()
                raise
            return True

    def _ensure_open(self) -> Wire:
        while self._wire is None:
            if self.closed:
                raise ConnectionLost("the connection is closed")
            if not self._known:
                self.connect()
            elif not self.resume_once():
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
            )
            wire, welcome, rest = greet(sock, hello, options.connect_timeout)
            if welcome.adopted < len(hello.held):
                logger.info("%d leases ended while the connection was lost", len(hello.held) - welcome.adopted)
            self.welcome = welcome
            self.session.welcomed()
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
        self._lost_at = None
        self.backoff = FIRST_BACKOFF_SECONDS
        if self.observer is not None:
            self.observer.socket_opened(wire.fd)
            if self.events:
                self.observer.events_buffered()
        if self._waker is not None:
            self._waker.wake()

    def _dial(self) -> socket.socket:
        if self.address.kind == "memory":
            return dial_memory(self.address.name)
        if self.address.kind == "tcp":
            return dial_tcp(self.address, self.options)
        from .launcher import attach

        return attach(self.address, self.options, self.clock)

    def _replay(self, wire: Wire) -> None:
        """Declare again what ended with the old connection, then send again what was not answered."""
        replayed = self._replayed
        replayed.clear()
        frames = []
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
        wire = self._ensure_open()
        try:
            sent = wire.send_now(data)
            if sent != len(data):
                self._push(wire, memoryview(data)[sent:])
        except OSError as exc:
            self._recover(exc)
        except OpenDataError as exc:
            self._fail(exc)
        except BaseException:
            self._drop()  # half a frame may be out
            raise

    def _push(self, wire: Wire, data: Union[bytes, memoryview]) -> None:
        """Send all of it, reading meanwhile: the broker does not read on while it can't write to us."""
        rest = memoryview(data)
        while rest:
            rest = rest[wire.send_now(rest) :]
            if rest:
                wire.wait(None, write=True)
                self._dispatch(wire.receive_now() or ())

    def _pump(self) -> None:
        """Wait for bytes and take in the messages they complete."""
        wire = self._ensure_open()
        try:
            self._dispatch(wire.receive())
        except OSError as exc:
            self._recover(exc)
        except OpenDataError as exc:
            self._fail(exc)
        except BaseException:
            self._drop()  # bytes may have been read and not been taken in
            raise

    def _dispatch(self, messages: Any) -> None:
        """Take messages in; raises the error of a connection that the broker gave up."""
        unanswered, fatal = self._unanswered, None
        for message in messages:
            kind = type(message)
            if kind is Deliver:
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
                if rid in unanswered:
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

    def _give_back(self, late: Got) -> None:
        """The answer to a Get that nobody waits for any more."""
        if late.delivery is not None and self._wire is not None:
            channel, _tag, queue, message_id, token, _attempts, _envelope = late.delivery
            self._transmit(frame(self.session.settle(Outcome.RELEASE, channel, [(queue, message_id, token)])))

    # ------------------------------------------------------------ breaking
    def _lose(self) -> Optional[OpenDataError]:
        """The socket broke: read what it still holds and close it; returns the broker's last word, if any."""
        wire = self._detach()
        if wire is None:
            return None
        last_word: Optional[OpenDataError] = None
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

    def _detach(self) -> Optional[Wire]:
        wire, self._wire = self._wire, None
        if wire is not None:
            if self.observer is not None:
                self.observer.socket_closing(wire.fd)
            if self._lost_at is None:
                self._lost_at = self.clock.monotonic()
        return wire

    def _recover(self, cause: BaseException) -> None:
        """The socket broke in the middle of a call: resume, blocking."""
        logger.debug("connection to %s lost: %s", self.address, cause)
        last_word = self._lose()
        if last_word is not None:
            self._shut()
            raise last_word from cause
        if self._closing:
            self._shut()
            raise ConnectionLost(f"the connection broke while it was closed: {cause}") from cause
        self._ensure_open()

    def _fail(self, error: OpenDataError) -> None:
        """The peer sent garbage, or gave this connection up."""
        if isinstance(error, RetryLater):
            return self._recover(error)
        self._give_up(error)

    def _give_up(self, error: OpenDataError) -> NoReturn:
        self._shut()
        raise error

    def _shut(self) -> None:
        """Close for good."""
        self.closed = True
        wire = self._detach()
        if wire is not None:
            wire.close()
        if self._waker is not None:
            self._waker.wake()


_links: weakref.WeakSet[Link] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for link in list(_links):
        link.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
