"""Power-loss safety for a database in a local folder: sync of its files, and repair at the next opening.

SlateDB's local store moves finished files into place and never calls fsync, so after a power loss any new file may be
empty, torn or missing. Syncing each file when it is written is not possible from outside, and would be slow: commits
are durable in the journal already. So this module syncs all new files at each tidy and records a *sync point* beside
the folder: the list of synced files. The journal keeps its segments until the sync point covers them.

================  ====================================================================================
``<db>.sync``     the last sync point, JSON with a checksum, replaced atomically
``<db>.lost/``    the files that :func:`heal_after_power_loss` moved out of the database
================  ====================================================================================

**What a sync point guarantees.** Files are immutable once they are in place, and those of ``manifest``, ``compactions``
and ``wal`` are numbered. A manifest is listed before the tables that it names, so a recorded manifest never names an
unsynced table; tables that are written between the two listings do no harm. A numbered file above the recorded one
contains no confirmed change that the journal lacks; after a power loss it is moved out, and SlateDB opens the rest: the
state at the sync point. Later tables are not moved, as no remaining manifest names them.
Files are moved and not deleted, so that a wrong decision can be undone.

**A crash or a power loss?** A process that dies tears no file, because the kernel still writes them. The kernel's boot
id, which the sync point contains, distinguishes them.

=====================================  =================================================================================
at the opening                         decision
=====================================  =================================================================================
no sync point                          new, or written without syncing: nothing is moved
same boot id                           the process crashed or closed: nothing is moved
other boot id, closed cleanly          nothing is moved, if no manifest was written since (a reader may write one)
other boot id, otherwise               power was lost: numbered files above the point and the collector's boundaries
                                       are moved out; the end of the journal may be torn
=====================================  =================================================================================

In each case all remaining files are synced and a new point is recorded, so a second call has no effect; until then, a
call after a crash or another power loss continues the repair by the old point. Only ``power_lost`` remains in the new
point until the first sync of the next broker: if the broker crashes before that, recovery must still read the journal's
end as torn. A copy of a running broker's folder on another host counts as after a power loss.

**The collector** may have deleted the recorded manifest after a newer one was in place. Then that newer one is the only
manifest, and only the WAL is cut. Its ``boundary`` files limit later deletions; they are always moved out, as they may
be torn or name a manifest that is moved out.

The process that has the folder's lock makes all changes, one at a time (:class:`.StoreFiles`). A tidy syncs only new
files; an opening and a clean close sync all, of which most are on the disk already.

A writer that does not sync must call :func:`forget` before it writes, or its files would count as torn after the next
boot. A sync point that does not decode is an error and not a guess: it may protect confirmed messages.
"""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ... import errors
from ...file_system import BOOT_ID_FILE, boot_id, is_full, remedy

# in the order in which they must be listed
NUMBERED = ("manifest", "compactions", "wal")
_TABLES = "compacted"
_COLLECTOR = "gc"
_NUMBERED_NAME = re.compile(r"\d{20}\.\w+")
_TABLE_NAME = re.compile(r"\w+\.sst")
_BOUNDARY_NAME = re.compile(r"\w+\.boundary")


@dataclass(frozen=True, slots=True)
class SyncPoint:
    """The list of files that are certainly on the disk.

    Attributes:
        boot_id: the boot id of the system at that time.
        highest: folder → name of its highest numbered file.
        tables: the names of the files in ``compacted``.
        clean: the database was closed and not written after this point.
        power_lost: a power loss came before this point, and no broker has continued the journal since.
    """

    boot_id: str
    highest: dict[str, str] = field(default_factory=dict)
    tables: frozenset[str] = frozenset()
    clean: bool = False
    power_lost: bool = False


@dataclass(frozen=True, slots=True)
class Healing:
    """The result of :func:`heal_after_power_loss`.

    Attributes:
        moved: the files that were moved to ``<db>.lost``, relative to the database.
        power_lost: the end of the journal may be torn.
    """

    moved: tuple[str, ...] = ()
    power_lost: bool = False


