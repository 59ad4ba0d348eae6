"""File systems of this host: full disks, durable names and files with secrets; the id of the current boot."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from .errors import OpenDataError

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: OSError) -> bool:
    """Return True if the disk or the user's share of it is full, or a file is too large."""
    return error.errno in _FULL


def free_inodes(path: Path | str) -> int | None:
    """Return the number of files that can still be created on a path's file system; None if it has no such limit."""
    try:
        usage = os.statvfs(path)
    except OSError:
        return None
    return usage.f_favail if usage.f_files else None


def remedy(path: Path | str) -> str:
    """Return the remedy for a path's full disk."""
    if free_inodes(path) == 0:
        return "its file system has no free inodes: delete files there (df -i shows the number)"
    return "free disk space"


def sync_folder(folder: Path) -> None:
    """Sync a folder in which a file was created, renamed or removed, so that this survives a power loss."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def boot_id(file: Path = BOOT_ID_FILE) -> str:
    """Return the kernel's id of the current boot, which all containers of the host share; empty if there is none."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def read_private(path: Path | str, what: str, error: type[OpenDataError]) -> bytes:
    """Return the content of a file that not every user may read; its group may.

    ``what`` is its name in errors, such as ``the private key``, and ``error`` their class.
    """
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & (stat.S_IROTH | stat.S_IWOTH):
                raise error(
                    f"{what} {path} is open to every user of this machine (mode {mode:03o}): chmod o-rwx {path}",
                    path=str(path),
                )
            return file.read()
    except OSError as exc:
        raise error(f"{what} {path} can't be read: {exc.strerror}", path=str(path)) from exc
