"""Inbox of a connection: requests received from a client and not handled yet.

Messages run in order when they are complete. A message may have to wait: a publish that exceeds a limit, a message
that a thread prepares, any message while the client does not read its replies. The messages that follow then
wait in a backlog, and the socket is not read, so the client's buffers fill up and the client stops sending.

=============  ==========================================  ============================================================
state          messages                                    entered when
=============  ==========================================  ============================================================
``CLOSED``     are discarded                               the connection is not made yet, or lost
``RUNNING``    run when they arrive                        no message waits
``DELAYED``    that overtake run; the others wait behind   a publish has to wait for flow control or a rate limit; it
               the delayed publish                         is the first message of the backlog
``HALTED``     all wait                                    a thread compiles a filter or writes a large envelope, or
                                                           :data:`MAX_QUERIES` queries are running
=============  ==========================================  ============================================================

``HALTED`` has precedence over ``DELAYED``: a message that overtook a delayed publish may have a filter. When both
causes of ``HALTED`` have ended, the inbox is ``DELAYED`` again if a publish still waits. :meth:`Inbox.unblock` ends a
delay when publishes resume or the rate permits the next publish; :meth:`Inbox.refuse` ends it with an error.

Invariants:

* A message runs only in ``RUNNING`` with an empty backlog, or as the first message of the backlog; in ``DELAYED`` only
  if its operation overtakes; in ``HALTED`` only if the inbox waited for its own filter. So the effects of one client's
  calls are in the order of the calls.
* Publishes never overtake each other: only calls that free memory, only read, or show that the client is alive do.
* While a publish is delayed, the socket is still read, up to :data:`_HELD_BYTES`, because the settlements that free the
  memory arrive over the same connection. If the inbox stopped reading immediately, it would deadlock.
* Reading resumes only when the backlog is empty and the reader has no complete message left.
* Besides what arrived during a delay, an inbox holds at most the rest of one read of the socket and one incomplete
  frame (:mod:`.partial_frames` limits the frames of all connections).

**Continuing.** Only :meth:`Inbox.go_on` resumes reading, and it does nothing while a cause of a wait remains. It is
called at the end of a delay, a query, a slice, a preparation and the login, when another connection's large frame is
complete, and when the client has read its replies (``resume_writing``).

An inbox belongs to one connection. Queries and preparations that outlive the connection change only this inbox.

A simple queue with one consumer task fails in three ways. Settlements can't overtake. The queue has an object for each
message of a client that publishes faster than the disk; the inbox leaves the bytes in the kernel. And the task adds a
turn of the event loop to each call; the inbox runs a message in the callback that received it.

A client that sends very many messages must not block the event loop. After a slice of time
(:attr:`.Flow.slice_seconds`) the reader holds the other messages, and :meth:`Inbox.go_on` continues in the next turn,
after the other connections. While a publish is delayed there are no slices, as little is read.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Any

from ...errors import OpenDataError, ProtocolError
from ...protocol.framing import HELLO_MAX_FRAME_BYTES, FrameReader, client_messages
from ...protocol.messages.message_base import WireMessage
from ..access.quotas import SessionQuotas, check_size, messages_of
from ..calls.dispatch import Handler
from ..delivery.publish_flow_control import Flow

#: maximum number of concurrent queries of a connection: calls whose replies may be far larger than the calls
MAX_QUERIES = 4
#: unsent bytes beyond which a client's requests are not read
MAX_UNSENT_BYTES = 4 << 20
#: limit for the bytes that are read while publishes wait, for the settlements among them
_HELD_BYTES = 64 << 10
#: messages between two checks of the clock
_LOOKS = 16


class InboxState(Enum):
    """States of an inbox; see the table of the module."""

    CLOSED = auto()
    RUNNING = auto()
    DELAYED = auto()
    HALTED = auto()


_RUNNING, _DELAYED = InboxState.RUNNING, InboxState.DELAYED


class Inbox:
    """Messages of one connection before they are handled.

    Args:
        run: handles a message.
        refuse: refuses a delayed publish with an error.
        cut_off: ends the connection after a protocol error.

    Attributes:
        handlers: the handlers of the session; empty before it begins.
        flow: flow control for publishes; None before the session.
        quotas: the quotas of the session; None if there is no users file.
        is_preparing: True while a thread compiles the filter of a message, or writes its envelope.
    """

    __slots__ = (
        "_backlog", "_charged", "_charges", "_cut_off", "_held_bytes", "_is_delayed", "_queries", "_refuse", "_run",
        "_slice_is_over", "_timer", "_transport", "flow", "handlers", "is_preparing", "queries", "quotas", "reader",
        "state",
    )  # fmt: skip

    def __init__(
        self,
        run: Callable[[Any], None],
        refuse: Callable[[Any, OpenDataError], None],
        cut_off: Callable[[OpenDataError], None],
    ) -> None:
        self._run = run
        self._refuse = refuse
        self._cut_off = cut_off
        self.state = InboxState.CLOSED
        self.reader: FrameReader[Any] = FrameReader(client_messages, HELLO_MAX_FRAME_BYTES, bounded=True)
        self.handlers: Mapping[type[WireMessage], Handler] = {}
        self.flow: Flow | None = None
        self.quotas: SessionQuotas | None = None
        self.is_preparing = False
        self.queries = 0
        self._queries: Counter[int] = Counter()  # by request number
        self._transport: asyncio.Transport | None = None
        self._backlog: deque[Any] = deque()
        self._is_delayed = False  # the first message of the backlog is a delayed publish
        self._held_bytes = 0  # received during the delay
        self._slice_is_over = False  # the reader may have complete messages that have not run
        self._charged: Any = None  # the publish that is delayed by a rate limit
        self._charges = 0  # the number of quotas, in order, that have counted this publish
        self._timer: asyncio.TimerHandle | None = None

    def open(self, transport: asyncio.Transport) -> None:
        """Begin to run messages after the connection is made."""
        self._transport = transport
        self._change_state()

    def begin_session(
        self, handlers: Mapping[type[WireMessage], Handler], flow: Flow, quotas: SessionQuotas | None
    ) -> None:
        """Set the handlers and limits of the session, whose calls may then run."""
        self.handlers, self.flow, self.quotas = handlers, flow, quotas

    def clear(self) -> None:
        """Discard everything at the end of the connection; rate limits get back the publish that they delayed."""
        self.reader.clear()
        self._backlog.clear()
        if self.flow is not None:
            self.flow.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._charged is not None and self.quotas is not None:
            for quota in self.quotas[: self._charges]:
                quota.give_back(messages_of(self._charged))
            self._charged = None

    def close(self) -> None:
        """Discard everything after the connection is lost."""
        self._transport = None
        self._change_state()
        self.clear()

    def _change_state(self) -> None:
        if self._transport is None:
            self.state = InboxState.CLOSED
        elif self.is_preparing or self.queries >= MAX_QUERIES:
            self.state = InboxState.HALTED
        else:
            self.state = _DELAYED if self._is_delayed else _RUNNING

    # ------------------------------------------------------------------ receiving
    def take_in(self, data: bytes) -> None:
        """Run the messages that these bytes complete, or queue them.

        Raises:
            ProtocolError: the bytes are not valid messages.
        """
        if self.state is _RUNNING and not self._backlog and (message := self.reader.single(data)) is not None:
            self._run(message)
        else:
            self._take_all(data)
        if self._is_delayed:
            self._held_bytes += len(data)
            if self._held_bytes > _HELD_BYTES:
                self.pause()

    def _take_all(self, data: bytes) -> None:
        messages, until = self.reader.feed(data), 0.0
        for count, message in enumerate(messages, 1):
            if self.state is _RUNNING and not self._backlog:
                self._run(message)
            elif self.state is not _DELAYED:
                self._backlog.append(message)
                self.pause()
            elif (handler := self.handlers.get(type(message))) is not None and handler.overtakes:
                self._run(message)
            else:
                self._backlog.append(message)
            if not count % _LOOKS and self.flow is not None and not self._is_delayed:
                time = self.flow.time()
                until = until or time + self.flow.slice_seconds
                if time > until:
                    messages.close()  # the reader holds the other messages
                    self._end_slice(self.flow)
                    return

    def _end_slice(self, flow: Flow) -> None:
        """Continue with the received messages in the next turn of the loop, after the other connections."""
        self.pause()
        if not self._slice_is_over:
            self._slice_is_over = True
            flow.begin_slice(self.go_on)

    def pause(self) -> None:
        """Stop reading until :meth:`go_on`."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Run waiting messages, as far as possible; read again when none waits."""
        transport = self._transport
        try:
            while self.state is _RUNNING and transport is not None and not transport.is_closing():
                if transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                    return
                if self._backlog:
                    self._run(self._backlog.popleft())
                elif self._slice_is_over:
                    self._slice_is_over = False
                    self.take_in(b"")
                    if self._slice_is_over:
                        return
                else:
                    transport.resume_reading()
                    return
        except ProtocolError as exc:
            self._cut_off(exc)

    # ------------------------------------------------------------------ large messages in part
    @property
    def socket(self) -> Any:
        return self._transport.get_extra_info("socket") if self._transport is not None else None

    def give_up(self, exc: ProtocolError) -> None:
        """End the connection of a client that does not send the rest of a large message."""
        self._cut_off(exc)

    # ------------------------------------------------------------------ halting
    def change_preparing(self, is_preparing: bool) -> None:
        """Begin or end the wait for the thread that prepares a message."""
        self.is_preparing = is_preparing
        self._change_state()

    def begin_query(self, rid: int, name: str) -> None:
        """Count a query that begins; raise ProtocolError if it has no request number."""
        if not rid:
            raise ProtocolError(f"a {name} without a request number could not be answered")
        self._queries[rid] += 1
        self.queries += 1
        self._change_state()

    def answered(self, outgoing: Iterable[WireMessage]) -> None:
        """Count the queries that end with these replies, and continue after that if the inbox was halted.

        The backlog may be empty then, although the socket is not read: its last message may be the query that halted.
        """
        running, was_halted = self._queries, self.state is InboxState.HALTED
        for message in outgoing:
            rid = getattr(message, "rid", 0)
            if rid in running:
                running[rid] -= 1
                if not running[rid]:
                    del running[rid]
                self.queries -= 1
        self._change_state()
        if was_halted or self._backlog or self._slice_is_over:
            asyncio.get_running_loop().call_soon(self.go_on)

    # ------------------------------------------------------------------ delaying publishes
    def delays(self, message: Any) -> bool:
        """Queue a publish, which is the oldest message, if it has to wait; return True if it is queued.

        Raises:
            LimitExceeded: the publish is larger than the limit of its user or its instance.
        """
        if self.flow is not None and self.flow.is_closed:
            self._delay(message)
            self.flow.wait(self)
            return True
        return self.quotas is not None and self._exceeds_rate(message, self.quotas)

    def _delay(self, message: Any) -> None:
        self._backlog.appendleft(message)
        self._is_delayed = True
        self._change_state()

    def _exceeds_rate(self, message: Any, quotas: SessionQuotas) -> bool:
        """Queue a publish that exceeds a rate limit; return True if it is queued.

        The publish waits for its user's limit first. Only then does it count for the instance's limit.
        """
        if message is not self._charged:
            check_size(quotas, message)
            self._charges = 0
        self._charged = None
        count, loop = messages_of(message), asyncio.get_running_loop()
        for quota in quotas[self._charges :]:
            self._charges += 1
            seconds = quota.delay(count, loop.time())
            if seconds:
                self._charged = message
                self._delay(message)
                self._timer = loop.call_later(seconds, self.unblock)
                return True
        return False

    def unblock(self) -> None:
        """Run the delayed publish."""
        self._is_delayed = False
        self._change_state()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held_bytes = 0
        self.go_on()

    def refuse(self, exc: OpenDataError) -> None:
        """Refuse the delayed publishes up to the first other call, and continue with that call."""
        while self._backlog:
            handler = self.handlers.get(type(self._backlog[0]))
            if handler is None or not handler.stores:
                break
            self._refuse(self._backlog.popleft(), exc)
        self.unblock()
