"""Access to the broker's Unix sockets."""

from __future__ import annotations

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
    """The mode and the group of the sockets.

    Attributes:
        mode: users with the permission to write may connect.
        gid: None keeps the group that the system chose.
    """

    mode: int = 0o600
    gid: int | None = None

    @property
    def is_private(self) -> bool:
        """Only the broker's user, and root, may connect."""
        return not self.mode & _FOR_OTHERS

    def check(self, sock: socket.socket) -> None:
        """Check the user of a client that does not log in. The kernel has checked the mode at the connect.

        Raises:
            AccessRefused: the socket is private and the client another user's: the socket's mode was changed.
        """
        if self.is_private and not is_trusted(uid := peer_uid(sock)):
            raise AccessRefused(f"this socket is for {user_name(os.geteuid())} and root, not for {user_name(uid)}")


def group_id(name: str) -> int:
    """Return the id of a group of this process, by its name or as a number.

    Raises:
        StartError: there is no such group, or this user may not give it to a socket.
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
