"""The simulated disk of a host: the files of journals and payload segments, with the faults of disks.

A file has the bytes that the system would read, which survive the end of a process, and the writes since its last sync,
of which a power loss keeps any subset, each torn at any byte. A rename or a removal survives a power loss certainly
only after the sync of the folder.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

from kombu_opendata.storage.commit.file_calls import FileCalls
from kombu_opendata.storage.commit.journal_format import HEADER_BYTES, complete_records, parse_header

from .older_version import older_segment

SEGMENT_SUFFIX = ".segment"


class _File:
    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""
        self.writes: list[tuple[int, bytes]] = []  # since the last sync
        self.syncs = 0

    def write(self, offset: int, data: bytes) -> None:
        if len(self.data) < offset + len(data):
            self.data.extend(bytes(offset + len(data) - len(self.data)))
        self.data[offset : offset + len(data)] = data
        self.writes.append((offset, data))

    def truncate(self, size: int) -> None:
        del self.data[size:]
        self.synced = self.synced[:size]
        self.writes = [(at, data[: size - at]) for at, data in self.writes if at < size]

    def sync(self) -> None:
        self.synced = bytes(self.data)
        self.writes.clear()
        self.syncs += 1

    def lose_power(self, random_numbers: random.Random) -> None:
        data = bytearray(self.synced)
        for offset, written in self.writes:
            if random_numbers.random() < 0.5:
                kept = written[: random_numbers.randrange(len(written) + 1)]
                data.extend(bytes(max(offset + len(kept) - len(data), 0)))
                data[offset : offset + len(kept)] = kept
        data.extend(bytes(max(len(self.data) - len(data), 0)))
        self.data = data
        self.sync()


class Disk:
    """The files of a host.

    Attributes:
        is_full: writes that need new space fail; all do if it ``is_copying``, as a file system that never overwrites.
        failing: names of calls that fail with EIO the next time.
        power_lost: a power loss came since the last :meth:`boot`.
        torn: kills the process during its next write, of which any number of bytes is written; None for no kill.
        synced_at: the time of the last sync of a journal's records.
    """

    def __init__(self, random_numbers: random.Random, count: Callable[[str], None], now: Callable[[], float]) -> None:
        self._random, self._count, self.now = random_numbers, count, now
        self.synced_at = now()
        self.names: dict[str, _File] = {}
        self._synced_names: dict[str, _File] = {}
        self._restores: list[Callable[[], None]] = []  # of changed bits
        self.is_full = self.is_copying = False
        self.failing: set[str] = set()
        self.power_lost = False
        self.torn: Callable[[], None] | None = None

    def calls(self) -> tuple[DiskCalls, DiskCalls]:
        """Return the calls for a process: for its journal, and for its payload segments."""
        return DiskCalls(self), SegmentCalls(self)

    def show(self, name: str) -> None:
        """Write a payload segment to the real folder, from which the package reads it, and deletes it."""
        if name in self.names:
            Path(name).write_bytes(self.names[name].data)
        else:
            Path(name).unlink(missing_ok=True)

    def _segments(self) -> list[str]:
        """Return the names of the payload segments; those that the package has deleted are no longer there."""
        segments = sorted(name for name in self.names.keys() | self._synced_names if name.endswith(SEGMENT_SUFFIX))
        for name in segments:
            if not os.path.exists(name):
                self.names.pop(name, None)
                self._synced_names.pop(name, None)
        return [name for name in segments if name in self.names]

    def lose_power(self) -> None:
        """Keep what was synced, and any part of the rest.

        Changed bits are right again: after a power loss, a changed record may look like a torn one.
        """
        self.power_lost = True
        for restore in list(self._restores):
            restore()
        segments = self._segments()
        names = dict(self._synced_names)
        for name in sorted(self.names.keys() | self._synced_names.keys()):
            if self.names.get(name) is not self._synced_names.get(name) and self._random.random() < 0.5:
                names.pop(name, None)
                if name in self.names:
                    names[name] = self.names[name]
        unique = {id(file): file for file in names.values()}
        for file in unique.values():
            file.lose_power(self._random)
        seen: set[int] = set()  # a rename that is half on the disk leaves one of the names
        self.names = {}
        for name in sorted(names, reverse=True):
            if id(names[name]) not in seen:
                seen.add(id(names[name]))
                self.names[name] = names[name]
        self._synced_names = dict(self.names)
        for name in segments:
            self.show(name)

    def make_older(self) -> None:
        """Let an older version have written the journals."""
        for name, file in self.names.items():
            older = older_segment(bytes(file.data)) if name.endswith(".journal") else None
            if older is not None:
                file.data = bytearray(older)
                file.sync()

    def flip_bit(self) -> Callable[[], None] | None:
        """Change a bit of a journal before its last record, which alone can look torn.

        Return a function that restores it; None if there is none to change.
        """
        ends = {}
        for name, file in self.names.items():
            header = parse_header(bytes(file.data[:HEADER_BYTES])) if name.endswith(".journal") else None
            if header is not None:
                records = list(complete_records(bytes(file.data), header.first, 0))
                if len(records) > 1:
                    ends[name] = records[-1].start
        return self._flip(ends) if ends and not self.power_lost else None

    def flip_segment_bit(self) -> Callable[[], None] | None:
        """Change a bit of a payload segment, as :meth:`flip_bit`."""
        sizes = {name: len(self.names[name].data) for name in self._segments()}
        return self._flip({name: size for name, size in sizes.items() if size}) if any(sizes.values()) else None

    def _flip(self, ends: dict[str, int]) -> Callable[[], None]:
        name = self._random.choice(sorted(ends))
        file, place, bit = self.names[name], self._random.randrange(ends[name]), 1 << self._random.randrange(8)
        syncs = file.syncs

        def change() -> None:
            file.data[place] ^= bit
            if name.endswith(SEGMENT_SUFFIX) and os.path.exists(name):
                self.show(name)

        def restore() -> None:
            if restore in self._restores:
                self._restores.remove(restore)
                change()
                if file.syncs > syncs:
                    file.synced = bytes(file.data[: place + 1]) + file.synced[place + 1 :]

        change()
        self._restores.append(restore)
        return restore

    # ---- of DiskCalls
    def check(self, call: str) -> None:
        self._count("disk")
        if call in self.failing:
            self.failing.discard(call)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def sync_names(self, folder: str) -> None:
        self._synced_names = {
            name: file for name, file in self._synced_names.items() if os.path.dirname(name) != folder
        } | {name: file for name, file in self.names.items() if os.path.dirname(name) == folder}

    def torn_bytes(self, size: int) -> int:
        return self._random.randrange(size + 1)


class DiskCalls(FileCalls):
    """The calls of one process; those of a killed one fail."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._open: dict[int, _File] = {}
        self._next = 3
        self.is_dead = False

    def _file(self, call: str, fd: int) -> _File:
        if self.is_dead:
            raise OSError(errno.EIO, "the process was killed")
        self._disk.check(call)
        return self._open[fd]

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        name = str(path)
        if self.is_dead:
            raise OSError(errno.EIO, "the process was killed")
        self._disk.check("open")
        if flags & os.O_EXCL and name in self._disk.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        if flags & os.O_CREAT:
            self._disk.names[name] = _File()
        elif name not in self._disk.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        self._next += 1
        self._open[self._next] = self._disk.names[name]
        return self._next

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)

    def size(self, fd: int) -> int:
        return len(self._file("size", fd).data)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        return bytes(self._file("read", fd).data[offset : offset + size])

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        return self._write(fd, bytes(data), offset)

    def write_parts(self, fd: int, parts: tuple[bytes, ...], offset: int, *flags: int) -> int:
        size = self._write(fd, b"".join(parts), offset)
        if flags:
            self.sync_data(fd)
        return size

    def _write(self, fd: int, data: bytes, offset: int) -> int:
        file, disk = self._file("write", fd), self._disk
        if disk.torn is not None:
            torn, disk.torn = disk.torn, None
            file.write(offset, data[: disk.torn_bytes(len(data))])
            torn()
            raise OSError(errno.EIO, "the process was killed")
        if disk.is_full and (disk.is_copying or offset + len(data) > len(file.data)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file.write(offset, data)
        return len(data)

    def truncate(self, fd: int, size: int) -> None:
        self._file("truncate", fd).truncate(size)

    def sync(self, fd: int) -> None:
        self._file("sync", fd).sync()

    def sync_data(self, fd: int) -> None:
        self._file("sync", fd).sync()
        self._disk.synced_at = self._disk.now()

    def sync_folder(self, folder: Path) -> None:
        if self.is_dead:
            raise OSError(errno.EIO, "the process was killed")
        self._disk.check("sync")
        self._disk.sync_names(str(folder))

    def rename(self, path: Path, target: Path) -> None:
        if self.is_dead:
            raise OSError(errno.EIO, "the process was killed")
        self._disk.check("rename")
        self._disk.names[str(target)] = self._disk.names.pop(str(path))

    def unlink(self, path: Path) -> None:
        if not self.is_dead:
            self._disk.names.pop(str(path), None)

    def create_folder(self, folder: Path) -> None:
        pass

    def files(self, folder: Path, suffix: str) -> list[Path]:
        return [
            Path(name)
            for name in sorted(self._disk.names)
            if name.endswith(suffix) and os.path.dirname(name) == str(folder)
        ]


class SegmentCalls(DiskCalls):
    """The calls of one process for its payload segments, which it also shows in the real folder."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self._names: dict[int, str] = {}

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        fd = super().open(path, flags, mode)
        self._names[fd] = str(path)
        self._disk.show(str(path))
        return fd

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        try:
            return super().write(fd, data, offset)
        finally:
            self._disk.show(self._names[fd])

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        self._disk.show(self._names[fd])

    def sync_data(self, fd: int) -> None:
        self.sync(fd)