def current_boot_id(file: Path = BOOT_ID_FILE) -> str:
    """Return the kernel's id of this boot.

    Raises:
        errors.StartError: the system has no boot id, so a power loss can't be distinguished from a crash.
    """
    value = boot_id(file)
    if not value:
        raise errors.StartError(f"{file} can't be read: switch the syncing of the store off on this system")
    return value


def sync_tree(
    db_folder: Path, since: SyncPoint | None, *, boot_id: str | None = None, power_lost: bool = False
) -> SyncPoint:
    """Sync the files in `db_folder` that are new since the point `since`, or all if it is None, and record the point.

    Call it after the flush that it must cover.

    Raises:
        errors.StoreFull: the disk is full; the previous point remains valid.
        errors.StoreError: the disk failed.
    """
    previous = since or SyncPoint("")
    with _translated(db_folder):
        new: dict[str, list[str]] = {}
        highest = dict(previous.highest)
        for name in NUMBERED:
            names = _names(db_folder / name, _NUMBERED_NAME)
            new[name] = [n for n in names if n > previous.highest.get(name, "")]
            if new[name]:
                highest[name] = max(new[name])
        tables = frozenset(_names(db_folder / _TABLES, _TABLE_NAME))
        new[_TABLES] = sorted(tables - previous.tables)
        new[_COLLECTOR] = _names(db_folder / _COLLECTOR, _BOUNDARY_NAME)
        _sync_files(db_folder, new, every_folder=since is None)
        point = SyncPoint(boot_id or current_boot_id(), highest, tables, power_lost=power_lost)
        if point != since:
            _record(db_folder, point)
    return point


def mark_clean(db_folder: Path, *, boot_id: str | None = None) -> None:
    """Sync all files and record that the database is closed."""
    point = sync_tree(db_folder, None, boot_id=boot_id)
    with _translated(db_folder):
        _record(db_folder, replace(point, clean=True))


def forget(db_folder: Path) -> None:
    """Remove the sync point: from now on the folder's writer does not sync."""
    with _translated(db_folder):
        sync_file(db_folder).unlink(missing_ok=True)
        _sync(db_folder.parent)


def lost_power(db_folder: Path, point: SyncPoint | None, boot_id: str) -> bool:
    """Return True if the journal may end with torn records.

    A crash between the repair and the first record of the next broker does not change the result.
    """
    if point is None:
        return False
    return point.power_lost or (point.boot_id != boot_id and not _is_clean(db_folder, point))


def heal_after_power_loss(db_folder: Path, *, boot_id: str | None = None) -> Healing:
    """Move out the files that a power loss may have torn. Call it before every opening of the database.

    If the system was not booted since the last sync point, no file is moved: a process that dies tears no file. In
    every case the remaining files are synced and recorded, so a second call has no effect.

    Raises:
        errors.StoreFull: the disk is full.
        errors.StoreError: the disk failed, or the sync point does not decode.
    """
    if not db_folder.is_dir():
        return Healing()
    now = boot_id or current_boot_id()
    point = read_sync_point(db_folder)
    power_lost = lost_power(db_folder, point, now)
    moved_files = _take_out(db_folder, point) if power_lost and point is not None and point.boot_id != now else []
    sync_tree(db_folder, None, boot_id=now, power_lost=power_lost)
    return Healing(tuple(moved_files), power_lost)


def read_sync_point(db_folder: Path) -> SyncPoint | None:
    """Return the recorded point; None if there is none.

    Raises:
        errors.StoreError: it does not decode.
    """
    file = sync_file(db_folder)
    try:
        data = file.read_bytes()
        return _decode(data)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise errors.StoreError(
            f"{file} is damaged: if the machine has not lost power since the broker ran, remove the file",
            path=str(file),
        ) from error


def sync_file(db_folder: Path) -> Path:
    """Return the path of the sync point of `db_folder`."""
    return db_folder.with_name(db_folder.name + ".sync")


