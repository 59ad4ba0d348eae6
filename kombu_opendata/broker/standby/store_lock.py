"""The lock on a store's folder: an flock, which the kernel releases when the process ends, also by a crash."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from pathlib import Path

from ...errors import StoreInUse, StoreUnwritable
from ...private_folder import PrivateFolder
from ...url import LOCK_NAME, RESTORE_NAME
from .file_systems import check_file_system
from .host_mark import HostMark
from .inode_reserve import fill_reserve, use_reserve

log = logging.getLogger(__name__)

PID_NAME = "broker.pid"
_LOOK_SECONDS = 0.1


class StoreLock:
    """The lock of one folder. It is taken by :meth:`acquire`, or when it is free by :meth:`try_acquire`.

    Attributes:
        folder: None before the first attempt.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder
        self._fd = -1
        self._is_held = False
        self._mark = HostMark(folder / LOCK_NAME)
        self.folder: PrivateFolder | None = None

    def acquire(self) -> None:
        """Take the lock and write the pid file.

        Raises:
            StoreUnwritable: the folder can't be created or written, other hosts may use it, or it has only a part of a
                store.
            UnsafeFolder: other users own or may write to the folder or an entry in it.
            StoreInUse: another broker has the lock, or uses the folder on another host.
        """
        while not self.try_acquire():
            if not self._mark.other:
                assert self.folder is not None
                pid = self.folder.read_text(PID_NAME) or "unknown"
                raise StoreInUse(
                    f"another broker (pid {pid}) owns {self._path}: connect to it, or stop it first",
                    path=str(self._path),
                )
            time.sleep(_LOOK_SECONDS)

    def try_acquire(self) -> bool:
        """Take the lock if it is free; raises as :meth:`acquire`, StoreInUse only for a broker on another host.

        After an unclean shutdown on another host the first attempts fail: see :meth:`.HostMark.is_stale`.
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
            raise StoreUnwritable(
                f"{self._path} has a part of a store only: run the interrupted 'opendata-queue store restore' again",
                path=str(self._path),
            )
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
        """The lock's file does not exist any more: the folder was deleted or replaced."""
        try:
            return not os.path.samestat(os.lstat(self._path / LOCK_NAME), os.fstat(self._fd))
        except FileNotFoundError:
            return True

    def renew(self) -> str:
        """Show other hosts that this broker is alive; returns the name of one that has taken the folder, or ""."""
        return self._mark.renew(self._fd)

    def release(self) -> None:
        """Remove the pid file and release the lock, if it is held. May be called more than once."""
        if self.folder is not None:
            if self._is_held:
                self.folder.remove(PID_NAME)
                self._mark.remove(self._fd)
                fill_reserve(self._path)
            self.folder.close()
        if self._fd >= 0:
            os.close(self._fd)
        self.folder, self._fd, self._is_held = None, -1, False
