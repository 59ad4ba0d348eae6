"""Users of this host: the peer of a Unix socket, and the possible creators of a file.

The kernel reports the user of the peer. A path alone proves nothing.
"""

from __future__ import annotations

import os
import pwd
import socket
import stat
import struct
import sys

WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_MAX_LINKS = 40  # limit of the kernel
#: Linux: struct ucred, with pid, uid and gid
_UCRED = struct.Struct("=iII")
#: macOS: SOL_LOCAL and LOCAL_PEERCRED, and the first fields of struct xucred, version and uid
_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES = 0, 1, 76
_XUCRED = struct.Struct("=II")


def user_name(uid: int) -> str:
    """Return a user in the form for errors."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def peer_uid(sock: socket.socket) -> int:
    """Return the user of a Unix socket's peer, or of its listener; raise OSError if it is not reported."""
    if sys.platform.startswith("linux"):
        data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        return int(_UCRED.unpack(data)[1])
    data = sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES)
    return int(_XUCRED.unpack_from(data)[1])


def is_trusted(uid: int) -> bool:
    """Return True for this user and for root, who has all permissions anyway."""
    return uid in (0, os.geteuid())


def is_alone_at(uid: int, path: str) -> bool:
    """Return True if only this user and root can have created a file at this absolute path.

    All folders of the path must be writable for these two only, including those of symbolic links: another user's link
    may lead to a folder that does not belong to that user.
    """
    folder, parts, links = "/", path.split("/"), 0
    while parts:
        name = parts.pop(0)
        place = os.path.normpath(f"{folder}/{name}")  # the folder's own path has no links
        try:
            status = os.stat(folder)
            target = os.readlink(place) if os.path.islink(place) else ""
        except OSError:
            return False
        if status.st_uid not in (0, uid) or status.st_mode & WRITABLE_BY_OTHERS:
            return False
        if not target:
            folder = place
            continue
        links += 1
        if links > _MAX_LINKS:
            return False
        parts = target.split("/") + parts
        folder = "/" if target.startswith("/") else folder
    return True


def sharer_of(folder: str) -> int | None:
    """Return the other user who shares a folder with a group of this user; None if there is none.

    Only that user and root can have created files there: the group may enter the folder but not write to it.
    """
    try:
        status = os.stat(folder)
    except OSError:
        return None
    shared = status.st_gid in {os.getegid(), *os.getgroups()} and status.st_mode & stat.S_IXGRP
    if status.st_uid == os.geteuid() or not shared or not is_alone_at(status.st_uid, f"{folder}/x"):
        return None
    return status.st_uid
