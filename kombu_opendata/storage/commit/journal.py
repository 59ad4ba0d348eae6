"""The commit journal: holds every commit from its reply until SlateDB contains it (docs/rfcs/0003-journal.md).

On a local folder a commit is one append to a preallocated file, synced (``RWF_DSYNC`` or ``fdatasync``), at about a
tenth of the cost of a SlateDB flush with fsync. The engine moves the journal's content into SlateDB in the background
and releases it. :mod:`.journal_format` defines the files and the records in them.

Corruption and a torn write look alike, and require opposite reactions. A crash of the process can tear only the last
record, which was not confirmed, so recovery leaves it out. If complete records follow a damaged record, the damaged one
was complete before, and its commit may have been confirmed: recovery refuses the journal. Only a power loss can tear
more: the records since the last sync, in any order. So each commit states the number of unsynced records before it
(:class:`..effects.publishes.SyncedTimeEffect`), from which recovery determines if a damaged record was on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

from ...errors import CorruptRecord, OpenDataError, StoreFull, StoreUnwritable
from ...file_system import is_full, remedy
from .file_calls import SYSTEM, FileCalls
from .journal_format import (
    HEADER_BYTES,
    RECORD,
    RECORD_BYTES,
    SEQUENCE,
    JournalRecord,
    Segment,
    begun_record,
    complete_records,
)

log = logging.getLogger(__name__)

SEGMENT_BYTES = 16 << 20
#: the flag for a write that is durable when it returns; Linux has it, but some file systems do not support it
DSYNC: int = getattr(os, "RWF_DSYNC", 0)
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
#: returns, from a record's payload, the number of unsynced records before it when it was written; None if unknown
Unsynced = Callable[[bytes], int | None]


class Journal:
    """An append-only log in its own folder.

    Args:
        folder: created if it does not exist.
        segment_bytes: size of a segment; a larger record gets a segment of the size that it needs.
        max_bytes: the largest size of the segments that wait for the store; a larger journal refuses appends.
        sync: False leaves out every fsync: a power loss may then lose confirmed messages.
        dsync: the flag for a write that is durable when it returns; 0 if there is none.
        calls: the calls of the operating system.

    Raises:
        StoreUnwritable: the folder can't be created or written.
    """

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        max_bytes: int = 1 << 30,
        sync: bool = True,
        dsync: int = DSYNC,
        calls: FileCalls = SYSTEM,
    ) -> None:
        self.folder = folder
        self.segment_bytes = segment_bytes
        self.max_bytes = max_bytes
        self._calls = calls
        self._sync = sync
        self._dsync = dsync
        self._has_dsync = dsync != 0
        self._segments: list[Segment] = []
        self._spare: Segment | None = None
        self._offset = 0
        self._dirty = False
        self._spare_numbers = itertools.count()  # two threads may allocate at the same time
        self.sequence = 0
        self._synced = 0
        try:
            calls.create_folder(folder)
        except OSError as exc:
            text = f"the journal folder {folder} can't be used: {exc.strerror}"
            raise StoreUnwritable(text, path=str(folder)) from exc

    # ------------------------------------------------------------------ recovery
    def replay(self, after: int, unsynced: Unsynced | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield (sequence, payload) of every record after ``after``, oldest first. Call it once, before :meth:`append`.

        Args:
            after: the store's position: records up to it may be damaged or missing.
            unsynced: given if a power loss may have torn the records since the last sync.

        Raises:
            CorruptRecord: a record after ``after`` is damaged or missing, and was complete before.
            NewerFormat: a segment was written by a newer version.
        """
        self.sequence = after
        for path in self._calls.files(self.folder, ".journal"):
            with self._translated():
                segment = Segment.open(path, self._calls)
            if segment is not None:
                self._segments.append(segment)
        for path in self._calls.files(self.folder, ".spare"):
            self._calls.unlink(path)
        following = [*(segment.first for segment in self._segments[1:]), None]
        for segment, until in zip(list(self._segments), following, strict=False):
            data = self._calls.read(segment.fd, segment.size, 0)
            end = HEADER_BYTES
            records = list(complete_records(data, segment.first, after, until))
            for index, record in enumerate(records):
                if record.sequence > self.sequence + 1:
                    if until is not None or self._was_synced(records[index:], unsynced):
                        raise self._damage(segment, end, f"record {record.sequence} follows at byte {record.start}")
                    records = records[:index]
                    break
                if record.sequence == self.sequence + 1:
                    self.sequence = record.sequence
                    yield record.sequence, record.payload
                end = record.end
            if until is not None and until > self.sequence + 1:
                raise self._damage(segment, end, f"the next file begins with record {until}")
            if until is None:
                self._check_end(segment, data, end)

    def _was_synced(self, later: list[JournalRecord], unsynced: Unsynced | None) -> bool:
        """Return True if the damaged record before these was synced, so that no power loss has torn it."""
        if unsynced is None:
            return True
        counts = ((record.sequence, unsynced(record.payload)) for record in later)
        return any(count is not None and sequence - 1 - count > self.sequence for sequence, count in counts)

    def _check_end(self, segment: Segment, data: bytes, end: int) -> None:
        """Refuse a last record that is certainly damaged, and log one that may be torn."""
        state = begun_record(data, end, self.sequence + 1)
        if state == "damaged":
            raise self._damage(segment, end, "its sequence number was changed")
        if state:
            log.warning(
                "record %d at byte %d of %s, the last one of the journal, is incomplete and left out: a crash during "
                "its write explains that, as does damage; it was not confirmed, unless the file was damaged later",
                self.sequence + 1,
                end,
                segment.path,
            )

    def _damage(self, segment: Segment, offset: int, proof: str) -> CorruptRecord:
        path = segment.path
        return CorruptRecord(
            f"the journal is damaged: record {self.sequence + 1} at byte {offset} of {path} is not there, but {proof}; "
            f"restore the file or a backup, or run: opendata-queue store repair --delete-damaged {self.folder.parent}",
            key=path.name.encode(),
            offset=offset,
        )

    # ------------------------------------------------------------------ writing
    @property
    def room(self) -> int:
        """The size in bytes of the largest record that can certainly be appended."""
        if not self._segments:
            return 0
        remainder = self._segments[-1].size - self._offset - RECORD_BYTES
        spare_room = self._spare.size - HEADER_BYTES - RECORD_BYTES if self._spare is not None else 0
        return max(remainder, spare_room, 0)

    @property
    def unsynced(self) -> int:
        """The number of records since the last sync, which a power loss may tear."""
        return self.sequence - self._synced

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the segments that the store does not contain yet, the current one included."""
        return sum(segment.size for segment in self._segments)

    def start(self) -> None:
        """Begin a new segment after :meth:`replay`.

        The replayed records are synced first, because a killed broker may not have synced them.

        Raises:
            StoreFull: no space.
            StoreUnwritable: the disk failed.
        """
        self._dirty = bool(self._segments)
        self.sync()
        self._continue_in(self._spare_of(self.segment_bytes) or self._allocate(self.segment_bytes))
        self.prepare_spare()

    def append(self, payload: bytes, *, sync: bool = False) -> int:
        """Append one record; it survives the end of this process, but a power loss only after :meth:`sync`.

        Args:
            sync: also call :meth:`sync`; one system call does both if the system supports it.

        Returns:
            Its sequence number.

        Raises:
            StoreFull: no room; nothing was written.
            StoreUnwritable: the disk failed. Its content is unknown, so abandon the journal.
        """
        need = RECORD_BYTES + len(payload)
        if self._offset + need > self._segments[-1].size:
            self._roll(need)
        sequence = self.sequence + 1
        crc = crc32(payload, crc32(SEQUENCE.pack(sequence)))  # checksum(), without a call for each commit
        header = RECORD.pack(len(payload), crc, sequence)
        synced = sync and not self._dirty and self._sync and self._append_synced((header, payload), need)
        if not synced:
            try:
                count = self._calls.write_parts(self._segments[-1].fd, (header, payload), self._offset)
                if count != need:
                    raise OSError(errno.ENOSPC, "a short write")
            except OSError as exc:
                raise self._error(exc) from exc
            self._dirty = True
        self._offset += need
        self.sequence = sequence
        if synced:
            self._synced = sequence
        elif sync:
            self.sync()
        return sequence

    def _append_synced(self, parts: tuple[bytes, bytes], need: int) -> bool:
        """Write and sync with one call, 20 to 30 µs faster than two; return True if the system supports it."""
        if not self._has_dsync:
            return False
        try:
            return self._calls.write_parts(self._segments[-1].fd, parts, self._offset, self._dsync) == need
        except OSError as exc:
            if exc.errno not in _UNSUPPORTED:
                raise self._error(exc) from exc
            self._has_dsync = False
            return False

    def sync(self) -> None:
        """Make every appended record survive a power loss.

        Raises:
            StoreUnwritable: the disk failed. Its content is unknown, so abandon the journal.
        """
        if self._dirty and self._sync:
            try:
                self._calls.sync_data(self._segments[-1].fd)
            except OSError as exc:  # never StoreFull: a retry would succeed without having written anything
                raise self._unwritable(exc) from exc
            self._synced = self.sequence
        self._dirty = False

    def release(self, upto: int) -> None:
        """Delete the segments that only have records up to ``upto``: the store contains these.

        Segments are not reused: an old message may contain the bytes of a record, and recovery would find these behind
        the last new record.
        """
        while len(self._segments) > 1 and self._segments[1].first <= upto + 1:
            old = self._segments.pop(0)
            old.discard()

    @property
    def has_spare(self) -> bool:
        """True if the next segment is allocated."""
        return self._spare is not None

    def prepare_spare(self, size: int = 0) -> bool:
        """Allocate the next segment in advance, of at least ``size`` bytes. May take tens of milliseconds.

        Returns:
            False if there is no space for it.
        """
        size = max(size, self.segment_bytes)
        if (spare := self._spare) is not None:  # read once: the main thread may use it in parallel
            if spare.size >= size:
                return True
            self._spare = None
            spare.discard()
        if self.waiting_bytes + size > self.max_bytes:
            return False
        try:
            segment = self._allocate(size)
        except StoreFull:
            return False
        if (spare := self._spare) is not None and spare.size >= size:
            segment.discard()  # another thread allocated or released one in parallel
            return True
        self._spare = segment
        if spare is not None:
            spare.discard()
        return True

    def make_room(self, need: int) -> bool:
        """Allocate a segment to get ``need`` bytes of :attr:`room`; return True if this succeeded."""
        return self.prepare_spare(need + HEADER_BYTES + RECORD_BYTES) and self.room >= need

    def close(self) -> None:
        """Close the files; the records remain."""
        self.sync()
        for segment in [*self._segments, *([self._spare] if self._spare else [])]:
            self._calls.close(segment.fd)
        self._segments, self._spare = [], None

    def _roll(self, need: int) -> None:
        """Continue in a new segment with room for a record of ``need`` bytes."""
        self.sync()
        size = max(self.segment_bytes, need + HEADER_BYTES)
        segment = self._spare_of(size)
        if segment is None:
            if self.waiting_bytes + size > self.max_bytes + self.segment_bytes:
                text = f"the store takes no writes and its journal is full: {remedy(self.folder)}"
                raise StoreFull(text, path=str(self.folder))
            segment = self._allocate(size)
        self._continue_in(segment)

    def _spare_of(self, size: int) -> Segment | None:
        """Take the spare segment if it is large enough."""
        if self._spare is None or self._spare.size < size:
            return None
        segment, self._spare = self._spare, None
        return segment

    def _continue_in(self, segment: Segment) -> None:
        number = self._segments[-1].number + 1 if self._segments else 1
        try:
            with self._translated():
                segment.begin(self.folder, number, self.sequence + 1, sync=self._sync)
        except OpenDataError:
            segment.discard()
            raise
        self._segments.append(segment)
        self._offset = HEADER_BYTES

    def _allocate(self, size: int) -> Segment:
        path = self.folder / f"{os.getpid()}-{next(self._spare_numbers)}.spare"
        with self._translated():
            return Segment.allocate(path, size, sync=self._sync, calls=self._calls)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise self._error(exc) from exc

    def _error(self, exc: OSError) -> OpenDataError:
        if not is_full(exc):
            return self._unwritable(exc)
        return StoreFull(
            f"no space left for the journal in {self.folder}: {remedy(self.folder)}", path=str(self.folder)
        )

    def _unwritable(self, exc: OSError) -> StoreUnwritable:
        return StoreUnwritable(f"the journal in {self.folder} can't be written: {exc.strerror}", path=str(self.folder))
