"""Detection of a full disk.

Errors of the operating system after which a retry may succeed, and the missing resource.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

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
