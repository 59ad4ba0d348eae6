"""Lock on a store's folder: an flock, which the kernel releases when the process ends, also after a crash.

Other hosts do not see the lock, and the file system may be shared although its type does not show that (FUSE,
virtiofs). The broker therefore writes a mark, the id of the host's boot and the host's name, into the lock file, and
renews the modification time of the file while it runs. A broker that reads the mark of another host at startup waits
for a renewal. It never compares the clocks of two hosts, only two modification times of the file.

SlateDB and the journal create files when a broker opens a store. On a file system without free inodes this would fail,
although the startup needs few files and deletes most of them. The broker therefore has a reserve of empty files, which
it deletes if there are too few free inodes. It can then start: consumers continue, and publishes are refused when the
journal is full, as on a full disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from ...errors import StoreInUse, StoreUnwritable
from ...file_system import boot_id, free_inodes
from ...private_folder import PrivateFolder
from ...url import LOCK_NAME, RESTORE_NAME
from .shared_file_systems import check_file_system

log = logging.getLogger(__name__)

_FOLDER = "broker.reserve"
#: files in the reserve; a startup needs about 15
_FILES = 32
#: time for which a starting broker watches the mark of another host: several renewals, see folder_active_role.py
_WATCH_SECONDS = 3.0
PID_NAME = "broker.pid"
_LOOK_SECONDS = 0.1


def use_reserve(store: Path) -> None:
    """Delete the reserve if the store's file system has fewer free inodes than the reserve has files."""
    free = free_inodes(store)
    if free is None or free >= _FILES:
        return
    count = 0
    for number in range(_FILES):
        with contextlib.suppress(OSError):
            (store / _FOLDER / str(number)).unlink()
            count += 1
    text = (
        "the file system of %s has only %d free inodes: delete files there (df -i shows the number); until then, "
        "publishes may be refused. The broker's reserve of %d inodes is used"
    )
    log.warning(text, store, free, count)


def fill_reserve(store: Path) -> None:
    """Create the missing files of the reserve, if twice as many inodes stay free."""
    free = free_inodes(store)
    if free is None or free < 3 * _FILES:
        return
    with contextlib.suppress(OSError):
        (store / _FOLDER).mkdir(mode=0o700, exist_ok=True)
        for number in range(_FILES):
            (store / _FOLDER / str(number)).touch(mode=0o600)


class HostMark:
    """Mark in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        boot = boot_id()
        self._own = f"{boot} {socket.gethostname()}" if boot else ""
        self._found = ("", 0)
        self._found_at = 0.0
        self.other = ""  # the other host whose mark is in the file; empty if there is none

    def is_stale(self) -> bool:
        """Return True if certainly no broker on another host uses the folder; raise StoreInUse if one does."""
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
        """Write this host's mark in place, because the disk may be full."""
        os.ftruncate(fd, os.pwrite(fd, self._own.encode(), 0))

    def renew(self, fd: int) -> str:
        """Renew the modification time; return the name of another host that has taken the folder, or ""."""
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
        """Return the mark and its modification time. A new descriptor bypasses this host's cache."""
        with self._path.open(errors="replace") as file:
            return file.read(4096).strip(), os.fstat(file.fileno()).st_mtime_ns

    def _other_host(self, mark: str) -> str:
        """Return the host name in another host's mark; empty if the mark is this host's."""
        boot, _, host = mark.partition(" ")
        if not self._own or boot == self._own.partition(" ")[0]:
            return ""
        return host or boot


class StoreLock:
    """Lock of one folder; ``folder`` is None before the first attempt to take it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder
        self._fd = -1
        self._is_held = False
        self._mark = HostMark(folder / LOCK_NAME)
        self.folder: PrivateFolder | None = None

    def acquire(self) -> None:
        """Take the lock and write the pid file.

        Raises:
            StoreInUse: another broker has the lock, or uses the folder on another host.
            UnsafeFolder: another user owns the folder or an entry of it, or may write to the folder.
            StoreUnwritable: the folder can't be written, other hosts can mount its file system, or it has only a part
                of a store.
        """
        while not self.try_acquire():
            if not self._mark.other:
                assert self.folder is not None
                pid = self.folder.read_text(PID_NAME) or "unknown"
                text = f"another broker (pid {pid}) owns {self._path}: connect to it, or stop it first"
                raise StoreInUse(text, path=str(self._path))
            time.sleep(_LOOK_SECONDS)

    def try_acquire(self) -> bool:
        """Take the lock if it is free. Raise as :meth:`acquire`, but StoreInUse only for a broker on another host.

        After an unclean shutdown on another host, the first attempts fail: see :meth:`.HostMark.is_stale`.
        """
        if self._is_held:
            return True
        if self.folder is None:
            check_file_system(self._path)
            self.folder = PrivateFolder(str(self._path))
            self.folder.check_entries()
        if self._fd < 0:
            self._fd = self.folder.open_file(LOCK_NAME, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            return self._take(self.folder)
        except OSError as exc:
            raise StoreUnwritable(f"{self._path} can't be written: {exc.strerror}", path=str(self._path)) from exc

    def _take(self, folder: PrivateFolder) -> bool:
        """Take the folder after the lock was acquired, unless a broker on another host may use it."""
        if not self._is_for_this_host():
            return False
        self._is_held = True
        if folder.read_text(RESTORE_NAME):
            text = f"{self._path} has a part of a store only: run the interrupted 'opendata-queue store restore' again"
            raise StoreUnwritable(text, path=str(self._path))
        use_reserve(self._path)
        self._mark.write(self._fd)
        with open(folder.open_file(PID_NAME, os.O_WRONLY | os.O_CREAT), "w") as file:
            file.truncate()
            file.write(f"{os.getpid()}\n")
        fill_reserve(self._path)
        return True

    def _is_for_this_host(self) -> bool:
        was_watched = self._mark.other
        if self._mark.is_stale():
            return True
        if not was_watched:
            text = "the last broker of %s did not end cleanly, and ran on another host (%s): watching whether it lives"
            log.warning(text, self._path, self._mark.other)
        return False

    @property
    def lost(self) -> bool:
        """True if the lock's file no longer exists, because the folder was deleted or replaced."""
        try:
            return not os.path.samestat(os.lstat(self._path / LOCK_NAME), os.fstat(self._fd))
        except FileNotFoundError:
            return True

    def renew(self) -> str:
        """Renew the mark; return the name of another host that has taken the folder, or ""."""
        return self._mark.renew(self._fd)

    def release(self) -> None:
        """Remove the pid file and release the lock, if this process has it."""
        if self.folder is not None:
            if self._is_held:
                self.folder.remove(PID_NAME)
                self._mark.remove(self._fd)
                fill_reserve(self._path)
            self.folder.close()
        if self._fd >= 0:
            os.close(self._fd)
        self.folder, self._fd, self._is_held = None, -1, False
