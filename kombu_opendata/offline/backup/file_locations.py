"""Locations of backups and stores: folders or buckets, whose files are read, written whole, listed and removed."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from ...errors import InvalidURL, StoreError, StoreFull, StoreUnwritable
from ...file_system import is_full, remedy, sync_folder
from ...masking import masked
from ...private_folder import make_folder
from ...staging.bucket_folder import BucketFolder

_CHUNK_BYTES = 4 << 20
#: suffix of the names of unfinished files in a folder
PART = ".part"


class FoundFile(NamedTuple):
    """File of a location."""

    path: str
    bytes: int


class FileLocation(ABC):
    """Folder or prefix of a bucket. Paths are relative to it.

    All methods raise StoreError if the location fails.

    Attributes:
        name: the name for messages, without secrets.
        root: the folder; None if it is not local.
    """

    name: str
    root: Path | None = None

    @abstractmethod
    def files(self, folder: str = "") -> Iterator[FoundFile]:
        """Iterate over the files below a folder, in any order; none if there is no such folder."""

    @abstractmethod
    def folders(self) -> list[str]:
        """Return the names of the top-level folders."""

    @abstractmethod
    def read(self, path: str) -> Iterator[bytes]:
        """Iterate over the bytes of a file, in pieces.

        Raises:
            FileNotFoundError: there is no such file.
        """

    @abstractmethod
    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        """Create or replace a file. It appears under its name when it is complete and durable.

        Raises:
            StoreFull: there is no space.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file, if it exists."""

    def read_all(self, path: str) -> bytes:
        """Return all bytes of a small file; errors are as in :meth:`read`."""
        return b"".join(self.read(path))

    def free_bytes(self) -> int | None:
        """Return the free space; None if it is unlimited."""
        return None


def open_place(text: str) -> FileLocation:
    """Return the location that a folder's name or a bucket's URL names.

    Raises:
        InvalidURL: the text names neither.
        StoreError: a package is missing, or the settings in the environment are invalid.
    """
    for scheme in ("opendata://", "file://"):
        if text.startswith(f"{scheme}/"):
            return FolderLocation(Path(unquote(text.removeprefix(scheme))))
    if "://" not in text:
        return FolderLocation(Path(text).absolute())
    if text.startswith(("opendata", "memory:", "file:")):
        raise InvalidURL(f"{masked(text)!r} is neither a folder nor a bucket: use /folder or s3://bucket/prefix")
    return BucketLocation(text)


class FolderLocation(FileLocation):
    """Folder of the file system. New files and folders are private to their user."""

    def __init__(self, root: Path) -> None:
        self.root: Path = root
        self.name = str(root)

    def files(self, folder: str = "") -> Iterator[FoundFile]:
        with self._errors():
            for parent, _folders, names in os.walk(self.root / folder, onerror=_unless_missing):
                for name in names:
                    path = Path(parent, name)
                    with contextlib.suppress(FileNotFoundError):  # removed during the iteration
                        yield FoundFile(str(path.relative_to(self.root)), path.lstat().st_size)

    def folders(self) -> list[str]:
        with self._errors(), contextlib.suppress(FileNotFoundError):
            return sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir(follow_symlinks=False))
        return []

    def read(self, path: str) -> Iterator[bytes]:
        with self._errors(), open(os.open(self.root / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
            while piece := file.read(_CHUNK_BYTES):
                yield piece

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        final = self.root / path
        temporary = final.with_name(final.name + PART)
        with self._errors():
            self._make_folder(final.parent)
            flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            try:
                with open(os.open(temporary, flags, 0o600), "wb", buffering=0) as file:
                    for piece in pieces:
                        _write_whole(file.fileno(), piece)
                    os.fsync(file.fileno())
                temporary.rename(final)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            sync_folder(final.parent)

    def delete(self, path: str) -> None:
        with self._errors(), contextlib.suppress(FileNotFoundError):
            (self.root / path).unlink()

    def make(self) -> None:
        """Create the folder."""
        with self._errors():
            self._make_folder(self.root)

    def free_bytes(self) -> int | None:
        folder = self.root
        while not folder.exists():
            folder = folder.parent
        with self._errors():
            status = os.statvfs(folder)
        return status.f_bavail * status.f_frsize

    def _make_folder(self, folder: Path) -> None:
        """Create a folder, and its parents up to the root, durably."""
        if folder.is_dir():
            return
        if folder != self.root:
            self._make_folder(folder.parent)
        make_folder(str(folder))  # another thread may have created it
        sync_folder(folder.parent)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate the errors of the operating system."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as exc:
            where = str(exc.filename or self.root)
            if is_full(exc):
                text = f"the disk of {self.root} is full: {remedy(self.root)}, and run the same command again"
                raise StoreFull(text, path=where) from exc
            if isinstance(exc, PermissionError):
                raise StoreUnwritable(f"{where} can't be used by this user: {exc.strerror}", path=where) from exc
            raise StoreError(f"{where} can't be used: {exc.strerror or exc}", path=where) from exc


class BucketLocation(FileLocation):
    """Prefix of a bucket."""

    def __init__(self, url: str) -> None:
        self.name = masked(url)
        self._bucket = BucketFolder(url, {})

    def files(self, folder: str = "") -> Iterator[FoundFile]:
        for page in self._bucket.objects(folder):
            yield from (FoundFile(path, size) for path, size, _changed in page)

    def folders(self) -> list[str]:
        return self._bucket.folders()

    def read(self, path: str) -> Iterator[bytes]:
        return self._bucket.stream(path)

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        output = self._bucket.create(path)
        try:
            for piece in pieces:
                output.write(piece)
            output.commit()
        except BaseException:
            output.abort()
            raise

    def delete(self, path: str) -> None:
        self._bucket.delete([path])

    def read_version(self, path: str) -> tuple[bytes, dict[str, str]] | None:
        """Return a small object and its version; None if there is none."""
        return self._bucket.read_version(path)

    def put_if(self, path: str, data: bytes, version: dict[str, str] | None) -> dict[str, str] | None:
        """Write an object if its version is unchanged (None: if it does not exist); return its new version, or None."""
        return self._bucket.put_if(path, data, version)


def _unless_missing(exc: OSError) -> None:
    if not isinstance(exc, FileNotFoundError):
        raise exc


def _write_whole(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
