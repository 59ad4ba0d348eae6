"""Creation of a backup: copies the files of a store that the target lacks, and describes them."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from ...errors import CorruptRecord, InvalidURL, NewerFormat, StoreChanged, StoreError, StoreFull
from ...staging.folder import Folder, FolderEntry
from ...storage.records import active, keys
from ...storage.records.keys import RecordKind
from ...storage.records.payload_places import SEGMENT_SUFFIX, is_segment
from ...version import __version__
from ..findings import OnProgress, Progress
from ..records.offline_store import OfflineStore
from ..records.open_store import open_store
from .backup_catalogue import Backup, Catalogue, SavedFile, SavedInstance, file_path
from .folders import locked, open_place
from .snapshot import save_instance

_THREADS = 4
#: larger files are read twice: for their checksums, and for the copy
_IN_MEMORY_BYTES = 32 << 20
#: free space that a backup leaves
_MARGIN_BYTES = 16 << 20


@dataclass(slots=True)
class Saved:
    """Created backup.

    Attributes:
        copied_files, copied_bytes: the number and size of files that the target lacked.
        removed: ids of the backups that were removed afterwards.
        freed_bytes: the size of their files.
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
    """Copy a store, with or without a running broker. The copy has all changes that were confirmed before the call.

    Args:
        store: a folder, or a bucket's URL.
        target: a folder or a bucket's URL with the backups of this store.
        instance: the only instance to copy; None for all.
        keep: the number of backups to retain; the others are removed afterwards.

    Raises:
        StoreError: there is no such store; a file can't be read or written.
        StoreFull: the target has no space; the same command continues later.
        StoreChanged: the broker wrote too fast; try again.
        CorruptRecord: the store is damaged, so no backup was created.
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
        id, created_at = catalogue.new_id(now)
        saved = {name: await _save(store, name, source, writer) for name in names}
        new_backup = Backup(id, created_at, __version__, source.name, saved)
        check()
        catalogue.add(new_backup)
        removed_ids, freed = catalogue.prune(keep) if keep is not None else ([], 0)
    return Saved(new_backup, writer.copied_files, writer.copied_bytes, removed_ids, freed)


def _instances(source: Folder) -> list[str]:
    names = [name for name in source.folders() if any(True for _ in source.files(f"{name}/manifest"))]
    if not names:
        raise StoreError(f"there is no store at {source.name}", path=source.name)
    return names


def _check_apart(source: Folder, target: Folder) -> None:
    """Raise InvalidURL if one of the locations is in the other."""
    if source.root is not None and target.root is not None:
        a, b = source.root.resolve(), target.root.resolve()
        together = a.is_relative_to(b) or b.is_relative_to(a)
    else:
        a_name, b_name = (f"{place.name.rstrip('/')}/" for place in (source, target))
        together = a_name.startswith(b_name) or b_name.startswith(a_name)
    if together:
        raise InvalidURL(f"the store {source.name} and the backups {target.name} must not be in one another")


async def _save(location: str, instance: str, source: Folder, writer: _FileCopier) -> SavedInstance:
    async with await open_store(location, instance, who="backup") as store:
        if store.unheld is not None:
            raise StoreError(
                f"{store.location} can't be copied while its broker runs: {store.unheld}; run this as that user"
            )
        return await save_instance(store, source, writer.keep, writer.copy, await _count(store))


async def _count(store: OfflineStore) -> dict[str, int]:
    """Return the number of ready, delayed and in-flight messages, by queue."""
    counts: Counter[str] = Counter()
    start, end = keys.kind_range(RecordKind.ACTIVE)
    async for pairs in store.scan_batches(start, end, batch=200):
        for key, value in pairs:
            counts[keys.parse(key).name or ""] += sum(map(len, active.decode(key, value)))
    return dict(counts)


def _newest_files(catalogue: Catalogue) -> list[SavedFile]:
    """Return the files of the newest backup; none if there is no backup that can be read."""
    with contextlib.suppress(CorruptRecord, NewerFormat):
        if catalogue.ids():
            return [file for saved in catalogue.read().instances.values() for file in saved.files]
    return []


class _FileCopier:
    def __init__(self, catalogue: Catalogue, source: Folder, progress: OnProgress) -> None:
        self._target = catalogue.target
        self._source = source
        self._progress = progress
        self._sizes = catalogue.stored()
        self._previous_files = {(file.path, file.bytes): file for file in _newest_files(catalogue)}
        self._total = self._count_copied = 0
        self._count_lock = threading.Lock()
        self.copied_files = self.copied_bytes = 0

    def keep(self, path: str, data: bytes) -> SavedFile:
        """Write these bytes to the target."""
        file = SavedFile(path, len(data), hashlib.sha256(data).hexdigest())
        if self._sizes.get(file.sha256) != file.bytes:
            self._put(file, [data])
        return file

    def copy(self, stable: list[FolderEntry], others: list[FolderEntry]) -> list[SavedFile]:
        """Copy these files. Stable files that a backup has are not read."""
        saved, missing = [], list(others)
        for file_entry in stable:
            previous = self._previous_files.get((file_entry.path, file_entry.bytes))
            if previous is not None and self._sizes.get(previous.sha256) == previous.bytes:
                saved.append(previous)
            else:
                missing.append(file_entry)
        self._check_space(missing)
        self._total += len(missing)
        with ThreadPoolExecutor(_THREADS, "backup") as pool:
            for file in pool.map(self._copy, missing):
                if file is not None:
                    saved.append(file)
                self._count_copied += 1
                self._progress(Progress("files", self._count_copied, self._total))
        return sorted(saved, key=lambda file: file.path)

    def _check_space(self, entries: list[FolderEntry]) -> None:
        free = self._target.free_bytes()
        need = sum(file.bytes for file in entries) + _MARGIN_BYTES
        if free is not None and free < need:
            text = f"{self._target.name} has {free:,} bytes of space, and the backup may need {need:,}: free space"
            raise StoreFull(text, path=self._target.name)

    def _copy(self, entry: FolderEntry) -> SavedFile | None:
        """Copy a file; return None for a batch that was deleted, because no message of this backup needs it."""
        try:
            if entry.bytes <= _IN_MEMORY_BYTES:
                data = b"".join(self._pieces(entry))
                self._check_size(entry, len(data))
                return self.keep(entry.path, data)
            digest, size = hashlib.sha256(), 0
            for piece in self._pieces(entry):
                digest.update(piece)
                size += len(piece)
            self._check_size(entry, size)
            file = SavedFile(entry.path, size, digest.hexdigest())
            if self._sizes.get(file.sha256) != size:
                self._put(file, self._pieces(entry))
            return file
        except FileNotFoundError as exc:
            if entry.path.endswith((".batch", ".bad", SEGMENT_SUFFIX)):
                return None
            raise StoreChanged(f"{entry.path} was deleted while the store was copied; try again") from exc

    def _pieces(self, entry: FolderEntry) -> Iterator[bytes]:
        """Yield the bytes of a file; of a segment, which grows, those that were there when it was listed."""
        rest = entry.bytes
        for piece in self._source.stream(entry.path):
            yield piece[:rest] if is_segment(entry.path) else piece
            rest -= min(len(piece), rest)

    def _check_size(self, entry: FolderEntry, size: int) -> None:
        if size != entry.bytes:
            raise StoreChanged(f"{entry.path} has {size} bytes, and had {entry.bytes} a moment ago; try again")

    def _put(self, file: SavedFile, pieces: Iterable[bytes]) -> None:
        self._target.write(file_path(file.sha256), pieces)
        with self._count_lock:
            self._sizes[file.sha256] = file.bytes
            self.copied_files += 1
            self.copied_bytes += file.bytes
