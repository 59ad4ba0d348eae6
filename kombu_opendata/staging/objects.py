"""The folder of staged batches: where a batch is written to, read from, listed and removed. No asyncio: use threads.

==================  ==============================================================================
URL                 folder
==================  ==============================================================================
``file:///folder``  plain files; one appears under its name when all of it is on the disk
``s3://bucket/p``   and ``gs:``, ``az:``, …: :mod:`.buckets`, which needs the extra ``objectstore``
==================  ==============================================================================
"""

from __future__ import annotations

import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from ..errors import CorruptRecord, InvalidURL, StoreError, StoreFull, StoreUnwritable
from .target import FILE_NAME

_PART = ".part"
_FULL_ERRNOS = (28, 122, 27)  # ENOSPC, EDQUOT, EFBIG
#: open files that a folder keeps for reading
_MAX_OPEN = 32


class Found(NamedTuple):
    """A file of the folder."""

    path: str
    bytes: int
    changed_at_ms: int


class Output(ABC):
    """A batch that is being written."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Append."""

    @abstractmethod
    def commit(self) -> None:
        """All was written: make it durable and visible under its name."""

    @abstractmethod
    def abort(self) -> None:
        """Leave nothing behind, as far as that is possible."""


class Folder(ABC):
    """The folder of one instance. Paths are relative to it; errors of the store are StoreError."""

    @abstractmethod
    def create(self, path: str) -> Output:
        """Begin a batch."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Bytes of a batch; raises CorruptRecord if it is missing."""

    @abstractmethod
    def read(self, path: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        """The bytes of each (offset, length); shorter where the batch ends.

        Raises:
            CorruptRecord: it is missing.
            StoreError: it can't be read now.
        """

    @abstractmethod
    def files(self, job: str = "") -> Iterator[list[Found]]:
        """The files of batches, of one job's folder or all, finished or not; in pages."""

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> int:
        """Remove files, and folders that are empty then; returns how many there were."""

    def close(self) -> None:
        """Let go of what is open."""
        return


def open_folder(url: str, options: Mapping[str, str] | None = None) -> Folder:
    """The folder at a URL.

    Raises:
        InvalidURL: it can't hold staged batches.
        StoreError: a package is missing, or the settings are refused; the text says what to do.
    """
    if url.startswith("file://"):
        root = Path(unquote(url.removeprefix("file://")))
        if not root.is_absolute() or root == Path("/"):
            raise InvalidURL(f"{url!r} names no folder: write file:///absolute/folder", url=url)
        return LocalFolder(root)
    if url.startswith("memory:"):
        raise InvalidURL("a store in memory can't hold staged batches: no other process sees it; use a folder", url=url)
    from .buckets import Bucket

    return Bucket(url, options or {})


def missing(path: str) -> CorruptRecord:
    """The error for a batch that is not there."""
    return CorruptRecord(f"batch {path} is missing: restore the object", key=path.encode(), offset=0)


# ---------------------------------------------------------------------- a local folder
class LocalFolder(Folder):
    """Plain files below ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._open: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def create(self, path: str) -> Output:
        return _LocalOutput(self.root, path)

    def size(self, path: str) -> int:
        try:
            return (self.root / path).stat().st_size
        except FileNotFoundError as exc:
            raise missing(path) from exc
        except OSError as exc:
            raise _translated(exc, self.root / path) from exc

    def read(self, path: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        with self._lock:  # no other thread may close the file meanwhile
            try:
                fd = self._descriptor(path)
                return [_pread(fd, offset, length) for offset, length in ranges]
            except FileNotFoundError as exc:
                raise missing(path) from exc
            except OSError as exc:
                raise _translated(exc, self.root / path) from exc

    def _descriptor(self, path: str) -> int:
        fd = self._open.pop(path, None)
        if fd is None:
            fd = os.open(self.root / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._open[path] = fd
        if len(self._open) > _MAX_OPEN:
            os.close(self._open.popitem(last=False)[1])
        return fd

    def files(self, job: str = "") -> Iterator[list[Found]]:
        folders = [job] if job else _names(self.root)
        for folder in folders:
            page = []
            for name in _names(self.root / folder):
                path = f"{folder}/{name}"
                if not FILE_NAME.fullmatch(path):
                    continue
                try:
                    status = os.lstat(self.root / path)
                except FileNotFoundError:
                    continue
                page.append(Found(path, status.st_size, status.st_mtime_ns // 1_000_000))
            if page:
                yield page

    def delete(self, paths: Iterable[str]) -> int:
        count = 0
        folders = set()
        for path in paths:
            with self._lock:
                fd = self._open.pop(path, None)
                if fd is not None:
                    os.close(fd)
            try:
                (self.root / path).unlink()
                count += 1
            except FileNotFoundError:
                pass
            except OSError as exc:
                raise _translated(exc, self.root / path) from exc
            folders.add((self.root / path).parent)
        for folder in folders:
            try:
                folder.rmdir()
            except OSError:  # not empty, or gone
                continue
        return count

    def close(self) -> None:
        with self._lock:
            for fd in self._open.values():
                os.close(fd)
            self._open.clear()


class _LocalOutput(Output):
    """A file that gets its name when it is complete: written, synced, renamed, and its folder synced."""

    def __init__(self, root: Path, path: str) -> None:
        self._final = root / path
        self._temporary = root / (path + _PART)
        try:
            _make_folders(root, self._final.parent)
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            self._file = open(os.open(self._temporary, flags, 0o600), "wb", buffering=1 << 20)  # noqa: SIM115
        except OSError as exc:
            raise _translated(exc, self._final) from exc

    def write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as exc:
            raise _translated(exc, self._final) from exc

    def commit(self) -> None:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.rename(self._temporary, self._final)
            _sync_folder(self._final.parent)
        except OSError as exc:
            raise _translated(exc, self._final) from exc

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        for path in (self._temporary, self._final):
            try:
                path.unlink()
            except OSError:
                continue
        try:
            self._final.parent.rmdir()
        except OSError:  # others write there
            return


def _make_folders(root: Path, folder: Path) -> None:
    """Create the job's folder, durably. The store's own folder must be there: this may be another host."""
    if not root.parent.is_dir():
        raise StoreUnwritable(
            f"the store's folder {root.parent} is not here: executors on other hosts than the broker's need a shared "
            "folder of the same name, or a store in a bucket",
            path=str(root.parent),
        )
    for path in (root, folder):
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _pread(fd: int, offset: int, length: int) -> bytes:
    data = os.pread(fd, length, offset)
    while len(data) < length:  # a signal, or a read of over 2 GiB
        more = os.pread(fd, length - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as exc:
        raise _translated(exc, folder) from exc


def _translated(exc: OSError, path: Path) -> StoreError | StoreFull:
    if exc.errno in _FULL_ERRNOS:
        return StoreFull(f"the disk of {path} is full: free space and try again", path=str(path))
    if isinstance(exc, PermissionError):
        return StoreUnwritable(
            f"{path} can't be used by this user: {exc.strerror}; a store's folder belongs to the broker's user",
            path=str(path),
        )
    return StoreError(f"{path} can't be used: {exc.strerror or exc}", path=str(path))
