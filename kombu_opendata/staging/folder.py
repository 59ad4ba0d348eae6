"""Folder of staged batches, in a file system or a bucket, in which batches are written, read, listed and removed.

Its methods block, so asyncio code calls them in threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..errors import DamagedBatch


class FolderEntry(NamedTuple):
    """File in the folder."""

    path: str
    bytes: int
    changed_at_ms: int


class Output(ABC):
    """Batch that is being written."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Append bytes."""

    @abstractmethod
    def commit(self) -> None:
        """Make the complete batch durable, and visible under its name."""

    @abstractmethod
    def abort(self) -> None:
        """Remove the written bytes, as far as possible."""


class Folder(ABC):
    """Folder of one instance. Paths are relative to it. Errors of the store are raised as StoreError."""

    @abstractmethod
    def create(self, path: str) -> Output:
        """Begin a batch."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Return the size of a batch in bytes; raise DamagedBatch if the batch is missing."""

    @abstractmethod
    def read(self, path: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each (offset, length), fewer at the end of the batch.

        Raises:
            DamagedBatch: the batch is missing.
            StoreError: the batch can't be read now.
        """

    @abstractmethod
    def files(self, job: str = "") -> Iterator[list[FolderEntry]]:
        """Yield pages of files of batches, complete or not, in one job's folder or in all."""

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> int:
        """Remove files and folders that become empty; return the number of files that existed."""

    def close(self) -> None:
        """Close open files."""
        return


def missing(path: str) -> DamagedBatch:
    """Return the error for a batch that is missing."""
    text = f"batch {path} is missing: restore the object from a backup"
    return DamagedBatch(text, key=path.encode(), offset=0, batch=path)
