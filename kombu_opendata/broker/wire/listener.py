"""Acceptance of connections: assignment of slots, refusal of clients beyond the limits, TLS handshakes."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

from ...errors import InvalidURL, OpenDataError, TooManyConnections
from ...local_users import peer_uid
from ...protocol.framing import PREAMBLE, frame
from ...protocol.messages import Failed
from .broker_settings import BrokerSettings
from .connection import ConnectionProtocol
from .connection_limits import Admission, Slot
from .open_connections import Connections
from .sockets import bind_tcp, bind_unix
from .tls_certificates import ServerTls, send_alert

log = logging.getLogger(__name__)

BACKLOG = 1024
#: maximum number of accepted connections in one turn of the loop; a TLS handshake takes half a millisecond
_ACCEPTS_PER_TURN = 8
#: pause between two attempts to accept while file descriptors or memory are exhausted
_RETRY_SECONDS = 0.5
_TLS_HANDSHAKE = b"\x16"  # the first byte of a TLS connection: a handshake record

#: creates the protocol of a connection, which frees the slot when the connection is lost
Serve = Callable[[Slot], asyncio.Protocol]
#: called with the error and the refused client
Refused = Callable[[OpenDataError, str], None]


def peer_of(sock: socket.socket, address: Any) -> tuple[str, str]:
    """Return the host of a client (empty for a Unix socket) and its name for the log, from the result of accept()."""
    if isinstance(address, tuple):
        host, port = str(address[0]), address[1]
        return _host_of(host), f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        return "", f"local user {peer_uid(sock)}"  # a number, because looking up the name may be slow
    except OSError:
        return "", "a local client"


def _host_of(text: str) -> str:
    """Return the unit for limits per host: the /64 of an IPv6 address, because one host may use a whole /64."""
    address = ipaddress.ip_address(text)
    if address.version == 4 or address.is_link_local:  # link-local addresses of all hosts on a link share one /64
        return text
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))


class Listener:
    """Listening socket. :meth:`close` does not affect the accepted connections."""

    def __init__(
        self,
        sock: socket.socket,
        admission: Admission,
        serve: Serve,
        refused: Refused,
        tls: ServerTls | None = None,
    ) -> None:
        self._sock = sock
        self._admission = admission
        self._serve = serve
        self._refused = refused
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        sock.setblocking(False)
        self._loop.add_reader(sock, self._accept)

    @property
    def address(self) -> Any:
        """Address, as returned by getsockname()."""
        return self._sock.getsockname()

    def close(self) -> None:
        """Stop listening."""
        self._loop.remove_reader(self._sock)
        if self._retry is not None:
            self._retry.cancel()
        for task in self._tasks:
            task.cancel()
        self._sock.close()

    # ------------------------------------------------------------------ accepting
    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as exc:
                if exc.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._pause(exc)
                    return
                continue  # the client has already disconnected
            sock.setblocking(False)
            self._receive(sock, *peer_of(sock, address))

    def _pause(self, exc: OSError) -> None:
        """Pause while the system has no resources left; without the pause the event loop would spin."""
        self._loop.remove_reader(self._sock)
        self._retry = self._loop.call_later(_RETRY_SECONDS, self._loop.add_reader, self._sock, self._accept)
        text = f"the system has no file descriptor or memory left ({exc.strerror}): it waits"
        self._refused(TooManyConnections(text), "a new client")

    def _receive(self, sock: socket.socket, host: str, peer: str) -> None:
        try:
            slot = self._admission.take(host, peer)
        except OpenDataError as exc:
            self._refuse(sock, peer, exc)
            return
        if self._tls is None:
            self._begin(sock, slot)
            return
        slot.turn_away = lambda exc: self._give_up(sock, slot, exc)
        self._loop.add_reader(sock, self._check_first_byte, sock, slot)

    def _refuse(self, sock: socket.socket, peer: str, exc: OpenDataError, *, plain: bool = False) -> None:
        """Close a socket; send the reason, unless the client expects TLS and can't read it."""
        self._refused(exc, peer)
        with suppress(OSError):
            if plain or self._tls is None:
                _tell(sock, exc)
                sock.shutdown(socket.SHUT_WR)
            sock.recv(4096)  # unread data would make the kernel discard the reply
        sock.close()

    # ------------------------------------------------------------------ TLS
    def _check_first_byte(self, sock: socket.socket, slot: Slot) -> None:
        """Check the first byte of a connection that must use TLS. Other clients get a reply without TLS."""
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        self._loop.remove_reader(sock)
        if first == _TLS_HANDSHAKE:
            self._begin(sock, slot)
            return
        slot.free()
        if first:
            text = "this address of the broker takes TLS only: write opendatas:// in place of opendata:// in the URL"
            self._refuse(sock, slot.peer, InvalidURL(text), plain=True)
        else:
            sock.close()

    def _give_up(self, sock: socket.socket, slot: Slot, exc: OpenDataError) -> None:
        self._loop.remove_reader(sock)
        self._refuse(sock, slot.peer, exc)
        slot.free()

    # ------------------------------------------------------------------ serving
    def _begin(self, sock: socket.socket, slot: Slot) -> None:
        task = self._loop.create_task(self._connect(sock, slot))
        slot.turn_away = lambda exc: self._cancel(task, sock, slot, exc)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._begun(done, sock, slot))

    def _begun(self, task: asyncio.Task[None], sock: socket.socket, slot: Slot) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # before it ran
            sock.close()
            slot.free()

    def _cancel(self, task: asyncio.Task[None], sock: socket.socket, slot: Slot, exc: OpenDataError) -> None:
        self._refused(exc, slot.peer)
        if self._tls is None:  # the protocol is not connected yet, so nothing was sent
            with suppress(OSError):
                _tell(sock, exc)
        task.cancel()

    async def _connect(self, sock: socket.socket, slot: Slot) -> None:
        """Connect the socket to its protocol, after the TLS handshake if there is one."""
        protocol = self._serve(slot)
        try:
            if self._tls is None:
                await self._loop.connect_accepted_socket(lambda: protocol, sock)
            else:
                await self._connect_tls(self._tls, protocol, sock)
        except asyncio.CancelledError:
            # The loop has closed the socket, here and below. uvloop does not call connection_lost if the protocol has
            # just received the socket.
            protocol.connection_lost(None)
        except OSError as exc:  # also TimeoutError and ssl.SSLError
            protocol.connection_lost(exc)
            if self._tls is not None:
                self._refused(OpenDataError(f"the TLS handshake failed: {_reason(exc)}"), slot.peer)

    async def _connect_tls(self, tls: ServerTls, protocol: asyncio.Protocol, sock: socket.socket) -> None:
        seconds = self._admission.limits.greeting_seconds
        try:
            duplicate = sock.dup()  # the loop closes the other descriptor before the client has received an alert
        except OSError:  # no descriptor is left
            sock.close()
            raise
        with closing(duplicate):
            try:
                await self._loop.connect_accepted_socket(
                    lambda: protocol, sock, ssl=tls.context, ssl_handshake_timeout=seconds
                )
            except OSError as exc:
                send_alert(duplicate, exc)
                raise