# ---- moving files out
def _is_clean(db_folder: Path, point: SyncPoint) -> bool:
    """Return True if the database was not written after it was closed.

    A reader may have written a manifest when its checkpoint ended.
    """
    newest = max(_names(db_folder / "manifest", _NUMBERED_NAME), default="")
    return point.clean and newest <= point.highest.get("manifest", "")


def _take_out(db_folder: Path, point: SyncPoint) -> list[str]:
    files = [
        f"{folder}/{name}"
        for folder in _folders_to_cut(db_folder, point)
        for name in _names(db_folder / folder, _NUMBERED_NAME)
        if name > point.highest.get(folder, "")
    ]
    # These bound the collector's deletions; they may be torn, or name a manifest that is moved out.
    files += [f"{_COLLECTOR}/{name}" for name in _names(db_folder / _COLLECTOR, _BOUNDARY_NAME)]
    lost_folder = db_folder.with_name(db_folder.name + ".lost")
    moved: dict[str, list[str]] = {}
    with _translated(db_folder):
        for file in sorted(files):
            target = lost_folder / file
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (db_folder / file).replace(target)
            folder, _, name = file.partition("/")
            moved.setdefault(folder, []).append(name)
        _sync_files(lost_folder, moved, every_folder=True)  # before the old folders, or another power loss deletes them
        for folder in moved:
            _sync(db_folder / folder)
    return sorted(files)


def _folders_to_cut(db_folder: Path, point: SyncPoint) -> Iterable[str]:
    """Return the folders with files to move out.

    If the recorded manifest does not exist, a newer one was in place when the collector ran, and is the only one.
    """
    recorded = point.highest.get("manifest")
    if recorded is not None and not (db_folder / "manifest" / recorded).exists():
        return ("wal",)
    return NUMBERED


# ---- the sync point's file
def _encode(point: SyncPoint) -> bytes:
    """Encode the point as JSON; the last field is the CRC-32 of the JSON of the others."""
    fields = {**asdict(point), "tables": sorted(point.tables)}
    return json.dumps(fields | {"checksum": zlib.crc32(json.dumps(fields).encode())}).encode()


def _decode(data: bytes) -> SyncPoint:
    """Decode the point in a file.

    Earlier versions wrote no checksum; a changed byte in such a file changes its text.

    Raises:
        ValueError, KeyError, TypeError: the bytes are not those of a point.
    """
    fields = json.loads(data)
    point = SyncPoint(fields["boot_id"], dict(fields["highest"]), frozenset(fields["tables"]), fields["clean"])
    if fields.keys() == {"boot_id", "highest", "tables", "clean"}:
        return point
    point = replace(point, power_lost=fields["power_lost"])
    if _encode(point) != data:
        raise ValueError("the checksum does not match")
    return point


# ---- files
def _names(folder: Path, pattern: re.Pattern[str]) -> list[str]:
    """Return the matching names in `folder`, sorted; files that SlateDB is still writing have other names."""
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in entries if pattern.fullmatch(e.name))
    except FileNotFoundError:
        return []


def _sync_files(db_folder: Path, new: dict[str, list[str]], *, every_folder: bool) -> None:
    """Sync the files, then their folders. The collector may have deleted a file since it was listed."""
    for folder, names in new.items():
        for name in names:
            _sync(db_folder / folder / name)
        if names or every_folder:
            _sync(db_folder / folder)
    if every_folder:
        _sync(db_folder)
        _sync(db_folder.parent)


def _sync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _record(db_folder: Path, point: SyncPoint) -> None:
    file = sync_file(db_folder)
    temporary = file.with_name(file.name + ".tmp")
    data = _encode(point)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        if os.write(descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, "a short write")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(file)
    _sync(file.parent)


@contextmanager
def _translated(db_folder: Path) -> Iterator[None]:
    """Translate the operating system's errors to those of this package, with the folder's name."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            text = f"no space left to record which files of {db_folder} are synced: {remedy(db_folder.parent)}"
            raise errors.StoreFull(text, path=str(db_folder)) from error
        text = f"the store's folder {db_folder} can't be synced: {error}"
        raise errors.StoreError(text, path=str(db_folder)) from error
