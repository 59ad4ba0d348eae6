"""A folder of staged batches, wherever it is: where batches are written, read, listed and removed.

Its methods block, so asyncio code calls them in threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..errors import CorruptRecord


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


def missing(path: str) -> CorruptRecord:
    """The error for a batch that is not there."""
    return CorruptRecord(f"batch {path} is missing: restore the object", key=path.encode(), offset=0)
