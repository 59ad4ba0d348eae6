"""Start of a connection: the preamble, the Hello with its login, and a Resume if the Hello announces it.

A client that has not logged in may send only one frame before the reply, because more frames could fill the memory.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Any

from ...errors import AccessRefused, ProtocolError
from ...protocol import messages as m
from ...protocol.framing import PREAMBLE, PREAMBLE_BYTES, check_preamble
from ..access.rights import ANONYMOUS, User
from ..calls.all_calls import InstanceCalls
from .connection_limits import Slot
from .logins import Logins
from .sockets import SocketAccess
from .tls_certificates import names_of

#: returns the instance that a client requests; raises RequestError or InstanceNotFound
HostFor = Callable[[m.Hello, User], Awaitable[InstanceCalls]]
#: maximum shown length of a name from a client
_SHOWN = 100


class Greeting:
    """State of one connection before its session.

    Attributes:
        needs_preamble: True until the preamble is complete.
        hello, host: the Hello and its instance, after the login.
        login: the user who logged in, as in the current users file.
        user: the user whose rights apply: ``login``, or the user that the client acts as.
        acting_as: the name of the user that the client acts as; not verified if the broker has no users.
    """

    __slots__ = (
        "_access", "_busy", "_certificate", "_hash", "_host_for", "_logins", "_preamble", "_slot", "acting_as",
        "hello", "host", "login", "needs_preamble", "user",
    )  # fmt: skip

    def __init__(self, slot: Slot, logins: Logins | None, access: SocketAccess, host_for: HostFor) -> None:
        self._slot = slot
        self._logins = logins
        self._access = access
        self._host_for = host_for
        self._preamble = b""
        self.needs_preamble = True
        self._busy = False  # the Hello is being checked
        self.login = self.user = ANONYMOUS
        self.acting_as = ""
        self._hash = ""  # empty if the certificate alone was sufficient
        self._certificate: tuple[str, ...] | None = None  # the names in the certificate of a client with TLS
        self.hello: m.Hello | None = None
        self.host: InstanceCalls | None = None

    def read_preamble(self, data: bytes) -> bytes:
        """Read the preamble from the first bytes; return the remaining bytes.

        Raises:
            ProtocolError, VersionMismatch: the client uses another protocol, or another version of this protocol.
        """
        need = PREAMBLE_BYTES - len(self._preamble)
        self._preamble += data[:need]
        if len(self._preamble) == PREAMBLE_BYTES:
            check_preamble(self._preamble, peer="client")
            self.needs_preamble = False
        elif not PREAMBLE.startswith(self._preamble[:4]):
            check_preamble(self._preamble.ljust(PREAMBLE_BYTES, b"\0"), peer="client")
        return data[need:]

    def expect(self, message: Any) -> m.Hello | m.Resume:
        """Return a message if it is the expected Hello or Resume; raise ProtocolError for any other message."""
        if self._busy:
            raise ProtocolError("nothing may follow the Hello before its answer")
        if self.host is not None:
            if isinstance(message, m.Resume):
                return message
            raise ProtocolError("the first message after the login must be the Resume that the Hello announced")
        if not isinstance(message, m.Hello):
            raise ProtocolError("the first message must be a Hello")
        self._busy = True
        self._slot.greeted()
        return message

    async def check(self, hello: m.Hello, sock: Any, certificate: dict[str, Any] | None = None) -> None:
        """Check the login, and find the instance.

        Args:
            certificate: the client's, as returned by getpeercert().

        Raises:
            OpenDataError: the client is refused; the error text has the reason.
        """
        self.acting_as = hello.act_as
        if self._logins is not None:
            self._certificate = names_of(certificate)
            await self._log_in(self._logins, hello)
        elif sock is not None and sock.family == socket.AF_UNIX:
            self._access.check(sock)
        self.user.rights(hello.instance)
        self.host, self.hello = await self._host_for(hello, self.user), hello
        self._busy = False

    async def _log_in(self, logins: Logins, hello: m.Hello) -> None:
        name = self._user_by_certificate(logins, hello.user, has_secret=bool(hello.secret))
        if not name:
            name, address = hello.user, self._slot.host or self._slot.peer  # for a local client: its user
            self._hash = await logins.check(hello.user, hello.secret, address)
        self.login = logins.users.users[name]
        self.user = _effective(logins, self.login, hello.act_as)

    def _user_by_certificate(self, logins: Logins, user: str, *, has_secret: bool) -> str:
        if self._certificate is None:
            return ""
        return logins.users.user_by_certificate(self._certificate, user, has_secret=has_secret)

    def check_again(self, logins: Logins) -> None:
        """Check the login again after the users file changed.

        Raises:
            AccessRefused: the client's user was removed, or has another secret or other certificates.
        """
        name = self.login.name
        if not name:
            return
        self._user_by_certificate(logins, name, has_secret=bool(self._hash))
        if self._hash and not logins.is_valid(name, self._hash):
            raise AccessRefused(f"user {name!r} was removed, or has a new secret: connect again with that", user=name)
        self.login = logins.users.users[name]
        self.user = _effective(logins, self.login, self.acting_as)


def _effective(logins: Logins, login: User, act_as: str) -> User:
    """Return the user whose rights a session has.

    Raises:
        AccessRefused: the login may not act as another user, or there is no such user.
    """
    if not act_as:
        return login
    shown_name = act_as[:_SHOWN]
    if "admin" not in login.table.roles:
        raise AccessRefused(
            f"user {login.name!r} may not act as user {shown_name!r}: that needs the role 'admin'",
            right="admin",
            kind="role",
            name="admin",
            user=login.name,
        )
    effective = logins.users.users.get(act_as)
    if effective is None:
        raise AccessRefused(f"user {login.name!r} can't act as user {shown_name!r}: there is none", user=shown_name)
    return effective
