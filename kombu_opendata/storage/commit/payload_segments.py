"""Payload segments: files, or objects of a bucket, with large envelopes (docs/rfcs/0001-records.md).

An envelope of at least :attr:`Segments.large_bytes` is written once, to the open segment, and its payload record is a
URI with its place there; so is the value of a result, with a large value record. It passes through neither the journal
nor SlateDB, which would write it four times: to the journal, to the WAL, to a table, and again with each compaction.

Invariants:

* A record never refers to bytes that are not durable: a commit syncs the segment before it writes its journal record,
  and, without a journal, uploads the objects before it writes its batch. So a crash at any step leaves at most bytes
  that no record refers to.
* A segment has one writer, in one run of a broker, whose token is in the name. A restart begins a new segment: the last
  one may end with such bytes, and a broker that was replaced can't write to a segment of its successor.
* A thread writes a very large envelope alone to a segment, before its message is stored. Until then the segment is
  in :attr:`Segments.reserved`.
* An envelope is a frame of Zstandard if a sample of it shrinks to half of its size. The checksum is the envelope's.
* The bytes of an append that failed are cut off, so a backup never has other bytes under the size of the file.

:mod:`..state.segment_state` counts the messages of each segment. A segment without messages is deleted like a staged
batch, after a sync of the checkpoint that deleted the last one, while no reader of the store has a checkpoint.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from zlib import crc32

from ...errors import OpenDataError, StoreFull, StoreUnwritable
from ...file_system import remedy
from ...staging.compression import Compressor
from ...staging.folder import LocalFolder
from ...staging.folder_url import StagedFolder
from ..records.payload_places import EnvelopePlace, segment_path
from .file_calls import SYSTEM, FileCalls

#: size of the sample that shows if an envelope is compressed
_SAMPLE_BYTES = 16 << 10
_FLAGS = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class Segments(ABC):
    """The segments that a broker writes, one at a time.

    Args:
        token: 16 hexadecimal digits, unique among the runs of brokers.
        large_bytes: size of the smallest envelope that is written to a segment.

    Attributes:
        path: the open segment; empty if there is none.
        waiting_bytes: the size of what is only in memory.
        needs_sync: appended envelopes may not be durable, so the next commit calls :meth:`sync`.
        own_bytes: size of the smallest envelope for :meth:`LocalSegments.write_own`.
        reserved: the segments of these envelopes whose messages may not be stored yet.
    """

    path = ""
    waiting_bytes = 0
    needs_sync = False
    own_bytes = sys.maxsize

    def __init__(self, token: str, large_bytes: int) -> None:
        self.large_bytes = large_bytes
        self._paths = (segment_path(token, number) for number in itertools.count())
        self._offset = 0
        self._compressor = Compressor()
        self.reserved: set[str] = set()

    def append(self, envelope: bytes) -> EnvelopePlace:
        """Add an envelope to the open segment; return its place.

        Raises:
            StoreFull, StoreError: the envelope can't be written, and nothing was changed.
        """
        frame = _compressed(envelope, self._compressor)
        self._write(frame or envelope)
        place = EnvelopePlace(self.path, self._offset, len(envelope), crc32(envelope), len(frame))
        self._offset += place.stored_bytes
        return place

    @abstractmethod
    def _write(self, data: bytes) -> None:
        """Write at the offset of the open segment, or at the beginning of a new one."""

    def has(self, path: str) -> bool:
        """Return True if the envelopes of a segment can be read."""
        return True

    def sync(self) -> None:  # noqa: B027 - an object is durable when it exists
        """Make all appended envelopes durable, before the journal has their places.

        Raises:
            StoreUnwritable: the disk failed. The content of the segment is unknown, so abandon the journal.
        """

    def begin_flush(self) -> Callable[[], None] | None:
        """Return a blocking call that makes all appended envelopes durable, before a batch with their places.

        Return None if all of them are durable.
        """
        return None

    def end_segment(self) -> None:
        """Begin another segment with the next envelope."""
        self.path, self._offset = "", 0

    def close(self) -> None:  # noqa: B027 - objects need none
        """Close the open file."""


class LocalSegments(Segments):
    """Files in the folder of staged batches.

    Args:
        segment_bytes: size of a file after which the next envelope begins another one.
        sync: False leaves out every fsync.
        calls: the calls of the operating system.
    """

    def __init__(
        self,
        folder: LocalFolder,
        token: str,
        large_bytes: int,
        segment_bytes: int,
        own_bytes: int = sys.maxsize,
        *,
        sync: bool = True,
        calls: FileCalls = SYSTEM,
    ) -> None:
        super().__init__(token, large_bytes)
        self._folder, self._sync, self._segment_bytes, self._calls = folder, sync, segment_bytes, calls
        self._fd = -1
        self._failure: StoreUnwritable | None = None
        self.own_bytes = own_bytes
        self._own_compressor = Compressor()

    def _write(self, data: bytes) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            with self._errors():
                if not self.path or self._offset >= self._segment_bytes:
                    self.end_segment()
                    path = next(self._paths)
                    self._fd = self._create(path)
                    self.path = path
                self._write_at(self._fd, data, self._offset)
        except OpenDataError:
            if self.path:  # free the disk, and let no later envelope replace bytes that a backup has under this size
                with contextlib.suppress(OSError):
                    self._calls.truncate(self._fd, self._offset)
            raise
        self.needs_sync = True

    def reserve(self) -> str:
        """Return the path of a new segment for one envelope, which is kept while it is in :attr:`reserved`."""
        path = next(self._paths)
        self.reserved.add(path)
        return path

    def write_own(self, path: str, envelope: bytes) -> EnvelopePlace:
        """Write an envelope durably to its own reserved segment; return its place. Blocks; one thread may do it.

        Raises:
            StoreFull, StoreError: the envelope can't be written.
        """
        frame = _compressed(envelope, self._own_compressor)
        with self._errors():
            fd = self._create(path)
            try:
                self._write_at(fd, frame or envelope, 0)
                if self._sync:
                    self._calls.sync_data(fd)
            finally:
                self._calls.close(fd)
        return EnvelopePlace(path, 0, len(envelope), crc32(envelope), len(frame))

    def remove(self, path: str) -> None:
        """Remove a segment of :meth:`write_own` that no message needs, as far as possible. Blocks."""
        with contextlib.suppress(OSError):  # the removal of orphans tries it again
            self._calls.unlink(self._folder.root / path)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with self._folder.errors():
                yield
        except StoreFull as exc:
            store = self._folder.root.parent  # the folder itself may be missing
            text = f"the broker's disk is full: nothing was stored; {remedy(store)} and publish again"
            raise StoreFull(text, path=str(store)) from exc

    def _create(self, path: str) -> int:
        file = self._folder.root / path
        fd = self._folder.make_file(file, lambda: self._calls.open(file, _FLAGS))
        if self._sync:
            self._calls.sync_folder(file.parent)
        return fd

    def _write_at(self, fd: int, data: bytes, at: int) -> None:
        rest = memoryview(data)
        while rest:
            count = self._calls.write(fd, rest, at)
            rest, at = rest[count:], at + count

    def sync(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self.needs_sync and self._sync:
            try:
                self._calls.sync_data(self._fd)
            except OSError as exc:  # never StoreFull: a retry would succeed without having written anything
                text = f"the payload segment {self._folder.root / self.path} can't be written: {exc.strerror}"
                self._failure = StoreUnwritable(text, path=str(self._folder.root))
                raise self._failure from exc
        self.needs_sync = False

    def end_segment(self) -> None:
        self.sync()
        self.close()
        super().end_segment()

    def close(self) -> None:
        if self._fd >= 0:
            self._calls.close(self._fd)
            self._fd = -1


class BucketSegments(Segments):
    """Objects beside the database, one for the large messages of a commit."""

    def __init__(self, folder: StagedFolder, token: str, large_bytes: int) -> None:
        super().__init__(token, large_bytes)
        self._folder = folder
        self._parts: list[bytes] = []
        self._unwritten: set[str] = set()

    def _write(self, data: bytes) -> None:
        self.path = self.path or next(self._paths)
        self._unwritten.add(self.path)
        self._parts.append(data)
        self.waiting_bytes += len(data)

    def has(self, path: str) -> bool:
        return path not in self._unwritten

    def begin_flush(self) -> Callable[[], None] | None:
        if not self._parts:
            return None
        upload = partial(self._upload, self.path, self._parts)
        self._parts, self.waiting_bytes = [], 0
        self.end_segment()
        return upload

    def _upload(self, path: str, parts: list[bytes]) -> None:
        self._folder.open().write(path, parts)
        self._unwritten.discard(path)


def _compressed(envelope: bytes, compressor: Compressor) -> bytes:
    """Return a frame if a sample from the middle of the envelope shrinks to half of its size; else nothing."""
    middle = len(envelope) // 2
    sample = envelope[middle : middle + _SAMPLE_BYTES]
    return compressor.frame(envelope) if 2 * len(compressor.frame(sample)) < len(sample) else b""
