"""The broker: composes instances and connections, listens, and does periodic work."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from ...errors import InvalidUsersFile
from ...storage.clock import Clock, SystemClock
from ...url import masked
from ...version import __version__
from ..metrics.snapshot import Snapshot
from ..wire.broker_settings import BrokerSettings
from ..wire.connection import Connection
from ..wire.connection_limits import Slot, descriptor_limit
from ..wire.connections import Connections
from ..wire.listener import BACKLOG, Listener
from ..wire.logins import Logins
from ..wire.server_tls import ServerTls
from ..wire.sockets import bind_tcp, bind_unix
from .instances import Instances
from .logs import code_of

log = logging.getLogger(__name__)

_TICK_SECONDS = 0.5


class Server:
    """A broker. :meth:`run` serves until :meth:`stop`."""

    def __init__(self, settings: BrokerSettings, clock: Clock | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.settings = settings
        self.connections = Connections(settings.connections.within(descriptor_limit()))
        self.logins = Logins(settings.users, loop.time) if settings.users is not None else None
        self.instances = Instances(settings, clock or SystemClock(), self.status, self.stop)
        self._listeners: list[Listener] = []
        self._socket_paths: list[str] = []
        self._stopping = asyncio.Event()
        self._stopped_by = ""
        self._kept: list[asyncio.Task[None]] = []

    # ------------------------------------------------------------------ listening
    async def listen_unix(self, path: str) -> None:
        """Listen on a Unix socket, for this user only unless users log in. A stale socket is replaced."""
        sock = bind_unix(path, 0o177 if self.logins is None else 0o111)
        self._socket_paths.append(path)
        self._listen(sock)

    async def listen_tcp(self, host: str, port: int) -> int:
        """Listen on TCP, with TLS if the settings have it; returns the port."""
        opened = [self._listen(sock, self.settings.tls) for sock in await bind_tcp(host, port)]
        return int(opened[0].address[1])

    def _listen(self, sock: socket.socket, tls: ServerTls | None = None) -> Listener:
        sock.listen(BACKLOG)
        listener = Listener(sock, self.connections.admission, self.connection, self.connections.turned_away, tls)
        self._listeners.append(listener)
        return listener

    def connection(self, slot: Slot) -> Connection:
        """The asyncio protocol of a new connection."""
        return Connection(slot, self.connections, self.instances.host_for, self.logins, self.settings)

    def measure(self, snapshot: Snapshot) -> None:
        """Add the totals over all connections and instances to a scrape of the metrics."""
        self.connections.measure(snapshot)
        self.instances.measure(snapshot)
        if self.settings.tls is not None:
            self.settings.tls.measure(snapshot)

    # ------------------------------------------------------------------ life
    async def run(self, begin: Coroutine[Any, Any, None] | None = None) -> str:
        """Serve until stopped; returns why it stopped.

        Args:
            begin: runs at once, and is waited for at the end; if it fails, the broker stops.

        Raises:
            OpenDataError: it failed, or an engine failed permanently.
        """
        loop = asyncio.get_running_loop()
        ticking = self.keep(self._tick_forever())
        ticking.add_done_callback(self._ticking_ended)
        beginning = loop.create_task(begin) if begin is not None else None
        if beginning is not None:
            beginning.add_done_callback(self._begun)
        try:
            await self._stopping.wait()
            if beginning is not None:
                await beginning
            return self._stopped_by
        finally:
            for task in self._kept:
                task.cancel()
            await self.close()

    def _begun(self, task: asyncio.Task[None]) -> None:
        if task.exception() is not None:
            self.stop("it could not start")

    def keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something until the end."""
        self._kept.append(asyncio.get_running_loop().create_task(work))
        return self._kept[-1]

    async def unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Wait for something, but not longer than until :meth:`stop`; returns whether it is done."""
        loop = asyncio.get_running_loop()
        task, stopping = loop.create_task(work), loop.create_task(self._stopping.wait())
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if task.done():
            task.result()
            return True
        task.cancel()
        await asyncio.wait({task})
        return False

    def _ticking_ended(self, task: asyncio.Task[None]) -> None:
        """End the broker after an unexpected error in its periodic work, without which no lease would expire."""
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.critical("the broker stops: its periodic work failed", exc_info=exc)
            self.instances.fail(exc)
            self.stop(f"the broker failed: {exc!r}")

    def stop(self, reason: str) -> None:
        """Let :meth:`run` end."""
        self._stopped_by = self._stopped_by or reason
        self._stopping.set()

    async def close(self) -> None:
        """Say goodbye to the clients, commit everything and close the stores."""
        for listener in self._listeners:
            listener.close()
        if self.logins is not None:
            self.logins.close()
        for path in self._socket_paths:
            with suppress(FileNotFoundError):
                os.unlink(path)
        failures: list[BaseException] = [*await self.instances.end_calls()]
        self.connections.say_goodbye("the broker stops")
        failures += await self.instances.close()
        if failures:
            raise failures[0]

    # ------------------------------------------------------------------ periodic work
    async def _tick_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self.instances.tick()
            self.connections.notices.tick()
            idle = self.settings.idle_exit_seconds
            if idle and not self.connections.open and loop.time() - self.connections.idle_since > idle:
                self.stop(f"no client for {idle:g} s")
            self._reload_users()
            if self.settings.tls is not None:
                self.settings.tls.tick()

    def _reload_users(self) -> None:
        """If the file of users changed, end the connections of users who were removed or have a new secret."""
        if self.logins is None:
            return
        try:
            if not self.logins.users.reload():
                return
        except InvalidUsersFile as exc:
            log.error("the users stay as they were: %s", exc.text, extra=code_of(exc))
            return
        log.info("the users file was read again: %d users", len(self.logins.users.users))
        self.connections.check_logins(self.logins)

    # ------------------------------------------------------------------ status
    async def status(self) -> dict[str, Any]:
        """The report of the status call. Figures of different queues may be some milliseconds apart."""
        queues = {name: await one.queue_figures() for name, one in list(self.instances.open.items())}
        return {
            "version": __version__,
            "pid": os.getpid(),
            "store": masked(self.settings.store),
            "connections": len(self.connections.open),
            "connections_limit": self.connections.admission.limits.connections,
            "connections_not_logged_in": self.connections.admission.strangers,
            "instances": {
                name: {**one.report(), "queues": queues[name]}
                for name, one in self.instances.open.items()
                if name in queues
            },
        }
