"""One client connection: reads and writes frames, and runs the calls. A protocol error closes only this connection."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import Any, cast

from ...errors import AccessRefused, OpenDataError, ProtocolError, RequestError, StoreStalled, VersionMismatch
from ...protocol import messages as m
from ...protocol.frame_limits import Refused
from ...protocol.framing import HELLO_MAX_FRAME_BYTES, PREAMBLE, FrameReader, client_messages, frame
from ...protocol.message_base import Message
from ...protocol.tcp import is_tcp, set_tcp_options
from ...selectors.selector import precompile
from ...version import __version__
from ..calls.all_calls import InstanceCalls
from ..calls.context import Context
from ..calls.registry import Handler
from ..delivery.store_gate import StoreGate
from .broker_settings import BrokerSettings
from .connection_limits import Slot
from .connections import Connections
from .greeting import Admitted, Greeting, HostFor
from .heartbeat import Heartbeat
from .logins import Logins
from .queries import Queries

log = logging.getLogger(__name__)

#: a Deliver frame is cut when its envelopes exceed this, so that a client gets to work early
_DELIVER_BYTES = 1 << 20
#: unsent bytes beyond which a client gets no deliveries
WRITE_HIGH_WATER_BYTES = 4 << 20
#: unsent bytes beyond which its requests are not read
MAX_UNSENT_BYTES = 32 << 20
#: how long a closing connection waits for its client to read the reason
_LINGER_SECONDS = 2.0
_STRANGER_LINGER_SECONDS = 0.1  # before the login: there may be very many, each with a file descriptor


class Connection(asyncio.Protocol):
    """The protocol of one socket."""

    def __init__(
        self, slot: Slot, connections: Connections, host_for: HostFor, logins: Logins | None, settings: BrokerSettings
    ) -> None:
        self.slot = slot
        self._connections = connections
        self._settings = settings
        self._transport: asyncio.Transport | None = None
        self._reader: FrameReader[Any] = FrameReader(client_messages, HELLO_MAX_FRAME_BYTES, bounded=True)
        self._host: InstanceCalls | None = None  # since its session began
        self._context: Context | None = None
        self._handlers: Mapping[type[Message], Handler] = {}
        self._gate: StoreGate | None = None  # since then, too
        self._tasks: set[asyncio.Task[None]] = set()
        self._backlog: deque[Any] = deque()  # received messages that must wait
        self._queries = Queries()
        self._greeting = Greeting(slot, logins, settings.socket_access, host_for)
        self._heartbeat = Heartbeat()
        self._preparing = False  # a message and all after it wait for its filter to be compiled
        self._leaving = False
        self.writable = True
        self._lingering: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ callbacks of asyncio
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self.slot.turn_away = self._cut_off
        self._connections.add(self)
        if is_tcp(sock := self._extra("socket")):
            set_tcp_options(sock, user_timeout_ms=None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.slot.free()
        self._heartbeat.stop()
        if self._lingering is not None:
            self._lingering.cancel()
        self._connections.discard(self)
        context, self._context = self._context, None
        if self._gate is not None:
            self._gate.forget(self)
        if context is not None and self._host is not None and context.session.connection is self:
            self._host.lifecycle.detach(context.session)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if self._transport is not None and not self._transport.is_closing():
            self.go_on()
        if self._context is not None and self._host is not None:
            self._host.queues.wake_session(self._context.session)

    def data_received(self, data: bytes) -> None:
        try:
            if self._greeting.needs_preamble:
                data = self._greeting.read_preamble(data)
                if not self._greeting.needs_preamble:
                    self._write(PREAMBLE)
            for message in self._reader.feed(data):
                if self._backlog or self._preparing or self._queries.is_full or self._is_outside(message):
                    self._hold(message)
                else:
                    self._handle(message)
        except (ProtocolError, VersionMismatch) as exc:
            self._cut_off(exc)

    # ------------------------------------------------------------------ messages
    def _hold(self, message: Any) -> None:
        """Keep a message for later, and stop reading until then."""
        self._backlog.append(message)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _is_outside(self, message: Any) -> bool:
        """Whether a call must wait until the store answers again."""
        gate = self._gate
        if gate is None or not gate.is_closed:
            return False
        handler = self._handlers.get(type(message))
        if handler is None or not handler.stores:
            return False
        gate.wait(self)
        return True

    def refuse_waiting(self, exc: StoreStalled) -> None:
        """Refuse the calls that wait for the store, up to the first other one, and go on."""
        while self._backlog and self._context is not None and self._is_outside(self._backlog[0]):
            self._context.refuse_now(self._backlog.popleft().rid, exc)
        if self._gate is not None:
            self._gate.forget(self)
        self.go_on()

    def go_on(self) -> None:
        """Handle messages that waited, as far as possible, and read again after the last one."""
        try:
            while self._transport is not None and not self._transport.is_closing() and not self._preparing:
                if self._queries.is_full or self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                    return
                if not self._backlog:
                    self._transport.resume_reading()
                    return
                if self._is_outside(self._backlog[0]):
                    return
                self._handle(self._backlog.popleft())
        except ProtocolError as exc:
            self._cut_off(exc)

    def _handle(self, message: Any) -> None:
        context = self._context
        if context is None:
            self._greet(message)
            return
        if self._leaving:
            return
        try:
            handler = self._handlers.get(type(message))
            if handler is None:
                raise message.error if type(message) is Refused else ProtocolError("a second Hello")
            if handler.is_plain or self._is_ready(handler, message):
                handler.run(context, message)
        except ProtocolError:
            raise
        except Exception as exc:
            context.refuse(getattr(message, "rid", 0), exc)

    def _is_ready(self, handler: Handler, message: Any) -> bool:
        """Whether a call may run now; otherwise it runs when its filter is compiled."""
        if handler.filter_of is not None and not self._preparing:
            text = handler.filter_of(message)
            if text:
                self._preparing = True
                self._spawn(self._prepare(message, text))
                return False
        if handler.is_query:
            self._queries.begin(message.rid, type(message).__name__)
        return True

    async def _prepare(self, message: Any, text: str) -> None:
        """Compile a filter in a thread, so that a long one delays only its own connection."""
        try:
            await asyncio.to_thread(precompile, text)
            if self._context is not None and self._context.session.connection is self:
                self._handle(message)
        except ProtocolError as exc:
            self._cut_off(exc)
        finally:
            self._preparing = False
        self.go_on()

    # ------------------------------------------------------------------ the beginning
    def _greet(self, message: Any) -> None:
        if self._connections.standbys.takes(self, message):
            return
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
            await self._connections.gate.check()
            admitted = await self._greeting.check(hello, self._extra("socket"), self._extra("peercert"))
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
        self.go_on()

    def _begin(self, admitted: Admitted, said: m.Hello | m.Resume) -> None:
        settings, (host, hello) = self._settings, admitted
        try:
            session, adopted = host.lifecycle.begin(hello, said, self, self._greeting.user)
        except AccessRefused as exc:
            self._cut_off(exc)
            return
        self._host, self._handlers, self._context = host, host.handlers, host.context(session)
        self._gate = host.gate
        self._context.welcome(
            m.Welcome(
                said.rid,
                __version__,
                settings.max_frame_bytes,
                settings.max_message_bytes,
                self._heartbeat.start(self._transport, hello.heartbeat_ms, int(1000 * settings.heartbeat_seconds)),
                host.lifecycle.last_publish(session),
                adopted,
            ),
            resumes=hello.resume,
        )

    def _extra(self, name: str) -> Any:
        return self._transport.get_extra_info(name) if self._transport is not None else None

    # ------------------------------------------------------------------ writing
    def send_all(self, outgoing: list[Any]) -> None:
        """Send messages in order."""
        frames: list[bytes] = []
        for message in outgoing:
            if type(message) is m.Deliver and len(message.deliveries) > 1:
                frames += map(frame, message.cut(_DELIVER_BYTES))
            else:
                frames.append(frame(message))
        self._write(b"".join(frames))
        if self._queries.count:
            self._queries.answered(outgoing)
            if self._backlog:
                asyncio.get_running_loop().call_soon(self.go_on)
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
        """Apply a changed users file: new rights count, and a user who may no longer connect so has to log in again."""
        try:
            self._greeting.check_again(logins)
            if self._context is not None and self._host is not None:
                self._host.lifecycle.change_user(self._context.session, self._greeting.user)
        except AccessRefused as exc:
            self._connections.note_refused(exc, "a connection was closed", self.slot.peer)
            self._write(frame(m.BrokerGoodbye(exc.text)))  # the client may know the new secret
            self._close_soon()

    def _cut_off(self, exc: OpenDataError) -> None:
        self._connections.note_refused(exc, "a connection was closed", self.slot.peer)
        if self._greeting.needs_preamble:
            self._write(PREAMBLE)  # the client needs it to understand the rest
        self._write(frame(m.Failed(0, exc.code, exc.text, exc.values)))
        self._close_soon()

    def _close_soon(self) -> None:
        """Close, and give the client a short time to read what was written."""
        self._reader.clear()
        if self._transport is not None:
            self._transport.close()
            self._heartbeat.stop()
            seconds = _STRANGER_LINGER_SECONDS if self._host is None else _LINGER_SECONDS
            self._lingering = asyncio.get_running_loop().call_later(seconds, self.abort)

    def say_goodbye(self, message: Message) -> None:
        """Tell the client that the broker stops, or that another one is active, and close."""
        if self._transport is not None:
            self.send_all([message])
            self._transport.close()

    def leave(self) -> None:
        """Close after the next messages that are sent."""
        self._leaving = True

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
