"""The calls of the operating system for a journal's files. All raise OSError."""

from __future__ import annotations

import os
from pathlib import Path

from ...file_system import sync_folder


class FileCalls:
    """The calls of this system; a test passes its own, which fail or tear what they write."""

    close = staticmethod(os.close)
    read = staticmethod(os.pread)
    write: staticmethod[[int, bytes | memoryview, int], int] = staticmethod(os.pwrite)
    #: with the flag for it, the bytes are durable when the call returns
    write_parts: staticmethod[..., int] = staticmethod(os.pwritev)
    sync: staticmethod[[int], None] = staticmethod(os.fsync)
    sync_data: staticmethod[[int], None] = staticmethod(getattr(os, "fdatasync", os.fsync))  # macOS has no fdatasync
    truncate: staticmethod[[int, int], None] = staticmethod(os.ftruncate)
    sync_folder = staticmethod(sync_folder)

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        return os.open(path, flags, mode)

    def rename(self, path: Path, target: Path) -> None:
        path.rename(target)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def unlink(self, path: Path) -> None:
        """Remove a file, if it exists."""
        path.unlink(missing_ok=True)

    def create_folder(self, folder: Path) -> None:
        """Create a folder for this user, and those above it, where they are missing."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def files(self, folder: Path, suffix: str) -> list[Path]:
        """Return the files with this suffix, sorted."""
        return sorted(folder.glob(f"*{suffix}"))


SYSTEM = FileCalls()
