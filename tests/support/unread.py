"""Bytes in sockets that a peer has not read: a request is on its way to a broker that is stopped."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from contextlib import suppress
from pathlib import Path


def unread_bytes() -> int:
    """Return the number of bytes that this process has sent over Unix sockets and their peers have not read."""
    total = 0
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # it was closed, or is no socket
            if os.readlink(file).startswith("socket:"):
                total += struct.unpack("i", fcntl.ioctl(int(file.name), termios.TIOCOUTQ, bytes(4)))[0]
    return total
