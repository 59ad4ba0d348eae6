"""Makes a backup: copies the files of a store that the target does not have, and describes them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from ...errors import CorruptRecord, InvalidURL, NewerFormat, StoreChanged, StoreError, StoreFull
from ...storage.records import active, keys
from ...storage.records.keys import RecordKind
from ...version import __version__
from ..findings import OnProgress, Progress
from ..records.offline_store import OfflineStore
from ..records.open_store import open_store
from .catalogue import Backup, Catalogue, SavedFile, SavedInstance, file_path
from .file_locations import FileLocation, FoundFile, open_place
from .snapshot import take
from .target_lock import locked

_THREADS = 4
#: larger files are read twice: to know their checksums, and to copy them
_IN_MEMORY_BYTES = 32 << 20
#: free space that a backup leaves
_MARGIN_BYTES = 16 << 20


@dataclass(slots=True)
class Saved:
    """A backup that was made.

    Attributes:
        copied_files, copied_bytes: what the target did not have.
        removed: ids of the backups that were removed afterwards.
        freed_bytes: what their files took.
    """

    backup: Backup
    copied_files: int
    copied_bytes: int
    removed: list[str]
    freed_bytes: int


async def backup(
    store: str,
    target: str,
    instance: str | None = None,
    *,
    now: datetime,
    keep: int | None = None,
    progress: OnProgress = lambda _: None,
) -> Saved:
    """Copy a store, whether or not its broker runs. All that was confirmed before the call is in the copy.

    Args:
        store: a folder, or a bucket's URL.
        target: a folder or a bucket's URL with the backups of this store.
        instance: only this one; None for all.
        keep: remove all but so many backups afterwards.

    Raises:
        StoreError: there is no such store; a file can't be read or written.
        StoreFull: the target has no space; the same command goes on later.
        StoreChanged: the broker wrote too fast; try again.
        CorruptRecord: the store is damaged, so nothing was written that would be taken for a backup.
        RetryLater: another backup writes to the target.
        InvalidURL: the target is in the store, or the store in the target.
    """
    source = open_place(store)
    place = open_place(target)
    _check_apart(source, place)
    with locked(place) as check:
        catalogue = Catalogue(place)
        writer = _FileCopier(catalogue, source, progress)
        names = [instance] if instance is not None else _instances(source)
        id, began = catalogue.new_id(now)
        saved = {name: await _save(store, name, source, writer) for name in names}
        made = Backup(id, began, __version__, source.name, saved)
        check()
        catalogue.add(made)
        removed, freed = catalogue.prune(keep) if keep is not None else ([], 0)
    return Saved(made, writer.copied_files, writer.copied_bytes, removed, freed)


def _instances(source: FileLocation) -> list[str]:
    found = [name for name in source.folders() if any(True for _ in source.files(f"{name}/manifest"))]
    if not found:
        raise StoreError(f"there is no store at {source.name}", path=source.name)
    return found


def _check_apart(source: FileLocation, target: FileLocation) -> None:
    """Raises InvalidURL if one of the places is in the other."""
    if source.root is not None and target.root is not None:
        a, b = source.root.resolve(), target.root.resolve()
        together = a.is_relative_to(b) or b.is_relative_to(a)
    else:
        a_name, b_name = (f"{place.name.rstrip('/')}/" for place in (source, target))
        together = a_name.startswith(b_name) or b_name.startswith(a_name)
    if together:
        raise InvalidURL(f"the store {source.name} and the backups {target.name} must not be in one another")


async def _save(location: str, instance: str, source: FileLocation, writer: _FileCopier) -> SavedInstance:
    async with await open_store(location, instance, who="backup") as store:
        if store.unheld is not None:
            raise StoreError(
                f"{store.location} can't be copied while its broker runs: {store.unheld}; run this as that user"
            )
        queues = await _count(store)
        found = await take(store, source, writer.keep)
        files = [*found.journal, *await asyncio.to_thread(writer.copy, found.stable, found.others)]
        assert store.header is not None
        return SavedInstance(
            store.header.format_version, found.manifest, found.last_wal, found.last_commit, queues, files
        )


async def _count(store: OfflineStore) -> dict[str, int]:
    """Messages that wait or are in flight, by queue."""
    counts: Counter[str] = Counter()
    start, end = keys.kind_range(RecordKind.ACTIVE)
    async for pairs in store.scan_batches(start, end, batch=200):
        for key, value in pairs:
            counts[keys.parse(key).name or ""] += sum(map(len, active.decode(key, value)))
    return dict(counts)


def _newest_files(catalogue: Catalogue) -> list[SavedFile]:
    """The files of the newest backup; none if there is no backup that can be read."""
    with contextlib.suppress(CorruptRecord, NewerFormat):
        if catalogue.ids():
            return [file for one in catalogue.read().instances.values() for file in one.files]
    return []


class _FileCopier:
    """Copies files to a target that it does not have."""

    def __init__(self, catalogue: Catalogue, source: FileLocation, progress: OnProgress) -> None:
        self._target, self._source, self._progress = catalogue.target, source, progress
        self._stored = catalogue.stored()
        self._known = {(file.path, file.bytes): file for file in _newest_files(catalogue)}
        self._total = self._done = 0
        self._counting = threading.Lock()
        self.copied_files = self.copied_bytes = 0

    def keep(self, path: str, data: bytes) -> SavedFile:
        """Put these bytes into the target."""
        file = SavedFile(path, len(data), hashlib.sha256(data).hexdigest())
        if self._stored.get(file.sha256) != file.bytes:
            self._put(file, [data])
        return file

    def copy(self, stable: list[FoundFile], others: list[FoundFile]) -> list[SavedFile]:
        """Copy these files. Stable ones that a backup has are not read."""
        saved, wanted = [], list(others)
        for found in stable:
            known = self._known.get((found.path, found.bytes))
            if known is not None and self._stored.get(known.sha256) == known.bytes:
                saved.append(known)
            else:
                wanted.append(found)
        self._check_space(wanted)
        self._total += len(wanted)
        with ThreadPoolExecutor(_THREADS, "backup") as pool:
            for file in pool.map(self._copy, wanted):
                if file is not None:
                    saved.append(file)
                self._done += 1
                self._progress(Progress("files", self._done, self._total))
        return sorted(saved, key=lambda file: file.path)

    def _check_space(self, wanted: list[FoundFile]) -> None:
        free = self._target.free_bytes()
        need = sum(found.bytes for found in wanted) + _MARGIN_BYTES
        if free is not None and free < need:
            text = f"{self._target.name} has {free:,} bytes of space, and the backup may need {need:,}: free space"
            raise StoreFull(text, path=self._target.name)

    def _copy(self, found: FoundFile) -> SavedFile | None:
        """Copy one file; None for a batch that is gone, because no message of this backup needs it."""
        try:
            if found.bytes <= _IN_MEMORY_BYTES:
                data = self._source.read_all(found.path)
                self._check_size(found, len(data))
                return self.keep(found.path, data)
            digest, size = hashlib.sha256(), 0
            for piece in self._source.read(found.path):
                digest.update(piece)
                size += len(piece)
            self._check_size(found, size)
            file = SavedFile(found.path, size, digest.hexdigest())
            if self._stored.get(file.sha256) != size:
                self._put(file, self._source.read(found.path))
            return file
        except FileNotFoundError as exc:
            if found.path.endswith(".batch"):
                return None
            raise StoreChanged(f"{found.path} was deleted while the store was copied; try again") from exc

    def _check_size(self, found: FoundFile, size: int) -> None:
        if size != found.bytes:
            raise StoreChanged(f"{found.path} has {size} bytes, and had {found.bytes} a moment ago; try again")

    def _put(self, file: SavedFile, pieces: Iterable[bytes]) -> None:
        self._target.write(file_path(file.sha256), pieces)
        with self._counting:
            self._stored[file.sha256] = file.bytes
            self.copied_files += 1
            self.copied_bytes += file.bytes
