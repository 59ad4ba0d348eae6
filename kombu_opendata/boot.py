"""Which boot of the host this is."""

from __future__ import annotations

from pathlib import Path

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The kernel's id of this boot of the host, the same in all its containers; empty where the system has none."""
    try:
        return BOOT_ID_FILE.read_text().strip()
    except OSError:
        return ""
