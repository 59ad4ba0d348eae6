"""Reader of a connection on Kombu's event loop."""

from __future__ import annotations

import threading
from typing import Any

from ..client.session.broker_connection import BrokerConnection
from ..client.session.session_link import LinkState
from ..client.socket.framed_socket import Waker
from ..errors import ConnectionLost, OpenDataError
from .amqp_errors import translate, translated

#: Number of events that are passed on before the loop does its other work. Celery acknowledges with ``call_soon``, so
#: with two events the ack of the first task would wait until the second task has run.
BATCH = 1
#: seconds for which the report of a success waits for a frame that can include it
FLUSH_SECONDS = 0.01
#: read for each delivery
_CLOSED = LinkState.CLOSED


class LoopReader:
    """Reader that passes a connection's events to their channels when its socket is readable.

    A resume changes the socket, so the reader follows it. The loop runs the attempts to resume, with its timers for the
    pauses between them; each attempt blocks for as long as a connect takes.

    While events are buffered, a pipe stays readable, so that the loop's poll returns immediately and the events are
    passed on. With ``call_soon`` in place of the pipe, Celery's acknowledgements would be calls that a scheduled call
    schedules. Such calls run after the loop's next poll, which may take a second.

    While the loop is in a task, another thread may resume the session (client/session/reconnect_thread.py). The pipe
    then wakes the loop, which follows the session to its new socket.
    """

    def __init__(self, connection: BrokerConnection, loop: Any) -> None:
        self._connection = connection
        self._loop = loop
        self._bell = Waker()
        self._ringing = False
        self._resuming = False
        self._thread = threading.get_ident()
        self._moved = False  # another thread changed the socket
        self._flushing = False  # pending reports will be sent
        connection.link.observer = self
        loop.add_reader(self._bell.fd, self._on_bell)
        loop.on_tick.add(self._on_tick)
        self.socket_opened(connection.fileno())
        if connection.events:
            self.events_buffered()

    def stop(self) -> None:
        """Unregister from the loop."""
        connection = self._connection
        if connection.link.observer is self:
            connection.link.observer = None
            self._loop.remove_reader(self._bell.fd)
            self._loop.on_tick.discard(self._on_tick)
            if not connection.closed:
                self.socket_closing(connection.fileno())

    # ------------------------------------------------------------ as the connection's observer
    def socket_opened(self, fd: int) -> None:
        if self._is_loops_thread():
            self._loop.add_reader(fd, self.on_readable)

    def socket_closing(self, fd: int) -> None:
        # Called in any thread, before the close: if a forked child has a copy of the socket, the poller would continue
        # to report it.
        self._loop.remove_reader(fd)
        self._is_loops_thread()

    def events_buffered(self) -> None:
        if not self._ringing:
            self._ringing = True
            self._bell.wake()

    def will_flush(self) -> bool:
        return threading.get_ident() == self._thread  # the next tick sends the reports

    def connection_lost(self) -> None:
        if self._is_loops_thread() and not self._resuming:
            self._resuming = True
            self._loop.call_soon(self._resume)
            self.events_buffered()

    def _is_loops_thread(self) -> bool:
        """Return True in the loop's thread. In another thread, wake the loop, which then checks the connection."""
        if threading.get_ident() == self._thread:
            return True
        self._moved = True
        self._bell.wake()
        return False

    # ------------------------------------------------------------ the loop's callbacks
    def on_readable(self) -> None:
        try:
            self._connection.io.read_available()
        except OpenDataError as exc:
            raise translate(exc) from exc
        self._hand_out()

    def _on_tick(self) -> None:
        """Grant deliveries, as the condition of a gate may have changed, and schedule pending reports.

        While deliveries are buffered, no timer is needed, because the frame of the next ack includes the reports. A
        timer in each turn of a busy loop would cost more than the reports.
        """
        connection = self._connection
        if connection.link.state is _CLOSED:
            self._loop.on_tick.discard(self._on_tick)
            return
        if connection.session.settlements.reports and not connection.events and not self._flushing:
            self._flushing = True
            self._loop.call_later(FLUSH_SECONDS, self._flush)
        try:
            for channel in connection.gated:
                channel.grant()
        except OpenDataError as exc:
            raise translate(exc) from exc

    def _on_bell(self) -> None:
        """Handle events that no poller reports, or a socket that another thread changed."""
        if not self._connection.events:
            self._bell.clear()
            self._ringing = False
        if self._moved:
            self._moved = False
            self._follow()
        self._hand_out()

    def _follow(self) -> None:
        connection = self._connection
        if connection.closed:
            raise translate(ConnectionLost("the connection was lost while a task ran, and its session was not resumed"))
        with connection.link.lock:  # the socket stays open while the lock is held
            current = connection.link.current
            if current is not None:
                self._loop.add_reader(current.fd, self.on_readable)
        if current is None:
            self.connection_lost()

    def _hand_out(self) -> None:
        connection = self._connection
        channels = connection.channels
        try:
            for _ in range(BATCH):
                if not connection.events or connection.link.state is _CLOSED:
                    return
                event = connection.events.popleft()
                channel = channels.get(event.channel)
                if channel is not None:
                    channel.deliver(event)
        finally:
            if connection.events and connection.link.state is not _CLOSED:
                self.events_buffered()

    def _flush(self) -> None:
        self._flushing = False
        if not self._connection.closed:
            with translated:
                self._connection.flush_reports()

    def _resume(self) -> None:
        self._resuming = False
        connection = self._connection
        if connection.closed or connection.link.observer is not self:
            return
        with translated:
            resumed = connection.link.resume_once()
        if not resumed:
            self._resuming = True
            self._loop.call_later(connection.link.backoff, self._resume)
