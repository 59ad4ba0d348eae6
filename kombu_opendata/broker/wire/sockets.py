"""Listening sockets of a broker: a path with its access, or a port on every address of a host name."""

from __future__ import annotations

import asyncio
import errno
import grp
import os
import socket
import stat
from dataclasses import dataclass

from ...errors import AccessRefused, StartError
from ...local_users import is_trusted, peer_uid, user_name

_FOR_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class SocketAccess:
    """File mode and group of the Unix sockets.

    Attributes:
        mode: users with the permission to write may connect.
        gid: None for the default group of the system.
    """

    mode: int = 0o600
    gid: int | None = None

    @property
    def is_private(self) -> bool:
        """True if only the broker's user and root may connect."""
        return not self.mode & _FOR_OTHERS

    def check(self, sock: socket.socket) -> None:
        """Check the user of a client that does not log in. The kernel has checked the mode of the socket before.

        Raises:
            AccessRefused: the socket is private, but another user could connect because its mode was changed.
        """
        if self.is_private and not is_trusted(uid := peer_uid(sock)):
            raise AccessRefused(f"this socket is for {user_name(os.geteuid())} and root, not for {user_name(uid)}")


def group_id(name: str) -> int:
    """Return the id of a group of this process, by its name or number.

    Raises:
        StartError: there is no such group, or the broker's user may not assign it to a socket.
    """
    try:
        gid = int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise StartError(f"--socket-group {name}: this machine has no such group (groupadd --system {name})") from None
    if os.geteuid() != 0 and gid not in {os.getegid(), *os.getgroups()}:
        who = user_name(os.geteuid())
        text = f"--socket-group {name}: {who} is not in that group (usermod --append --groups {name} {who[5:]})"
        raise StartError(f"{text}; a process that runs already does not notice the change")
    return gid


def bind_unix(path: str, access: SocketAccess) -> socket.socket:
    """Bind a Unix socket, and replace the stale socket of a killed broker. Clients can't connect before it listens.

    Raises:
        OSError: another broker listens on the path, or the path is not a socket.
    """
    _remove_stale(path)
    before = os.umask(0o777 & ~access.mode)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(path)
        if access.gid is not None:
            os.chown(path, -1, access.gid, follow_symlinks=False)
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(before)
    return sock


async def bind_tcp(host: str, port: int) -> list[socket.socket]:
    """Bind a port on each local address of a host name, at least one.

    Raises:
        OSError: the name is unknown, or an address can't be bound.
    """
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    for family, kind, protocol, _name, address in dict.fromkeys(infos):
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError:
            continue  # a host without IPv6 may still have a name for such an address
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
        except OSError as exc:
            sock.close()
            if exc.errno != errno.EADDRNOTAVAIL:
                for other in bound:
                    other.close()
                raise
        else:
            bound.append(sock)
    if not bound:
        raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of this host")
    return bound


def _remove_stale(path: str) -> None:
    """Remove the stale socket of a killed broker; raise OSError if a broker listens on it, or if it is no socket."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EEXIST, f"{path} exists and is not a socket")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(path)
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        os.unlink(path)
        return
    raise OSError(errno.EADDRINUSE, f"another broker listens on {path}")
