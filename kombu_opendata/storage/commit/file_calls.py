"""The calls of the operating system for a journal's files. All raise OSError."""

from __future__ import annotations

import os
from pathlib import Path

from ...file_system import sync_folder


class FileCalls:
    """The calls of this system; a test passes its own, which fail or tear what they write."""

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        return os.open(path, flags, mode)

    def close(self, fd: int) -> None:
        os.close(fd)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def write_parts(self, fd: int, parts: tuple[bytes, ...], offset: int, *flags: int) -> int:
        """Write as ``os.pwritev``; with the flag for it, the bytes are durable when the call returns."""
        return os.pwritev(fd, parts, offset, *flags)

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def sync_data(self, fd: int) -> None:
        os.fdatasync(fd)

    def sync_folder(self, folder: Path) -> None:
        sync_folder(folder)

    def rename(self, path: Path, target: Path) -> None:
        path.rename(target)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

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
