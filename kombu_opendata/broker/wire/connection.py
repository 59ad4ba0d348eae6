"""Connection of a client: reads and writes frames, and runs calls. A protocol error closes only this connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, cast

from ...errors import (
    AccessRefused,
    ConnectionLost,
    LimitExceeded,
    OpenDataError,
    ProtocolError,
    RequestError,
    VersionMismatch,
)
from ...protocol import messages as m
from ...protocol.framing import PREAMBLE, Refused, frame, frame_parts
from ...protocol.messages.message_base import WireMessage
from ...protocol.tcp import is_tcp, set_tcp_options
from ...selectors.selector import precompile
from ...version import __version__
from ..access.quotas import Quota
from ..calls.all_calls import InstanceCalls
from ..calls.dispatch import Context, Handler
from ..delivery.slow_turns import REQUESTS, SLOW_SECONDS
from .broker_settings import BrokerSettings
from .connection_limits import Slot
from .greeting import Greeting, HostFor
from .heartbeat import HeartbeatMonitor
from .inbox import MAX_UNSENT_BYTES, Inbox
from .logins import Logins
from .open_connections import LOOK_BYTES, Connections

log = logging.getLogger(__name__)

#: limit for the envelopes of a Deliver frame, so that the client receives the first messages early
_DELIVER_BYTES = 1 << 20
#: messages that may have envelopes or values, and the size from which these are sent without being copied into a frame
_MAY_BE_LARGE = frozenset((m.Deliver, m.Got, m.Results, m.ChordParts))
_JOINED_BYTES = 64 << 10
#: unsent bytes beyond which a client gets no deliveries
WRITE_HIGH_WATER_BYTES = 512 << 10
#: maximum wait of a closing connection for its client to read the reason
_LINGER_SECONDS = 2.0
#: maximum time without progress of a client that does not read its data, while memory is full
STUCK_SECONDS = 30.0
_STRANGER_LINGER_SECONDS = 0.1  # before the login: there may be very many, each with a file descriptor


class ConnectionProtocol(asyncio.Protocol):
    """Protocol of one socket."""

    def __init__(
        self, slot: Slot, connections: Connections, host_for: HostFor, logins: Logins | None, settings: BrokerSettings
    ) -> None:
        self.slot = slot
        self._connections = connections
        self._settings = settings
        self._transport: asyncio.Transport | None = None
        self._host: InstanceCalls | None = None  # since its session began
        self._context: Context | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._inbox = Inbox(self._handle, self._refuse, self._cut_off)
        self._greeting = Greeting(slot, logins, settings.socket_access, host_for)
        self._heartbeat = HeartbeatMonitor()
        self._leaving = False
        self.writable = True
        self._unread_since = 0.0
        self._lingering: asyncio.TimerHandle | None = None
        self._resuming: tuple[Quota, ...] = ()

    @property
    def is_local(self) -> bool:
        return not self.slot.host

    # ------------------------------------------------------------------ callbacks of asyncio
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._inbox.open(self._transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self.slot.turn_away = self._cut_off
        self._connections.add(self)
        if is_tcp(sock := self._extra("socket")):
            set_tcp_options(sock, user_timeout_ms=None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._arrived()
        self._inbox.close()
        self._connections.partial_frames.forget(self._inbox)
        self.slot.free()
        self._heartbeat.stop()
        if self._lingering is not None:
            self._lingering.cancel()
        self._connections.discard(self)
        context, self._context = self._context, None
        if context is not None and self._host is not None and context.session.connection is self:
            self._host.lifecycle.detach(context.session)

    def check_stuck(self) -> None:
        """Abort the connection if its client has read nothing for some time; called while memory is full."""
        if not self.writable and asyncio.get_running_loop().time() - self._unread_since > STUCK_SECONDS:
            text = (
                f"the client has read nothing for {STUCK_SECONDS:g} s, and the broker's memory is full: connect again"
            )
            self._connections.note_refused(ConnectionLost(text), "a connection was closed", self.slot.peer)
            self.abort()

    def pause_writing(self) -> None:
        self.writable = False
        self._unread_since = asyncio.get_running_loop().time()

    def resume_writing(self) -> None:
        self.writable = True
        if self._transport is not None and not self._transport.is_closing():
            self._inbox.go_on()
        if self._context is not None and self._host is not None:
            self._host.queues.wake_session(self._context.session)

    def data_received(self, data: bytes) -> None:
        connections = self._connections
        slow_turns = connections.slow_turns
        start = slow_turns.time()
        connections.received_bytes += len(data)
        if connections.received_bytes >= LOOK_BYTES:
            connections.look()
        try:
            if self._greeting.needs_preamble:
                data = self._greeting.read_preamble(data)
                if not self._greeting.needs_preamble:
                    self._write(PREAMBLE)
            inbox, parts = self._inbox, connections.partial_frames
            inbox.take_in(data)
            if inbox.reader.rest or parts.total_bytes:
                parts.note(inbox, len(inbox.reader.rest))
        except (ProtocolError, VersionMismatch) as exc:
            self._cut_off(exc)
        if slow_turns.time() - start >= SLOW_SECONDS:
            slow_turns.end_step(start, REQUESTS)

    # ------------------------------------------------------------------ messages
    def _handle(self, message: Any) -> None:
        context = self._context
        if context is None:
            self._greet(message)
            return
        if self._leaving:
            return
        try:
            handler = self._inbox.handlers.get(type(message))
            if handler is None:
                raise message.error if type(message) is Refused else ProtocolError("a second Hello")
            rights = context.session.rights
            if not rights.permits_all:
                handler.check(rights, message)  # first, so that a refused call does not count for a rate limit
            if handler.is_plain or self._is_ready(handler, message):
                handler.run(context, message)
        except ProtocolError:
            raise
        except Exception as exc:
            context.refuse(getattr(message, "rid", 0), exc)

    def _refuse(self, message: Any, exc: OpenDataError) -> None:
        """Refuse a delayed publish."""
        if self._context is not None:
            self._context.refuse(message.rid, exc, now=True)

    def _is_ready(self, handler: Handler, message: Any) -> bool:
        """Return True if a call may run now. Otherwise it runs when its filter is compiled, or publishes resume."""
        inbox = self._inbox
        if (
            handler.stores
            and (inbox.quotas is not None or (inbox.flow is not None and inbox.flow.is_closed))
            and inbox.delays(message)
        ):
            return False
        if handler.filter_of is not None and not inbox.is_preparing:
            text = handler.filter_of(message)
            if text:
                inbox.change_preparing(True)
                self._spawn(self._prepare(message, text))
                return False
        if handler.is_query:
            inbox.begin_query(message.rid, type(message).__name__)
        return True

    async def _prepare(self, message: Any, text: str) -> None:
        """Compile a filter in a thread, so that a long filter delays only its own connection."""
        try:
            await asyncio.to_thread(precompile, text)
            if self._context is not None and self._context.session.connection is self:
                self._handle(message)
        except ProtocolError as exc:
            self._cut_off(exc)
        finally:
            self._inbox.change_preparing(False)
        self._inbox.go_on()

    # ------------------------------------------------------------------ login
    def _greet(self, message: Any) -> None:
        if self._connections.standbys.takes(self, message):
            return
        greeting = self._greeting.expect(message)
        if isinstance(greeting, m.Resume):
            self._begin(greeting)
        else:
            if self._transport is not None:
                self._transport.pause_reading()
            self._spawn(self._log_in(greeting))

    async def _log_in(self, hello: m.Hello) -> None:
        try:
            await self._connections.gate.check()
            await self._greeting.check(hello, self._extra("socket"), self._extra("peercert"))
            if hello.resume_follows:
                self._arrive(hello)
        except OpenDataError as exc:
            who = f"{hello.name[:100]!r} at {self.slot.peer}"
            self._connections.note_refused(exc, "a client was refused", who)
            self.send_all([m.Failed(hello.rid, exc.code, exc.text, exc.values)])
            self._close_soon()
            return
        if self._transport is None or self._transport.is_closing():
            return
        self._inbox.reader.max_frame_bytes = self._settings.max_frame_bytes
        if hello.resume_follows:
            self.send_all([m.LoggedIn(hello.rid)])
        else:
            self._begin(hello)
        self._inbox.go_on()

    def _arrive(self, hello: m.Hello) -> None:
        """Count the connection as arriving, and set a deadline for the Resume."""
        quotas = self._connections.quotas.of(self._greeting.user.name, hello.instance)
        for quota in quotas:
            quota.check_arrival()
        if self._transport is not None:
            self._resuming = quotas
            for quota in quotas:
                quota.arriving += 1
            self.slot.awaits_resume()

    def _arrived(self) -> None:
        for quota in self._resuming:
            quota.arriving -= 1
        self._resuming = ()

    def _begin(self, greeting: m.Hello | m.Resume) -> None:
        settings, host, hello = self._settings, self._greeting.host, self._greeting.hello
        assert host is not None
        assert hello is not None
        self._arrived()
        try:
            user = self._greeting.user
            quotas = self._connections.quotas.of(user.name, hello.instance)
            is_known = host.lifecycle.knows(hello.session)
            session, adopted = host.lifecycle.begin(hello, greeting, self, user, quotas)
            session.login, session.acting_as = self._greeting.login.name, self._greeting.acting_as
        except (AccessRefused, LimitExceeded) as exc:
            self._cut_off(exc)
            return
        self.slot.logged_in()
        self._host, self._context = host, host.context(session)
        self._inbox.begin_session(host.handlers, host.flow, quotas if user.name else None)
        self._context.welcome(
            m.Welcome(
                greeting.rid,
                __version__,
                settings.max_frame_bytes,
                settings.max_message_bytes,
                self._heartbeat.start(self._transport, hello.heartbeat_ms, int(1000 * settings.heartbeat_seconds)),
                host.lifecycle.last_publish(session),
                adopted,
                settings.engine.task_outcomes,
                host.run_id,
                is_known,
            ),
            resumes=hello.resume,
        )

    def _extra(self, name: str) -> Any:
        return self._transport.get_extra_info(name) if self._transport is not None else None

    # ------------------------------------------------------------------ writing
    def send_all(self, outgoing: list[Any]) -> None:
        """Send messages in order."""
        frames: list[bytes] = []
        is_large = False
        for message in outgoing:
            if type(message) not in _MAY_BE_LARGE:
                frames.append(frame(message))
                continue
            is_cut = type(message) is m.Deliver and len(message.deliveries) > 1
            for each in message.cut(_DELIVER_BYTES) if is_cut else (message,):
                head, body = frame_parts(each)
                frames += head, body
                is_large = is_large or len(body) >= _JOINED_BYTES
        if is_large:
            self._write_parts(frames)
        else:
            self._write(b"".join(frames))
        if self._inbox.queries:
            self._inbox.answered(outgoing)
        if self._leaving and self._transport is not None:
            self._transport.close()

    def _write(self, data: bytes) -> None:
        if data:
            self._write_parts((data,))

    def _write_parts(self, parts: Sequence[bytes]) -> None:
        transport = self._transport
        if transport is None:
            return
        self._heartbeat.is_quiet = False
        if len(parts) == 1:
            transport.write(parts[0])
        else:
            transport.writelines(parts)
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES and not transport.is_closing():
            transport.pause_reading()

    def check_login(self, logins: Logins) -> None:
        """Apply a changed users file: apply new rights, or disconnect a user whose login is no longer valid."""
        try:
            self._greeting.check_again(logins)
            if self._context is not None and self._host is not None:
                self._host.lifecycle.change_user(self._context.session, self._greeting.user)
        except AccessRefused as exc:
            self._connections.note_refused(exc, "a connection was closed", self.slot.peer)
            self._write(frame(m.BrokerGoodbye(exc.text)))  # the client may have the new secret
            self._close_soon()

    def _cut_off(self, exc: OpenDataError) -> None:
        self._connections.note_refused(exc, "a connection was closed", self.slot.peer)
        if self._greeting.needs_preamble:
            self._write(PREAMBLE)  # the client needs it to understand the rest
        self._write(frame(m.Failed(0, exc.code, exc.text, exc.values)))
        self._close_soon()

    def _close_soon(self) -> None:
        """Close after a short time for the client to read the last messages."""
        self._inbox.clear()
        if self._transport is not None:
            self._transport.close()
            self._heartbeat.stop()
            seconds = _STRANGER_LINGER_SECONDS if self._host is None else _LINGER_SECONDS
            self._lingering = asyncio.get_running_loop().call_later(seconds, self.abort)

    def say_goodbye(self, message: WireMessage) -> None:
        """Notify the client that the broker stops, or that another broker is active, and close."""
        if self._transport is not None:
            self.send_all([message])
            self._transport.close()

    def hold(self, is_held: bool) -> None:
        """Let the messages that follow the current one wait, or run them in the next turn of the loop."""
        self._inbox.change_preparing(is_held)
        if not is_held:
            asyncio.get_running_loop().call_soon(self._inbox.go_on)

    def leave(self) -> None:
        """Close after the next messages."""
        self._leaving = True

    def abort(self) -> None:
        """Close immediately."""
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
