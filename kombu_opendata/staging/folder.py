"""Folders of files: of staged batches, and of backups. A file appears under its name when it is complete and durable.

The methods block, so asyncio code calls them in threads. :mod:`.bucket_folder` has prefixes of buckets.
"""

from __future__ import annotations

import contextlib
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from ..errors import DamagedBatch, OpenDataError, StoreError, StoreFull, StoreUnwritable
from ..file_system import is_full, remedy, sync_folder
from .batch_format import FILE_NAME

#: suffix for the name of an incomplete file
PART_SUFFIX = ".part"
_STREAM_BYTES = 4 << 20
_ATTEMPTS = 8
#: errors of one file, which a retry does not end: a bad sector, a checksum of the file system, not a file
_UNREADABLE = (errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.EISDIR, errno.ENOTDIR, errno.ELOOP)


class FolderEntry(NamedTuple):
    path: str
    bytes: int
    changed_at_ms: int


class Output(ABC):
    """File that is being written."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Append bytes."""

    @abstractmethod
    def commit(self) -> None:
        """Make the complete file durable, and visible under its name."""

    @abstractmethod
    def abort(self) -> None:
        """Remove the written bytes, as far as possible."""


class Folder(ABC):
    """Folder, or prefix of a bucket. Paths are relative to it. Errors of the store are raised as StoreError."""

    name: str  # the name for messages, without secrets
    root: Path | None = None  # the folder; None for a bucket

    @abstractmethod
    def create(self, path: str) -> Output:
        """Begin a file, which may replace an existing one."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Return the size of a batch in bytes; raise DamagedBatch if the batch is missing."""

    @abstractmethod
    def read(self, path: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each (offset, length), fewer at the end of the batch.

        Raises:
            DamagedBatch: the batch is missing, or the disk can't read one of these ranges.
        """

    @abstractmethod
    def stream(self, path: str) -> Iterator[bytes]:
        """Yield the bytes of a file, in pieces; raise FileNotFoundError if there is none."""

    @abstractmethod
    def entries(self, folder: str = "") -> Iterator[list[FolderEntry]]:
        """Yield pages of all files below a folder; none if there is no such folder."""

    @abstractmethod
    def folders(self) -> list[str]:
        """Return the names of the top-level folders."""

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> int:
        """Remove files and folders that become empty; return the number of files that existed."""

    def batches(self, job: str = "") -> Iterator[list[FolderEntry]]:
        """Yield pages of files of batches, complete or not, in one job's folder or in all."""
        for page in self.entries(job):
            if files := [entry for entry in page if FILE_NAME.fullmatch(entry.path)]:
                yield files

    def files(self, folder: str = "") -> Iterator[FolderEntry]:
        return chain.from_iterable(self.entries(folder))

    def read_all(self, path: str) -> bytes:
        """Return all bytes of a small file; errors are as in :meth:`stream`."""
        return b"".join(self.stream(path))

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        output = self.create(path)
        try:
            for piece in pieces:
                output.write(piece)
            output.commit()
        except BaseException:
            output.abort()
            raise

    def free_bytes(self) -> int | None:
        """Return the free space; None if it is unlimited."""
        return None


def unreadable(path: str, state: str = "is missing") -> DamagedBatch:
    text = f"batch {path} {state}: restore the object from a backup"
    return DamagedBatch(text, key=path.encode(), offset=0, batch=path)


class LocalFolder(Folder):
    """Folder in the file system. New files and folders are private to their user."""

    _retry, _owner = "try again", "; a store's folder belongs to the broker's user"

    def __init__(self, root: Path) -> None:
        self.root: Path = root
        self.name = str(root)

    def create(self, path: str) -> Output:
        return _LocalOutput(self, path)

    def size(self, path: str) -> int:
        with self.errors(path):
            return (self.root / path).stat().st_size

    def read(self, path: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        with self.errors(path):
            fd = self._opened(path)
            try:
                return [os.pread(fd, length, offset) for offset, length in ranges]
            finally:
                os.close(fd)

    def _opened(self, path: str) -> int:
        return os.open(self.root / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def stream(self, path: str) -> Iterator[bytes]:
        try:
            file = open(self._opened(path), "rb")  # noqa: SIM115
        except FileNotFoundError:
            raise
        except OSError as exc:
            raise self._error(exc) from exc
        with self.errors(), file:
            while piece := file.read(_STREAM_BYTES):
                yield piece

    def entries(self, folder: str = "") -> Iterator[list[FolderEntry]]:
        with self.errors():
            for parent, folders, names in os.walk(self.root / folder, onerror=_unless_missing):
                folders.sort()
                page = []
                for name in sorted(names):
                    path = Path(parent, name)
                    with contextlib.suppress(FileNotFoundError):  # removed during the iteration
                        status = path.lstat()
                        entry = str(path.relative_to(self.root)), status.st_size, status.st_mtime_ns // 1_000_000
                        page.append(FolderEntry(*entry))
                if page:
                    yield page

    def folders(self) -> list[str]:
        with self.errors(), contextlib.suppress(FileNotFoundError):
            return sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir(follow_symlinks=False))
        return []

    def delete(self, paths: Iterable[str]) -> int:
        count = 0
        folders = set()
        for path in paths:
            with self.errors(), contextlib.suppress(FileNotFoundError):
                (self.root / path).unlink()
                count += 1
            folders.add((self.root / path).parent)
        for folder in folders - {self.root}:
            with contextlib.suppress(OSError):  # not empty, or deleted
                folder.rmdir()
        return count

    def free_bytes(self) -> int | None:
        folder = self.root
        while not folder.exists():
            folder = folder.parent
        with self.errors():
            status = os.statvfs(folder)
        return status.f_bavail * status.f_frsize

    def make_folder(self, folder: Path) -> None:
        """Create a folder, and its parents up to the root, durably."""
        if folder.is_dir():
            return
        if folder != self.root:
            self.make_folder(folder.parent)
        else:
            self.check_parent()
        with contextlib.suppress(FileExistsError):  # another writer may have created it
            folder.mkdir(mode=0o700)
        sync_folder(folder.parent)

    def make_file(self, file: Path, open_file: Callable[[], int]) -> int:
        """Create the folder of a file and open it; again if another writer has removed the empty folder since."""
        for _ in range(_ATTEMPTS):
            self.make_folder(file.parent)
            with contextlib.suppress(FileNotFoundError):
                return open_file()
        return open_file()

    def check_parent(self) -> None:
        """Raise StoreUnwritable if the folder above the root is missing, as it may be on another host."""
        if not self.root.parent.is_dir():
            raise StoreUnwritable(
                f"the store's folder {self.root.parent} is not here: executors on other hosts than the broker's need a "
                "shared folder of the same name, or a store in a bucket",
                path=str(self.root.parent),
            )

    @contextlib.contextmanager
    def errors(self, batch: str = "") -> Iterator[None]:
        """Translate the errors of the operating system; ``batch`` is the batch that is read."""
        try:
            yield
        except OSError as exc:
            if batch and isinstance(exc, FileNotFoundError):
                raise unreadable(batch) from exc
            if batch and exc.errno in _UNREADABLE:
                raise unreadable(batch, f"can't be read ({exc.strerror})") from exc
            raise self._error(exc) from exc

    def _error(self, exc: OSError) -> OpenDataError:
        where = str(exc.filename or self.root)
        if is_full(exc):
            return StoreFull(f"the disk of {self.root} is full: {remedy(self.root)} and {self._retry}", path=where)
        if isinstance(exc, PermissionError):
            return StoreUnwritable(f"{where} can't be used by this user: {exc.strerror}{self._owner}", path=where)
        return StoreError(f"{where} can't be used: {exc.strerror or exc}", path=where)


class _LocalOutput(Output):
    """File that is written under another name, synced and renamed; then its folder is synced."""

    def __init__(self, folder: LocalFolder, path: str) -> None:
        self._folder = folder
        self._final = folder.root / path
        self._temporary = folder.root / (path + PART_SUFFIX)
        self._committed = False
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        with folder.errors():
            fd = folder.make_file(self._temporary, lambda: os.open(self._temporary, flags, 0o600))
            self._file = open(fd, "wb", buffering=1 << 20)  # noqa: SIM115

    def write(self, data: bytes) -> None:
        with self._folder.errors():
            self._file.write(data)

    def commit(self) -> None:
        with self._folder.errors():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.rename(self._temporary, self._final)
            self._committed = True
            sync_folder(self._final.parent)

    def abort(self) -> None:
        path = self._final if self._committed else self._temporary
        for step in (self._file.close, path.unlink, self._final.parent.rmdir):
            with contextlib.suppress(OSError):  # other writers may use the folder
                step()


def _unless_missing(exc: OSError) -> None:
    if not isinstance(exc, (FileNotFoundError, NotADirectoryError)):
        raise exc
