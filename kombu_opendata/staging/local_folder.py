"""Staged batches as plain files. A file appears under its name when it is completely on the disk."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import OpenDataError, StoreError, StoreFull, StoreUnwritable
from ..file_system import is_full, remedy, sync_folder
from .batch_uri import FILE_NAME
from .folder import Folder, FolderEntry, Output, missing

#: suffix for the name of an incomplete file
PART_SUFFIX = ".part"
#: limit for the files that a folder keeps open for reading
_MAX_OPEN = 32


class LocalFolder(Folder):
    """Plain files below ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._open: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def create(self, path: str) -> Output:
        return _LocalOutput(self.root, path)

    def size(self, path: str) -> int:
        with _errors_of(self.root / path, missing(path)):
            return (self.root / path).stat().st_size

    def read(self, path: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        # the lock prevents another thread from closing the file
        with self._lock, _errors_of(self.root / path, missing(path)):
            fd = self._descriptor(path)
            return [_pread(fd, offset, length) for offset, length in ranges]

    def _descriptor(self, path: str) -> int:
        fd = self._open.pop(path, None)
        if fd is None:
            fd = os.open(self.root / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._open[path] = fd
        if len(self._open) > _MAX_OPEN:
            os.close(self._open.popitem(last=False)[1])
        return fd

    def files(self, job: str = "") -> Iterator[list[FolderEntry]]:
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
                page.append(FolderEntry(path, status.st_size, status.st_mtime_ns // 1_000_000))
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
            with _errors_of(self.root / path), contextlib.suppress(FileNotFoundError):
                (self.root / path).unlink()
                count += 1
            folders.add((self.root / path).parent)
        for folder in folders:
            with contextlib.suppress(OSError):  # not empty, or deleted
                folder.rmdir()
        return count

    def close(self) -> None:
        with self._lock:
            for fd in self._open.values():
                os.close(fd)
            self._open.clear()


class _LocalOutput(Output):
    """File that is written under another name, synced and renamed; then its folder is synced."""

    def __init__(self, root: Path, path: str) -> None:
        self._final = root / path
        self._temporary = root / (path + PART_SUFFIX)
        with _errors_of(self._final):
            _make_folders(root, self._final.parent)
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            self._file = open(os.open(self._temporary, flags, 0o600), "wb", buffering=1 << 20)  # noqa: SIM115

    def write(self, data: bytes) -> None:
        with _errors_of(self._final):
            self._file.write(data)

    def commit(self) -> None:
        with _errors_of(self._final):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.rename(self._temporary, self._final)
            sync_folder(self._final.parent)

    def abort(self) -> None:
        parent = self._final.parent
        for step in (self._file.close, self._temporary.unlink, self._final.unlink, parent.rmdir):
            with contextlib.suppress(OSError):  # other writers may use the folder
                step()


def _make_folders(root: Path, folder: Path) -> None:
    """Create the job's folder durably. The store's folder must exist: on another host it may be missing."""
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
        sync_folder(path.parent)


def _pread(fd: int, offset: int, length: int) -> bytes:
    data = os.pread(fd, length, offset)
    while len(data) < length:  # interrupted by a signal, or over 2 GiB
        more = os.pread(fd, length - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def _names(folder: Path) -> list[str]:
    with _errors_of(folder), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(os.listdir(folder))
    return []


@contextlib.contextmanager
def _errors_of(path: Path, if_missing: OpenDataError | None = None) -> Iterator[None]:
    """Translate the errors of the operating system."""
    try:
        yield
    except OSError as exc:
        if if_missing is not None and isinstance(exc, FileNotFoundError):
            raise if_missing from exc
        if is_full(exc):
            text = f"the disk of {path} is full: {remedy(path.parent)} and try again"
            raise StoreFull(text, path=str(path)) from exc
        if isinstance(exc, PermissionError):
            raise StoreUnwritable(
                f"{path} can't be used by this user: {exc.strerror}; a store's folder belongs to the broker's user",
                path=str(path),
            ) from exc
        raise StoreError(f"{path} can't be used: {exc.strerror or exc}", path=str(path)) from exc
