"""What a client says before its session: the Hello with its login, and the Resume that a Hello may speak of.

A stranger sends one frame and waits for its answer: what came behind it would fill the memory.
"""

from __future__ import annotations

import os
import socket
from typing import Any, NamedTuple

from ..errors import AccessRefused, ProtocolError
from ..private_folder import is_trusted, peer_uid, user_name
from ..protocol import messages as m
from .admission import Slot
from .host import Host, Hosts
from .logins import Logins


class Admitted(NamedTuple):
    """A client that has logged in."""

    host: Host
    hello: m.Hello


class Greeting:
    """The state of one connection before its session.

    Attributes:
        admitted: the client has logged in.
    """

    __slots__ = ("_busy", "_hash", "_hosts", "_logins", "_slot", "_user", "admitted")

    def __init__(self, slot: Slot, logins: Logins | None, hosts: Hosts) -> None:
        self._slot = slot
        self._logins = logins
        self._hosts = hosts
        self._busy = False  # the Hello is being checked
        self._user = self._hash = ""
        self.admitted: Admitted | None = None

    def expect(self, message: Any) -> m.Hello | m.Resume:
        """The next message, which must be the one whose turn it is.

        Raises:
            ProtocolError: it is not.
        """
        if self._busy:
            raise ProtocolError("nothing may follow the Hello before its answer")
        if self.admitted is not None:
            if isinstance(message, m.Resume):
                return message
            raise ProtocolError("the first message after the login must be the Resume that the Hello spoke of")
        if not isinstance(message, m.Hello):
            raise ProtocolError("the first message must be a Hello")
        self._busy = True
        self._slot.greeted()
        return message

    async def check(self, hello: m.Hello, sock: Any) -> Admitted:
        """Let a client in, or not.

        Raises:
            OpenDataError: the text says why not.
        """
        if self._logins is not None:
            address = self._slot.host or self._slot.peer  # of a local client: its user
            self._user = hello.user
            self._hash = await self._logins.check(hello.user, hello.secret, address)
        elif sock is not None and sock.family == socket.AF_UNIX:
            _check_peer(peer_uid(sock))
        self.admitted = Admitted(await self._hosts.host_for(hello), hello)
        self._busy = False
        return self.admitted

    def check_again(self, logins: Logins) -> None:
        """The users changed.

        Raises:
            AccessRefused: the client's user is gone or has another secret.
        """
        if self._hash and not logins.is_valid(self._user, self._hash):
            text = f"user {self._user!r} was removed, or has a new secret: connect again with that"
            raise AccessRefused(text, user=self._user)


def _check_peer(uid: int) -> None:
    if not is_trusted(uid):
        raise AccessRefused(f"this socket is for {user_name(os.geteuid())} and root, not for {user_name(uid)}")
