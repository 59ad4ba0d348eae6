"""Bytes written to the device of a folder, by all of the machine."""

from __future__ import annotations

import os
from pathlib import Path

_DISKSTATS = Path("/proc/diskstats")
_SECTOR_BYTES = 512
"""Of this file, whatever the sectors of the device are."""


def written_bytes(folder: Path) -> int | None:
    """Bytes written so far to the device that `folder` is on, once all file systems are synced.

    None where the system does not count them for one device: a folder in memory, or a file system of several devices.
    """
    os.sync()
    number = os.stat(folder).st_dev
    try:
        return bytes_of_device(_DISKSTATS.read_text(encoding="ascii"), os.major(number), os.minor(number))
    except FileNotFoundError:  # not Linux
        return None


def bytes_of_device(diskstats: str, major: int, minor: int) -> int | None:
    """Bytes written to one device by the text of ``/proc/diskstats``; None if it is not there."""
    for line in diskstats.splitlines():
        fields = line.split()
        if fields[:2] == [str(major), str(minor)]:
            return int(fields[9]) * _SECTOR_BYTES
    return None
