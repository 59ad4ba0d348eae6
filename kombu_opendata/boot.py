"""Identification of the host's current boot."""

from __future__ import annotations

from pathlib import Path

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the kernel's id of the host's current boot, the same in all its containers.

    Empty if the system has none.
    """
    try:
        return BOOT_ID_FILE.read_text().strip()
    except OSError:
        return ""
