"""The lock on a store's folder: an flock, which the kernel releases when the process ends, also by a crash."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ...errors import StoreInUse, StoreUnwritable
from ...private_folder import PrivateFolder
from ...url import LOCK_NAME, RESTORE_NAME
from .file_systems import check_file_system

PID_NAME = "broker.pid"


class StoreLock:
    """The lock of one folder. It is taken by :meth:`acquire`, or when it is free by :meth:`try_acquire`.

    Attributes:
        folder: None before the first attempt.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder
        self._fd = -1
        self._is_held = False
        self.folder: PrivateFolder | None = None

    def acquire(self) -> None:
        """Take the lock and write the pid file.

        Raises:
            StoreUnwritable: the folder can't be created or written, other hosts may use it, or it has only a part of a
                store.
            UnsafeFolder: other users own or may write to the folder or something in it.
            StoreInUse: another broker has the lock.
        """
        if not self.try_acquire():
            assert self.folder is not None
            pid = self.folder.read_text(PID_NAME) or "unknown"
            raise StoreInUse(
                f"another broker (pid {pid}) owns {self._path}: connect to it, or stop it first", path=str(self._path)
            )

    def try_acquire(self) -> bool:
        """Take the lock if it is free; raises as :meth:`acquire`, except for StoreInUse."""
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
        self._is_held = True
        if self.folder.read_text(RESTORE_NAME):
            raise StoreUnwritable(
                f"{self._path} has a part of a store only: run the interrupted 'opendata-queue store restore' again",
                path=str(self._path),
            )
        with open(self.folder.open_file(PID_NAME, os.O_WRONLY | os.O_CREAT), "w") as file:
            file.truncate()
            file.write(f"{os.getpid()}\n")
        return True

    @property
    def lost(self) -> bool:
        """Whether the lock's file is gone: the folder was deleted or replaced."""
        try:
            return not os.path.samestat(os.lstat(self._path / LOCK_NAME), os.fstat(self._fd))
        except FileNotFoundError:
            return True

    def release(self) -> None:
        """Remove the pid file and release the lock, if it is held. May be called more than once."""
        if self.folder is not None:
            if self._is_held:
                self.folder.remove(PID_NAME)
            self.folder.close()
        if self._fd >= 0:
            os.close(self._fd)
        self.folder, self._fd, self._is_held = None, -1, False