def _tell(sock: socket.socket, exc: OpenDataError) -> None:
    sock.send(PREAMBLE + frame(Failed(0, exc.code, exc.text, exc.values)))


def _reason(exc: OSError) -> str:
    """Return the reason of a failed handshake, without OpenSSL's file and line."""
    reason = getattr(exc, "verify_message", None) or getattr(exc, "reason", None)
    return reason or exc.strerror or str(exc) or type(exc).__name__


class Listening:
    """Listening sockets of a broker; ``make`` creates the protocol of a new connection."""

    def __init__(
        self, settings: BrokerSettings, connections: Connections, make: Callable[[Slot], ConnectionProtocol]
    ) -> None:
        self._settings, self._connections, self._make = settings, connections, make
        self._listeners: list[Listener] = []
        self._socket_paths: list[str] = []

    async def unix(self, path: str) -> None:
        """Listen on a Unix socket; replace the stale socket of a broker that has ended."""
        sock = bind_unix(path, self._settings.socket_access)
        self._socket_paths.append(path)
        self._listen(sock)

    async def tcp(self, host: str, port: int) -> int:
        """Listen on TCP, with TLS if the settings have it; return the port."""
        listeners = [self._listen(sock, self._settings.tls) for sock in await bind_tcp(host, port)]
        return int(listeners[0].address[1])

    def _listen(self, sock: socket.socket, tls: ServerTls | None = None) -> Listener:
        sock.listen(BACKLOG)
        connections = self._connections
        listener = Listener(sock, connections.admission, self._make, connections.turned_away, tls)
        self._listeners.append(listener)
        return listener

    def close(self) -> None:
        """Stop listening; open connections stay open. A second call has no effect."""
        while self._listeners:
            self._listeners.pop().close()
        while self._socket_paths:
            with suppress(FileNotFoundError):
                os.unlink(self._socket_paths.pop())
