"""The mark of the host that uses a store's folder, in the file of the lock, which other hosts do not see.

A folder may be on a file system that several hosts share and that is not known as such (FUSE, virtiofs). So the broker
writes the host's boot and name into the file, and renews its modification time while it runs. A broker that finds
another host there at startup watches for a renewal. Only changes count: the clocks of two hosts are never compared.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from ...errors import StoreInUse
from ...file_system import boot_id

#: how long a starting broker watches the mark of another host: several renewals, see folder_active_role.py
_WATCH_SECONDS = 3.0


class HostMark:
    """The mark in one file.

    Attributes:
        other: the host whose mark is being watched; empty if there is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._own = f"{boot} {socket.gethostname()}" if (boot := boot_id()) else ""
        self._found = ("", 0)
        self._found_at = 0.0
        self.other = ""

    def is_stale(self) -> bool:
        """Return whether no broker on another host uses the folder; False until that is certain.

        Raises:
            StoreInUse: a broker on another host uses it.
        """
        state = self._read()
        host = self._other_host(state[0])
        if not host:
            self.other = ""
            return True
        if not self.other:
            self.other, self._found, self._found_at = host, state, time.monotonic()
        if state != self._found:
            raise StoreInUse(
                f"a broker on the host {host} uses {self._path.parent}, and two hosts must not share a folder: connect "
                "to it, or stop it first; for brokers on several hosts use a bucket (--store s3://bucket/prefix)",
                path=str(self._path.parent),
            )
        return time.monotonic() - self._found_at >= _WATCH_SECONDS

    def write(self, fd: int) -> None:
        """Write this host's mark. The file is overwritten in place, because the disk may be full."""
        os.ftruncate(fd, os.pwrite(fd, self._own.encode(), 0))

    def renew(self, fd: int) -> str:
        """Show that this broker is alive; returns the name of another host that has taken the folder, or ""."""
        try:
            other_host = self._other_host(self._read()[0])
            if not other_host:
                os.utime(fd)
        except OSError:  # disk errors are reported elsewhere
            return ""
        return other_host

    def remove(self, fd: int) -> None:
        """Remove the mark at shutdown."""
        with suppress(OSError):  # the folder may have been deleted
            if not self._other_host(self._read()[0]):
                os.ftruncate(fd, 0)

    def _read(self) -> tuple[str, int]:
        """Return the mark and its modification time, by a new descriptor: an open one may show this host's cache."""
        with self._path.open(errors="replace") as file:
            return file.read(4096).strip(), os.fstat(file.fileno()).st_mtime_ns

    def _other_host(self, mark: str) -> str:
        """Return the host name in another host's mark; empty if the mark is this host's."""
        boot, _, host = mark.partition(" ")
        return host or boot if self._own and boot != self._own.partition(" ")[0] else ""
