"""The library of system_faults.c, and the file that controls it in one process."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from enum import IntEnum
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_suffix(".c")
_BYTES = 32


class DiskFault(IntEnum):
    """What strikes a call: half of a write and the end, no space, a failed sync, the end before or after a sync."""

    KILL_IN_WRITE = 1
    FULL_DISK = 2
    FAILED_SYNC = 3
    KILL_AT_SYNC = 4
    KILL_AFTER_SYNC = 5

    @property
    def is_kill(self) -> bool:
        return self not in (DiskFault.FULL_DISK, DiskFault.FAILED_SYNC)


def build_library(folder: Path) -> Path:
    """Compile the library."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("there is no C compiler: install the package gcc")
    library = folder / "system_faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl"], check=True)
    return library


class Control:
    """The file that controls the faults of a process, and of its successors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(_BYTES))
        self._file = path.open("r+b", buffering=0)

    def set_clock(self, ahead_seconds: float) -> None:
        """Set the system clock of the process."""
        self._write(0, "<q", int(ahead_seconds * 1e9))

    def arm(self, fault: DiskFault, calls: int) -> None:
        """Let a fault strike after so many calls of its kind, and all later ones."""
        self._write(12, "<ii", calls, 0)
        self._write(8, "<i", fault)

    def disarm(self) -> None:
        self._write(8, "<i", 0)

    def struck(self) -> int:
        """How many calls were struck since it was armed."""
        self._file.seek(16)
        (count,) = struct.unpack("<i", self._file.read(4))
        return int(count)

    def close(self) -> None:
        self._file.close()

    def _write(self, at: int, form: str, *values: int) -> None:
        os.pwrite(self._file.fileno(), struct.pack(form, *values), at)
