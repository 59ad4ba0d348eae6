"""The SSL context of a server, whose alerts give a client the reason of a failed handshake.

asyncio and uvloop close a connection whose handshake failed without sending the alert that OpenSSL has written, so a
client whose certificate is refused would see the end of the connection and no reason. This context passes the alert on
with the error; the code that accepted the socket sends it.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import Any


class _Handshake(ssl.SSLObject):
    """The server side of a connection.

    Attributes:
        outgoing: the bytes to be sent to the client.
    """

    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as exc:
            exc.alert = self.outgoing.read()  # type: ignore[attr-defined]
            raise


class ServerContext(ssl.SSLContext):
    """The context of a server: TLS 1.2 or newer, with Python's default ciphers."""

    sslobject_class = _Handshake

    def __new__(cls) -> ServerContext:
        context = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_TICKET  # a resumed session would not verify the client's certificate again
        context.num_tickets = 0
        return context

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **more: Any) -> ssl.SSLObject:
        side = super().wrap_bio(incoming, outgoing, *args, **more)
        assert isinstance(side, _Handshake)
        side.outgoing = outgoing
        return side


def send_alert(sock: socket.socket, exc: OSError) -> None:
    """Send the alert of a failed handshake, if there is one."""
    alert = getattr(exc, "alert", b"")
    with suppress(OSError):
        if alert:
            sock.send(alert)
            sock.shutdown(socket.SHUT_WR)
            sock.recv(1 << 16)  # unread data would make the kernel discard the alert
