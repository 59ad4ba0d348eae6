"""Command ``store repair``: cuts the journal of a stopped store at the first damaged or missing record.

A broker refuses such a journal. A damaged header of a file is restored from the file's name and its records, without
loss. Otherwise all records from the damaged one on are deleted, because later commits depend on earlier ones. The
original files stay next to the journal, with the suffix ``.damaged``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

from ..errors import CorruptRecord, StoreError, StoreInUse
from ..file_system import sync_folder
from ..storage.commit import journal_format
from ..storage.commit.journal_format import HEADER_BYTES
from ..storage.effects import codec
from ..storage.effects.codec import Commit
from ..storage.effects.deliveries import AckEffect, ArchiveEffect, DeleteEffect, FailEffect, RemoveEffect
from ..storage.effects.publishes import PublishEffect, TimeEffect
from ..url import LOCK_NAME
from .files.journal_files import JournalPlace, JournalTail
from .files.store_location import StoreLocation, find_store, power_lost, running_broker
from .records.open_store import open_store

_SUFFIX = ".damaged"
_SETTLEMENTS = (AckEffect, FailEffect, RemoveEffect, DeleteEffect, ArchiveEffect)


@dataclass(slots=True)
class Repair:
    """Damage of a journal, and the loss if the damaged records are deleted.

    Attributes:
        headers: the files with a damaged header; no data is lost.
        first: the first lost record; None if no record is lost.
        records: the number of complete records that are also deleted.
        unread: the number of records that can't be read, not even in part.
        uncertain: the number of damaged records that were read in part; the report about them may be wrong.
        published: the lost messages, by queue.
        settled: the messages that return to their queue, because their settlement is lost.
        other: the number of other changes that are lost: deliveries, definitions, results, …
        kept: the copies of the original files; empty if nothing was changed.
    """

    headers: list[Path] = field(default_factory=list)
    first: JournalPlace | None = None
    records: int = 0
    unread: int = 0
    uncertain: int = 0
    published: dict[str, list[int]] = field(default_factory=dict)
    settled: dict[str, list[int]] = field(default_factory=dict)
    other: int = 0
    kept: list[Path] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """True if the journal is not damaged."""
        return not self.headers and self.first is None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {
            "headers": [str(path) for path in self.headers],
            "first": None if self.first is None else self.first._asdict() | {"path": str(self.first.path)},
            "kept": [str(path) for path in self.kept],
        }

    def add(self, commit: Commit) -> None:
        """Add the changes of a commit that is deleted."""
        for effect in commit:
            if isinstance(effect, PublishEffect):
                for queue, _bucket in effect.places:
                    self.published.setdefault(queue, []).append(effect.id)
            elif isinstance(effect, _SETTLEMENTS):
                self.settled.setdefault(effect.queue, []).extend(effect.pairs[::2])
            elif not isinstance(effect, TimeEffect):
                self.other += 1


async def repair(folder_or_url: str | Path, instance: str | None = None, *, delete_damaged: bool = False) -> Repair:
    """Report the damage in the journal of a store.

    ``delete_damaged``: also delete the damaged records, so that a broker can open the store.

    Raises:
        StoreError: there is no such store, it is not in a folder, or its journal can't be read.
        StoreInUse: a broker runs on the store.
        CorruptRecord: other files than those of the journal are damaged.
    """
    location = find_store(folder_or_url, instance)
    if location.root is None or location.journal is None:
        raise StoreError(f"{location} has no journal, which only stores in folders have", url=location.url)
    _check_stopped(location.root)
    async with await open_store(folder_or_url, instance, tolerate_damage=True, who="repair") as store:
        if store.journal is None:
            raise CorruptRecord(
                f"the position of the journal of {location} can't be read: verify the store, and restore a backup",
                key=b"",
                offset=0,
            )
        position = store.journal.position
    with _locked(location.root) if delete_damaged else contextlib.nullcontext():
        return _JournalRepair(location, location.journal, position, delete=delete_damaged).run()


def _check_stopped(root: Path) -> None:
    pid = running_broker(root)
    if pid is not None:
        raise StoreInUse(f"a broker runs on {root} (pid {pid}): stop it, then repair the store", path=str(root))


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold the lock of a store's folder, so that no broker starts."""
    descriptor = os.open(root / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise StoreInUse(f"a broker runs on {root}: stop it, then repair the store", path=str(root)) from exc
        yield
    finally:
        os.close(descriptor)


class _JournalRepair:
    """The repair of a journal; without ``delete``, only the report. The store has the records up to ``position``."""

    def __init__(self, location: StoreLocation, folder: Path, position: int, *, delete: bool) -> None:
        self._location = location
        self._folder = folder
        self._position = position
        self._delete = delete
        self._report = Repair()

    def run(self) -> Repair:
        self._repair_headers()
        place = JournalTail(self._folder, self._position, power_lost=power_lost(self._location)).lost_from
        if place is not None and (self._delete or not self._report.headers):
            self._report.first = place._replace(sequence=max(place.sequence, self._position + 1))
            self._delete_records(self._report.first)
        if self._delete:
            sync_folder(self._folder)
        return self._report

    def _repair_headers(self) -> None:
        """Restore damaged headers. A file without a header is renamed if the store has all of its records."""
        position = self._position
        for path in sorted(self._folder.glob("*.journal")):
            data = path.read_bytes()
            header = journal_format.parse_header(data)
            record = journal_format.record_at(data, HEADER_BYTES)
            is_sound = header is not None and header.is_sound(path)
            if record is not None and path.stem.isdigit():
                if is_sound and (header is None or header.first == record.sequence or record.sequence <= position):
                    continue
                self._report.headers.append(path)
                self._overwrite(path, 0, journal_format.encode_header(int(path.stem), record.sequence))
            elif not is_sound and not any(journal_format.complete_records(data, position + 1, position)):
                self._report.headers.append(path)
                self._set_aside(path)

    def _delete_records(self, place: JournalPlace) -> None:
        """Delete all records from the first lost one on: the rest of its file, and the files after it."""
        expected = place.sequence
        for path in sorted(self._folder.glob("*.journal")):
            if path < place.path:
                continue
            start = place.offset if path == place.path else 0
            data = path.read_bytes()
            expected = self._add_losses(data, max(start, HEADER_BYTES), expected)
            if start:
                self._overwrite(path, start, bytes(len(data) - start))
            else:
                self._set_aside(path)

    def _add_losses(self, data: bytes, offset: int, expected: int) -> int:
        """Add a file's records from ``offset``, where record ``expected`` begins; return the number after the last."""
        report = self._report
        for record in journal_format.complete_records(data, expected, expected - 1, offset=offset):
            if record.start > offset:
                report.unread += max(record.sequence - expected, 1)
                self._add_damaged(data[offset : record.start])
            report.records += 1
            try:
                report.add(codec.decode(record.payload))
            except CorruptRecord:
                report.records, report.unread = report.records - 1, report.unread + 1
            offset, expected = record.end, record.sequence + 1
        if journal_format.begun_record(data, offset, expected):
            report.unread, expected = report.unread + 1, expected + 1
            self._add_damaged(data[offset:])
        return expected

    def _add_damaged(self, data: bytes) -> None:
        """Add the readable part of a damaged record, if it is a single one."""
        if len(data) < journal_format.RECORD_BYTES:
            return
        length = journal_format.RECORD.unpack_from(data)[0]
        payload = data[journal_format.RECORD_BYTES :][:length]
        with contextlib.suppress(CorruptRecord):
            self._report.add(codec.decode(payload))
            self._report.unread -= 1
            self._report.uncertain += 1

    def _set_aside(self, path: Path) -> None:
        if self._delete:
            self._report.kept.append(path.rename(_kept_path(path)))

    def _overwrite(self, path: Path, offset: int, data: bytes) -> None:
        """Change a part of a file of which a copy is kept."""
        if self._delete:
            self._report.kept.append(_copy(path))
            with path.open("r+b") as file:
                file.seek(offset)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())


# ---- files
def _copy(path: Path) -> Path:
    """Copy a file, durably; the copy belongs to the same user."""
    copy = _kept_path(path)
    shutil.copyfile(path, copy)
    shutil.copymode(path, copy)
    status = path.stat()
    if os.geteuid() == 0:
        os.chown(copy, status.st_uid, status.st_gid)
    with copy.open("rb") as file:
        os.fsync(file.fileno())
    sync_folder(copy.parent)
    return copy


def _kept_path(path: Path) -> Path:
    """Return an unused path for the original of a file, so that the files of an earlier repair remain."""
    numbers = chain([""], (f".{number}" for number in count(2)))
    candidates = (path.with_name(f"{path.name}{_SUFFIX}{number}") for number in numbers)
    return next(candidate for candidate in candidates if not candidate.exists())
