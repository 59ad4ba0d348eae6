"""Checks of the files of a database in a local folder without SlateDB, which report damage by file and position.

==========================  ============================================================================
file                        what protects it
==========================  ============================================================================
``compacted/*.sst``         checksums over every byte (:mod:`.sorted_table`); the manifest repeats its info
``wal/*.sst``               checksums over every byte; sequence numbers follow each other
``manifest/*.manifest``     no checksum: it must decode, and agree with the tables and the WAL
``compactions/*``           no checksum: it must decode; it lists compactions, and its loss loses no data
``gc/*.boundary``           a decimal number
``<db>.sync``               JSON (:mod:`kombu_opendata.storage.commit.power_loss`)
==========================  ============================================================================

Files to which the latest manifest does not refer are garbage for SlateDB's collector, and are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import StoreError
from ...storage.commit import power_loss
from ...storage.slatedb import ffi
from ...storage.slatedb.object_store import locate
from ..findings import Finding, finding
from .location import StoreLocation
from .manifest import check_manifest
from .sorted_table import TableFile, check_table

_NUMBERED = re.compile(r"(\d{20})\.sst")
#: size of tables above which the sequence numbers of rows are not examined
_ROWS_BYTES = 64 << 20

Checked = Callable[[int], None]


@dataclass(slots=True)
class FileCheck:
    """Result of checking the files.

    Attributes:
        unreadable: the ranges of keys that the damaged parts of tables may contain.
        checked: the number of files that were checked.
    """

    findings: list[Finding] = field(default_factory=list)
    unreadable: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    checked: int = 0
    incomplete: list[str] = field(default_factory=list)


async def check_files(location: StoreLocation, on_file: Checked = lambda _count: None) -> FileCheck:
    """Check all files of the database.

    Args:
        on_file: called with the number of files checked so far.
    """
    result = FileCheck()
    database = location.database
    if database is None:
        result.incomplete.append("files are checked one by one only in local folders; records were checked as read")
        return result
    manifest = await _read_manifest(location, result)
    compactions = await _check_compactions(location, result)
    if manifest is not None and compactions is not None and manifest.compactor_epoch < compactions.compactor_epoch:
        text = f"the compactor's epoch is {manifest.compactor_epoch} and {compactions.compactor_epoch}"
        result.findings.append(finding("epochs-differ", text, file=str(_newest(database / "manifest"))))
    try:
        _check_small_files(database, result)
        if manifest is not None:
            result.checked += 1
            tables = _check_tables(database, manifest, result, on_file)
            wal, highest_wal = _check_wal(database, manifest, result, on_file)
            newest = str(_newest(database / "manifest"))
            result.findings += check_manifest(manifest, tables, wal, highest_wal, newest)
    except OSError as exc:
        result.incomplete.append(f"{exc.filename} can't be read: {exc.strerror}")
    return result


# ---- manifest and compactions
def _admin(location: StoreLocation) -> Any:
    store_location = locate(location.url, location.instance, create=False)
    return ffi.public().AdminBuilder(store_location.path, store_location.store).build()


async def _read_manifest(location: StoreLocation, result: FileCheck) -> Any:
    """Return the latest manifest; None if none decodes."""
    u = ffi.public()
    assert location.database is not None
    newest = _newest(location.database / "manifest")
    try:
        manifest = await _admin(location).read_manifest(None)
        text = "there is no manifest"
    except (u.Error, u.InternalError) as exc:
        manifest, text = None, f"{newest.name if newest else 'the manifest'} does not decode: {exc}"
    if manifest is None:
        result.findings.append(finding("manifest-damaged", text, file=str(newest or "")))
    return manifest


async def _check_compactions(location: StoreLocation, result: FileCheck) -> Any:
    """Return the latest list of compactions; None if none decodes."""
    u = ffi.public()
    assert location.database is not None
    newest = _newest(location.database / "compactions")
    result.checked += newest is not None
    try:
        return await _admin(location).read_compactions(None)
    except (u.Error, u.InternalError) as exc:
        name = newest.name if newest else "the list of compactions"
        result.findings.append(finding("compactions-damaged", f"{name} does not decode: {exc}", file=str(newest or "")))
        return None


def _newest(folder: Path) -> Path | None:
    return max(folder.iterdir(), default=None) if folder.is_dir() else None


# ---- tables
def views_of(manifest: Any) -> Iterator[Any]:
    """Yield the tables to which a manifest refers."""
    trees = [manifest, *manifest.segments]
    for tree in trees:
        yield from tree.l0
        for run in tree.compacted:
            yield from run.sst_views


def _check_tables(database: Path, manifest: Any, result: FileCheck, on_file: Checked) -> list[TableFile]:
    checked = []
    newest = {view.sst.id.value for view in manifest.l0}
    for view in views_of(manifest):
        path = database / "compacted" / f"{view.sst.id.value}.sst"
        announced = view.sst.info
        whole = (announced.first_entry or b"", _after(announced.last_entry))
        result.checked += 1
        on_file(result.checked)
        if not path.is_file():
            text = f"{path.name} is missing: {_keys(announced)}"
            result.findings.append(finding("table-missing", text, file=str(path)))
            result.unreadable.append(whole)
            continue
        with_rows = not newest or view.sst.id.value in newest
        table = check_table(path, with_rows=with_rows and path.stat().st_size <= _ROWS_BYTES)
        checked.append(table)
        for what in table.damage:
            result.findings.append(finding("table-damaged", f"{path.name}: {what}", file=str(path)))
        result.unreadable += [
            (max(low, whole[0]), high if high is not None else whole[1]) for low, high in table.lost
        ]  # fmt: skip
    return checked


def _after(key: bytes | None) -> bytes | None:
    return None if key is None else key + b"\0"


def _keys(info: Any) -> str:
    return f"it held keys from {(info.first_entry or b'').hex()} to {(info.last_entry or b'').hex()}"


# ---- WAL
def _check_wal(database: Path, manifest: Any, result: FileCheck, on_file: Checked) -> tuple[list[TableFile], int]:
    """Check the WAL files that are replayed when the database is opened; return them and the number of the last one.

    An empty file marks a change of the writer.
    """
    names = sorted(path.name for path in (database / "wal").glob("*.sst") if _NUMBERED.fullmatch(path.name))
    numbers = [int(name[:20]) for name in names if int(name[:20]) > manifest.replay_after_wal_id]
    previous, seq, doubtful = manifest.replay_after_wal_id, manifest.last_l0_seq, ""
    checked = []
    for number in numbers:
        path = database / "wal" / f"{number:020d}.sst"
        if number != previous + 1:
            doubtful = f"{previous + 1} to {number - 1} are missing"
            text = f"WAL files {doubtful}"
            result.findings.append(finding("wal-missing", text, file=str(path.parent)))
        previous = number
        result.checked += 1
        on_file(result.checked)
        if not path.stat().st_size:
            doubtful = f"{path.name} is empty"
            continue
        wal_file = check_table(path, with_rows=True)
        checked.append(wal_file)
        for what in wal_file.damage:
            result.findings.append(finding("wal-damaged", f"{path.name}: {what}", file=str(path)))
        if doubtful and seq and wal_file.first_seq > seq + 1:
            text = f"writes {seq + 1} to {wal_file.first_seq - 1} are missing before {path.name}: {doubtful}"
            result.findings.append(finding("wal-gap", text, file=str(path)))
        seq, doubtful = max(seq, wal_file.last_seq), ""
    return checked, previous


# ---- small files
def _check_small_files(database: Path, result: FileCheck) -> None:
    for path in sorted((database / "gc").glob("*.boundary")):
        result.checked += 1
        if not path.read_bytes().isdigit():
            text = f"{path.name} is not a number: {path.read_bytes()[:40]!r}"
            result.findings.append(finding("boundary-damaged", text, file=str(path)))
    result.findings += _check_sync_point(database)


def _check_sync_point(database: Path) -> Iterator[Finding]:
    file = power_loss.sync_file(database)
    try:
        point = power_loss.read_sync_point(database)
        boot_id = power_loss.current_boot_id()
    except (StoreError, UnicodeDecodeError) as exc:
        yield finding("sync-damaged", str(exc), file=str(file))
        return
    except OSError:
        return
    if point is None:
        return
    for folder, name in point.highest.items():
        if not re.fullmatch(r"\d{20}\.\w+", str(name)) or folder not in power_loss.NUMBERED:
            yield finding("sync-damaged", f"{file.name} names {folder}/{name}", file=str(file))
    if not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", point.boot_id) or point.clean not in (0, 1):
        yield finding("sync-damaged", f"{file.name} has the boot id {point.boot_id!r}", file=str(file))
    elif point.boot_id != boot_id and not point.clean:
        text = f"{file.name} is from another boot of the machine ({point.boot_id}), and the store was not closed"
        yield finding("power-lost", text, file=str(file))
