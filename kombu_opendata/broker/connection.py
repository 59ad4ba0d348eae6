"""One client connection: preamble, Hello, frames in, frames out. A peer that talks garbage is cut off, nobody else."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import Any, cast

from ..errors import AccessRefused, OpenDataError, ProtocolError, RequestError, VersionMismatch
from ..protocol import messages as m
from ..protocol import queue_messages as q
from ..protocol.frame_limits import Refused
from ..protocol.framing import (
    HELLO_MAX_FRAME_BYTES,
    PREAMBLE,
    PREAMBLE_BYTES,
    FrameReader,
    check_preamble,
    client_messages,
    frame,
)
from ..protocol.message_base import Message
from ..protocol.tcp import is_tcp, set_tcp_options
from ..selectors.selector import precompile
from .admission import Slot
from .calls.context import Context
from .calls.registry import Handler, Special
from .connections import Connections
from .greeting import Admitted, Greeting
from .handlers import Handlers
from .heartbeat import Heartbeat
from .host import Host, Hosts
from .logins import Logins
from .queries import Queries
from .settings import BrokerSettings, broker_version

log = logging.getLogger(__name__)

#: a Deliver frame is cut when its envelopes exceed this, so that a client gets to work early
_DELIVER_BYTES = 1 << 20
#: unsent bytes past which a client gets no deliveries …
WRITE_HIGH_WATER_BYTES = 4 << 20
#: … and past which its requests are not read either
MAX_UNSENT_BYTES = 32 << 20
#: calls with an answer that may be far larger than they are; a client has so many under way, what follows them waits
_QUERIES = frozenset(
    {
        m.CreateInstance, m.ListInstances,
        m.GetStatus, m.ListBindings, m.GetResults, m.GetChord,
        q.Peek, q.GetMessage, q.ListByState, q.GetMetrics, q.ListQueues, q.ListWorkers,
    }
)  # fmt: skip
_ABOUT_INSTANCES = frozenset({m.CreateInstance, m.ListInstances})
_WITH_FILTERS = frozenset({m.DeclareQueue, q.Read})
#: of a connection that was told why it is closed, and does not read; of one that has not logged in, as there may be
#: very many, and each has a file descriptor
_LINGER_SECONDS = 2.0
_STRANGER_LINGER_SECONDS = 0.1


class Connection(asyncio.Protocol):
    """The protocol of one socket."""

    def __init__(
        self, slot: Slot, connections: Connections, hosts: Hosts, logins: Logins | None, settings: BrokerSettings
    ) -> None:
        self.slot = slot
        self._connections = connections
        self._settings = settings
        self._hosts = hosts
        self._transport: asyncio.Transport | None = None
        self._preamble = b""
        self._reader: FrameReader[Any] = FrameReader(client_messages, HELLO_MAX_FRAME_BYTES, bounded=True)
        self._host: Host | None = None  # from its session on
        self._handlers: Handlers | None = None
        self._context: Context | None = None
        self._calls: Mapping[type[Message], Handler] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._backlog: deque[Any] = deque()  # came in, and must wait
        self._queries = Queries()
        self._greeting = Greeting(slot, logins, hosts)
        self._heartbeat = Heartbeat()
        self._preparing = False  # a message waits for its filter to be compiled, and what came after it waits too
        self._leaving = False
        self.writable = True
        self._lingering: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ asyncio's side
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self.slot.turn_away = self._cut_off
        self._connections.add(self)
        if is_tcp(self._socket()):
            set_tcp_options(self._socket(), user_timeout_ms=None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.slot.free()
        self._heartbeat.stop()
        if self._lingering is not None:
            self._lingering.cancel()
        self._connections.discard(self)
        context, self._context = self._context, None
        if context is not None and self._host is not None and context.session.connection is self:
            self._host.lifecycle.detach(context.session)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if self._transport is not None and not self._transport.is_closing():
            self._go_on()
        if self._context is not None and self._host is not None:
            self._host.queues.wake_session(self._context.session)

    def data_received(self, data: bytes) -> None:
        try:
            if len(self._preamble) < PREAMBLE_BYTES:
                data = self._read_preamble(data)
            for message in self._reader.feed(data):
                if self._backlog or self._preparing or self._queries.is_full:
                    self._hold(message)
                else:
                    self._handle(message)
        except (ProtocolError, VersionMismatch) as exc:
            self._cut_off(exc)

    # ------------------------------------------------------------------ messages
    def _read_preamble(self, data: bytes) -> bytes:
        need = PREAMBLE_BYTES - len(self._preamble)
        self._preamble += data[:need]
        if len(self._preamble) == PREAMBLE_BYTES:
            self._write(PREAMBLE)
            check_preamble(self._preamble, peer="client")
        elif not PREAMBLE.startswith(self._preamble[:4]):
            check_preamble(self._preamble.ljust(PREAMBLE_BYTES, b"\0"), peer="client")
        return data[need:]

    def _hold(self, message: Any) -> None:
        """Leave a message for later, and read no more until then."""
        self._backlog.append(message)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _go_on(self) -> None:
        """Handle what was left for later, as far as it can be, and read again when that is all."""
        try:
            while self._transport is not None and not self._transport.is_closing() and not self._preparing:
                if self._queries.is_full or self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                    return
                if not self._backlog:
                    self._transport.resume_reading()
                    return
                self._handle(self._backlog.popleft())
        except ProtocolError as exc:
            self._cut_off(exc)

    def _handle(self, message: Any) -> None:
        handlers, host = self._handlers, self._host
        if self._leaving:
            return
        if handlers is None or self._context is None or host is None:
            self._greet(message)
            return
        kind = type(message)
        known = self._calls.get(kind)
        if known is not None:
            self._run(known, message)
            return
        if kind in _WITH_FILTERS and not self._preparing:
            text = handlers.filter_to_compile(message)
            if text:
                self._preparing = True
                self._spawn(self._prepare(message, text))
                return
        if kind in _QUERIES:
            self._queries.begin(message.rid, kind.__name__)
        if kind in _ABOUT_INSTANCES:
            self._spawn(self._run_about_instances(self._context, message))
            return
        if kind in Handlers.ADMIN or (kind in Handlers.DEFINITIONS and host.queues.lock.locked()):
            self._spawn(self._run_admin(self._context, handlers, message))
            return
        try:
            handler = Handlers.DIRECT.get(kind)
            if handler is None:
                raise message.error if kind is Refused else ProtocolError("a second Hello")
            handler(handlers, message)
        except OpenDataError as exc:
            self._refuse(self._context, message, exc)
        except Exception as exc:
            log.exception("a %s failed", kind.__name__)
            self._refuse(self._context, message, OpenDataError(f"the broker failed at this call: {exc!r}; see its log"))
        if kind is m.Goodbye:
            self._leaving = True
            host.outbox.answer_last(self, m.Ok(message.rid))

    def _run(self, handler: Handler, message: Any) -> None:
        context = self._context
        assert context is not None
        if handler.special is not None and not self._is_ready(handler.special, message):
            return
        try:
            handler.run(context, message)
        except OpenDataError as exc:
            self._refuse(context, message, exc)
        except Exception as exc:
            log.exception("a %s failed", type(message).__name__)
            self._refuse(context, message, OpenDataError(f"the broker failed at this call: {exc!r}; see its log"))

    def _is_ready(self, special: Special, message: Any) -> bool:
        """Whether a call may run now; otherwise it runs later, or was answered already."""
        if special.filter_of is not None and not self._preparing:
            text = special.filter_of(message)
            if text:
                self._preparing = True
                self._spawn(self._prepare(message, text))
                return False
        if special.query:
            self._queries.begin(message.rid, type(message).__name__)
        return True

    def _refuse(self, context: Context, message: Any, exc: OpenDataError) -> None:
        if isinstance(exc, ProtocolError):
            raise exc
        self._connections.calls_refused[exc.code] += 1
        rid = getattr(message, "rid", 0)
        if rid:
            context.reply(m.Failed(rid, exc.code, exc.text, exc.values))

    async def _prepare(self, message: Any, text: str) -> None:
        """Compile a filter beside the loop, so that a long one holds up nobody but its own connection."""
        try:
            await asyncio.to_thread(precompile, text)
            if self._context is not None and self._context.session.connection is self:
                self._handle(message)
        except ProtocolError as exc:
            self._cut_off(exc)
        finally:
            self._preparing = False
        self._go_on()

    async def _run_about_instances(self, context: Context, message: m.CreateInstance | m.ListInstances) -> None:
        try:
            context.reply(await self._hosts.answer(message))
        except OpenDataError as exc:
            self._refuse(context, message, exc)

    async def _run_admin(self, context: Context, handlers: Handlers, message: Any) -> None:
        try:
            await handlers.run_admin(message)
        except OpenDataError as exc:
            self._refuse(context, message, exc)

    # ------------------------------------------------------------------ the beginning
    def _greet(self, message: Any) -> None:
        said = self._greeting.expect(message)
        admitted = self._greeting.admitted
        if isinstance(said, m.Resume) and admitted is not None:
            self._begin(admitted, said)
        elif isinstance(said, m.Hello):
            if self._transport is not None:
                self._transport.pause_reading()
            self._spawn(self._log_in(said))

    async def _log_in(self, hello: m.Hello) -> None:
        try:
            admitted = await self._greeting.check(hello, self._socket())
        except OpenDataError as exc:
            who = f"{hello.name[:100]!r} at {self.slot.peer}"
            self._connections.note_refused(exc, "a client was refused", who)
            self.send_all([m.Failed(hello.rid, exc.code, exc.text, exc.values)])
            self._close_soon()
            return
        if self._transport is None or self._transport.is_closing():
            return
        self.slot.logged_in()
        self._reader.max_frame_bytes = self._settings.max_frame_bytes
        if hello.resume_follows:
            self.send_all([m.LoggedIn(hello.rid)])
        else:
            self._begin(admitted, hello)
        self._go_on()

    def _begin(self, admitted: Admitted, said: m.Hello | m.Resume) -> None:
        settings, (host, hello) = self._settings, admitted
        session, adopted = host.lifecycle.begin(hello, said, self)
        self._handlers = host.handlers(session)
        self._host, self._calls = host, host.calls
        self._context = Context(session, host.outbox, host.background, host.queues, host.name)
        self._context.reply(
            m.Welcome(
                said.rid,
                broker_version(),
                settings.max_frame_bytes,
                settings.max_message_bytes,
                self._heartbeat.start(self._transport, hello.heartbeat_ms, int(1000 * settings.heartbeat_seconds)),
                host.lifecycle.last_publish(session),
                adopted,
            )
        )

    def _socket(self) -> Any:
        return self._transport.get_extra_info("socket") if self._transport is not None else None

    # ------------------------------------------------------------------ writing
    def send_all(self, outgoing: list[Any]) -> None:
        """Send messages in order."""
        frames: list[bytes] = []
        for message in outgoing:
            if type(message) is m.Deliver and len(message.deliveries) > 1:
                frames += map(frame, _cut(message))
            else:
                frames.append(frame(message))
        self._write(b"".join(frames))
        if self._queries.count:
            self._queries.answered(outgoing)
            if self._backlog:
                asyncio.get_running_loop().call_soon(self._go_on)
        if self._leaving and self._transport is not None:
            self._transport.close()

    def _write(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or not data:
            return
        self._heartbeat.is_quiet = False
        transport.write(data)
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES and not transport.is_closing():
            transport.pause_reading()

    def check_login(self, logins: Logins) -> None:
        """The users changed: end the connection if its user is gone or has another secret."""
        try:
            self._greeting.check_again(logins)
        except AccessRefused as exc:
            self._cut_off(exc)

    def _cut_off(self, exc: OpenDataError) -> None:
        self._connections.note_refused(exc, "a connection was closed", self.slot.peer)
        if len(self._preamble) < PREAMBLE_BYTES:
            self._write(PREAMBLE)  # without it the client would not understand the rest
        self._write(frame(m.Failed(0, exc.code, exc.text, exc.values)))
        self._close_soon()

    def _close_soon(self) -> None:
        """Close, and do not wait for long until the client has read what was written."""
        self._reader.clear()
        if self._transport is not None:
            self._transport.close()
            self._heartbeat.stop()
            seconds = _STRANGER_LINGER_SECONDS if self._host is None else _LINGER_SECONDS
            self._lingering = asyncio.get_running_loop().call_later(seconds, self.abort)

    def say_goodbye(self, reason: str) -> None:
        """Tell the client that the broker stops, and close."""
        if self._transport is not None:
            self.send_all([m.BrokerGoodbye(reason)])
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a call failed", exc_info=task.exception())
            self._cut_off(RequestError(f"the broker failed at this call: {task.exception()!r}; see its log"))


def _cut(message: m.Deliver) -> list[m.Deliver]:
    """One Deliver, or several when it is large."""
    parts: list[list[m.Delivery]] = [[]]
    size = 0
    for delivery in message.deliveries:
        size += len(delivery[6])
        if size > _DELIVER_BYTES and parts[-1]:
            parts.append([])
            size = len(delivery[6])
        parts[-1].append(delivery)
    return [m.Deliver(message.settled, part) for part in parts]
