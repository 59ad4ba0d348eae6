"""A process identity, by which another process on the same host can check whether it has ended.

``BOOT/NAMESPACE/PID/START``: the host's boot, the namespace of process ids (a container has its own), the process and
its start in clock ticks after the boot. Empty where the system has no ``/proc``.
"""

from __future__ import annotations

import os
from pathlib import Path

from ...file_system import boot_id


def own_process() -> str:
    """Return the identity of this process."""
    try:
        return f"{_place()}/{os.getpid()}/{_started(os.getpid())}"
    except (OSError, IndexError):
        return ""


def has_ended(process: str) -> bool:
    """Return whether this process ran on this host and has certainly ended."""
    try:
        place, pid, started = process.rsplit("/", 2)
        if place != _place():
            return False
    except (OSError, ValueError):
        return False
    try:
        return _started(int(pid)) != started
    except FileNotFoundError:
        return True
    except (OSError, ValueError, IndexError):
        return False


def _place() -> str:
    return f"{boot_id()}/{os.stat('/proc/self/ns/pid').st_ino}"


def _started(pid: int) -> str:
    """Return the start time of a process; a zombie does not count as running."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if fields[0] in "ZX":
        raise FileNotFoundError(f"process {pid} has ended")
    return fields[19]
