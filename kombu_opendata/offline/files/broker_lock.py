"""The lock that a broker holds on its store's folder."""

from __future__ import annotations

import os
from pathlib import Path

from ...url import LOCK_NAME


def running_broker(root: Path | None) -> int | None:
    """The process that holds the lock on a store's folder; 0 if it is unknown, None if no process on this host does."""
    if root is None:
        return None
    try:
        status = os.lstat(root / LOCK_NAME)  # not stat: a link could point to any process's lock
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in locks:
        fields = line.split()
        if "FLOCK" in fields and wanted in fields:
            return int(fields[4])
    return None
