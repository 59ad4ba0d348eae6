"""The sockets that a broker listens on."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress

from ..wire.broker_settings import BrokerSettings
from ..wire.connection import ConnectionProtocol
from ..wire.connection_limits import Slot
from ..wire.connections import Connections
from ..wire.listener import BACKLOG, Listener
from ..wire.sockets import bind_tcp, bind_unix
from ..wire.tls.server_tls import ServerTls


class Listening:
    """The listening sockets of a broker.

    Args:
        make: creates the protocol of a new connection.
    """

    def __init__(
        self, settings: BrokerSettings, connections: Connections, make: Callable[[Slot], ConnectionProtocol]
    ) -> None:
        self._settings, self._connections, self._make = settings, connections, make
        self._listeners: list[Listener] = []
        self._socket_paths: list[str] = []

    async def unix(self, path: str) -> None:
        """Listen on a Unix socket. A stale socket is replaced."""
        sock = bind_unix(path, self._settings.socket_access)
        self._socket_paths.append(path)
        self._listen(sock)

    async def tcp(self, host: str, port: int) -> int:
        """Listen on TCP, with TLS if the settings have it; returns the port."""
        listeners = [self._listen(sock, self._settings.tls) for sock in await bind_tcp(host, port)]
        return int(listeners[0].address[1])

    def _listen(self, sock: socket.socket, tls: ServerTls | None = None) -> Listener:
        sock.listen(BACKLOG)
        connections = self._connections
        listener = Listener(sock, connections.admission, self._make, connections.turned_away, tls)
        self._listeners.append(listener)
        return listener

    def close(self) -> None:
        """Stop listening. Open connections stay. A second call has no effect."""
        while self._listeners:
            self._listeners.pop().close()
        while self._socket_paths:
            with suppress(FileNotFoundError):
                os.unlink(self._socket_paths.pop())
