"""Requests received from a client and not handled yet: they wait for a filter, queries, the socket or memory.

Messages run in their order, with one exception: while publishes wait for memory, settlements and other calls that free
memory run immediately. If a client sends very many messages, some run in each turn of the loop, so that all clients get
a turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...errors import OpenDataError, ProtocolError
from ...protocol.framing import HELLO_MAX_FRAME_BYTES, FrameReader, client_messages
from ...protocol.messages.message_base import WireMessage
from ..access.quotas import SessionQuotas, check_size, messages_of
from ..calls.dispatch.registry import Handler
from ..delivery.flow import Flow

_MAX_QUERIES = 4
#: unsent bytes beyond which a client's requests are not read
MAX_UNSENT_BYTES = 4 << 20
#: bytes that are still read while publishes wait, for the settlements among them
_HELD_BYTES = 64 << 10
#: messages between two checks of the clock
_LOOKS = 16


class Queries:
    """The running queries of one connection.

    Attributes:
        count: the number of running queries.
        is_full: further messages wait until a query is answered.
    """

    __slots__ = ("_under_way", "count", "is_full")

    def __init__(self) -> None:
        self._under_way: Counter[int] = Counter()  # by request number
        self.count = 0
        self.is_full = False

    def begin(self, rid: int, name: str) -> None:
        """Count a query that begins.

        Raises:
            ProtocolError: it has no request number.
        """
        if not rid:
            raise ProtocolError(f"a {name} without a request number could not be answered")
        self._under_way[rid] += 1
        self._change(1)

    def answered(self, outgoing: Iterable[WireMessage]) -> None:
        """Count the queries that these messages answer."""
        under_way = self._under_way
        for message in outgoing:
            rid = getattr(message, "rid", 0)
            if rid in under_way:
                under_way[rid] -= 1
                if not under_way[rid]:
                    del under_way[rid]
                self._change(-1)

    def _change(self, by: int) -> None:
        self.count += by
        self.is_full = self.count >= _MAX_QUERIES


class Inbox:
    """The messages of one connection before they are handled.

    Args:
        run: handles a message.
        refuse: answers a publish that can't wait any longer.
        cut_off: ends the connection after a protocol error.

    Attributes:
        transport: the connection's; None before and after it is open.
        handlers: the handlers of the session; empty before it begins.
        flow: flow control for publishes; None before the session.
        quotas: the quotas of the session; None if there is no users file.
        is_preparing: a message, and all after it, wait for its filter to be compiled.
    """

    __slots__ = (
        "_backlog", "_cut_off", "_has_more", "_held_bytes", "_is_blocked", "_paid", "_payments", "_refuse", "_run",
        "_timer", "flow", "handlers", "is_preparing", "queries", "quotas", "reader", "transport",
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
        self._backlog: deque[Any] = deque()
        self._is_blocked = False  # the first message of the backlog is a delayed publish
        self._held_bytes = 0
        self._has_more = False  # the reader has complete messages that have not run
        self.reader: FrameReader[Any] = FrameReader(client_messages, HELLO_MAX_FRAME_BYTES, bounded=True)
        self.transport: asyncio.Transport | None = None
        self.handlers: Mapping[type[WireMessage], Handler] = {}
        self.flow: Flow | None = None
        self.quotas: SessionQuotas | None = None
        self._paid: Any = None  # the publish that is delayed by a rate limit
        self._payments = 0  # the number of quotas, in order, that have counted it
        self._timer: asyncio.TimerHandle | None = None
        self.queries = Queries()
        self.is_preparing = False

    def clear(self) -> None:
        """Discard everything at the end of the connection."""
        self.reader.clear()
        self._backlog.clear()
        if self.flow is not None:
            self.flow.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._paid is not None and self.quotas is not None:
            for quota in self.quotas[: self._payments]:
                quota.give_back(messages_of(self._paid))
            self._paid = None

    # ------------------------------------------------------------------ receiving
    def take_in(self, data: bytes) -> None:
        """Run the messages that these bytes complete, or queue them.

        Raises:
            ProtocolError: the bytes are not valid messages.
        """
        messages, until = self.reader.feed(data), 0.0
        for count, message in enumerate(messages, 1):
            if self._backlog or self.is_preparing or self.queries.is_full:
                self._hold(message)
            else:
                self._run(message)
            if not count % _LOOKS and self.flow is not None and not self._is_blocked:
                time = self.flow.time()
                until = until or time + self.flow.slice_seconds
                if time > until:
                    messages.close()  # the reader keeps the rest
                    self._let_others(self.flow)
                    return
        if self._is_blocked:
            self._held_bytes += len(data)
            if self._held_bytes > _HELD_BYTES:
                self.pause()

    def _hold(self, message: Any) -> None:
        """Queue a message, and stop reading until it can run."""
        if self._is_blocked and not self.is_preparing and not self.queries.is_full:
            handler = self.handlers.get(type(message))
            if handler is not None and handler.overtakes:
                self._run(message)
            else:
                self._backlog.append(message)
            return
        self._backlog.append(message)
        self.pause()

    def _let_others(self, flow: Flow) -> None:
        """Continue with the received messages in the next turn of the loop, after the other connections."""
        self.pause()
        if not self._has_more:
            self._has_more = True
            flow.begin_slice(self.go_on)

    def pause(self) -> None:
        """Stop reading until :meth:`go_on`."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    # ------------------------------------------------------------------ waiting
    def keeps(self, message: Any) -> bool:
        """Queue a publish, which is the oldest message, if it has to wait; returns whether it is queued.

        Raises:
            LimitExceeded: it is larger than its user or its instance may publish.
        """
        if self.flow is not None and self.flow.is_closed:
            self._backlog.appendleft(message)
            self._is_blocked = True
            self.flow.wait(self)
            return True
        return self.quotas is not None and self._is_too_soon(message, self.quotas)

    def _is_too_soon(self, message: Any, quotas: SessionQuotas) -> bool:
        """Queue a publish that exceeds a rate limit; returns whether it is queued.

        It waits for its user's limit first, and counts for the instance's limit only then.
        """
        if message is not self._paid:
            check_size(quotas, message)
            self._payments = 0
        self._paid = None
        count, loop = messages_of(message), asyncio.get_running_loop()
        for quota in quotas[self._payments :]:
            self._payments += 1
            seconds = quota.delay(count, loop.time())
            if seconds:
                self._paid = message
                self._backlog.appendleft(message)
                self._is_blocked = True
                self._timer = loop.call_later(seconds, self.unblock)
                return True
        return False

    def unblock(self) -> None:
        """Run the delayed publish."""
        self._is_blocked = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held_bytes = 0
        self.go_on()

    def refuse(self, exc: OpenDataError) -> None:
        """Refuse the delayed publishes, up to the first other call, and continue with that."""
        while self._backlog:
            handler = self.handlers.get(type(self._backlog[0]))
            if handler is None or not handler.stores:
                break
            self._refuse(self._backlog.popleft(), exc)
        self.unblock()

    def answered(self, outgoing: list[Any]) -> None:
        """Count the queries that these messages answer, and continue if messages waited for that."""
        self.queries.answered(outgoing)
        if self._backlog:
            asyncio.get_running_loop().call_soon(self.go_on)

    def go_on(self) -> None:
        """Run waiting messages, as far as possible, and read again after the last one."""
        try:
            while self.transport is not None and not self.transport.is_closing() and not self.is_preparing:
                if self._is_blocked or self.queries.is_full:
                    return
                if self.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                    return
                if self._backlog:
                    self._run(self._backlog.popleft())
                elif self._has_more:
                    self._has_more = False
                    self.take_in(b"")
                    if self._has_more:
                        return
                else:
                    self.transport.resume_reading()
                    return
        except ProtocolError as exc:
            self._cut_off(exc)
