"""Checks of the files of a database in a local folder, without SlateDB. They report damage by file and position.

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

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from ...errors import StoreError
from ...storage.commit import power_loss
from ...storage.slatedb import ffi
from ...storage.slatedb.object_store import locate
from ..findings import Finding, finding
from .sorted_table import Info, TableFile
from .store_location import StoreLocation

_NUMBERED = re.compile(r"(\d{20})\.sst")
#: size of tables above which the sequence numbers of rows are not examined
_ROWS_BYTES = 64 << 20


class DatabaseFiles:
    """Check of all files of a database.

    Attributes:
        findings: the errors.
        unreadable: the ranges of keys that the damaged parts of tables may contain.
        checked: the number of files that were checked.
        incomplete: the reasons for an incomplete check.
    """

    def __init__(self, location: StoreLocation, on_file: Callable[[int], None] = lambda _count: None) -> None:
        self._location, self._on_file = location, on_file
        self.findings: list[Finding] = []
        self.unreadable: list[tuple[bytes, bytes | None]] = []
        self.checked = 0
        self.incomplete: list[str] = []

    async def check(self) -> None:
        """Check the files; ``on_file`` is called with the number of files checked so far."""
        database = self._location.database
        if database is None:
            self.incomplete.append("files are checked one by one only in local folders; records were checked as read")
            return
        newest = _newest(database / "manifest")
        manifest, reason = await self._decoded("read_manifest", newest, "the manifest")
        if manifest is None:
            self._add("manifest-damaged", reason or "there is no manifest", newest)
        listed = _newest(database / "compactions")
        self.checked += listed is not None
        compactions, reason = await self._decoded("read_compactions", listed, "the list of compactions")
        if reason:
            self._add("compactions-damaged", reason, listed)
        if manifest is not None and compactions is not None and manifest.compactor_epoch < compactions.compactor_epoch:
            text = f"the compactor's epoch is {manifest.compactor_epoch} and {compactions.compactor_epoch}"
            self._add("epochs-differ", text, newest)
        try:
            self._check_small_files(database)
            if manifest is not None:
                self.checked += 1
                tables = self._check_tables(database, manifest)
                wal, highest_wal = self._check_wal(database, manifest)
                for text in contradictions(manifest, tables, wal, highest_wal):
                    self._add("manifest-suspect", text, newest)
        except OSError as exc:
            self.incomplete.append(f"{exc.filename} can't be read: {exc.strerror}")

    def _add(self, code: str, text: str, file: Path | None) -> None:
        self.findings.append(finding(code, text, file=str(file or "")))

    async def _decoded(self, read: str, newest: Path | None, subject: str) -> tuple[Any, str]:
        """Return the latest manifest or list of compactions; if none decodes, None and the reason."""
        u = ffi.public()
        location = locate(self._location.url, self._location.instance, create=False)
        try:
            return await getattr(u.AdminBuilder(location.path, location.store).build(), read)(None), ""
        except (u.Error, u.InternalError) as exc:
            return None, f"{newest.name if newest else subject} does not decode: {exc}"

    def _next_file(self) -> None:
        self.checked += 1
        self._on_file(self.checked)

    # ------------------------------------------------------------------ tables
    def _check_tables(self, database: Path, manifest: Any) -> list[TableFile]:
        checked = []
        newest = {view.sst.id.value for view in manifest.l0}
        for view in views_of(manifest):
            path = database / "compacted" / f"{view.sst.id.value}.sst"
            first, last = view.sst.info.first_entry or b"", view.sst.info.last_entry
            end = None if last is None else last + b"\0"
            self._next_file()
            if not path.is_file():
                text = f"{path.name} is missing: it held keys from {first.hex()} to {(last or b'').hex()}"
                self._add("table-missing", text, path)
                self.unreadable.append((first, end))
                continue
            with_rows = not newest or view.sst.id.value in newest
            table = TableFile(path, with_rows=with_rows and path.stat().st_size <= _ROWS_BYTES)
            checked.append(table)
            for problem in table.damage:
                self._add("table-damaged", f"{path.name}: {problem}", path)
            self.unreadable += [(max(low, first), high if high is not None else end) for low, high in table.lost]
        return checked

    # ------------------------------------------------------------------ WAL
    def _check_wal(self, database: Path, manifest: Any) -> tuple[list[TableFile], int]:
        """Check the WAL files that are replayed when the database is opened.

        Return them and the number of the last one. An empty file marks a change of the writer.
        """
        names = sorted(path.name for path in (database / "wal").glob("*.sst") if _NUMBERED.fullmatch(path.name))
        numbers = [int(name[:20]) for name in names if int(name[:20]) > manifest.replay_after_wal_id]
        previous = manifest.replay_after_wal_id
        seq = manifest.last_l0_seq
        doubtful = ""
        checked = []
        for number in numbers:
            path = database / "wal" / f"{number:020d}.sst"
            if number != previous + 1:
                doubtful = f"{previous + 1} to {number - 1} are missing"
                self._add("wal-missing", f"WAL files {doubtful}", path.parent)
            previous = number
            self._next_file()
            if not path.stat().st_size:
                doubtful = f"{path.name} is empty"
                continue
            wal_file = TableFile(path, with_rows=True)
            checked.append(wal_file)
            for problem in wal_file.damage:
                self._add("wal-damaged", f"{path.name}: {problem}", path)
            if doubtful and seq and wal_file.first_seq > seq + 1:
                text = f"writes {seq + 1} to {wal_file.first_seq - 1} are missing before {path.name}: {doubtful}"
                self._add("wal-gap", text, path)
            seq, doubtful = max(seq, wal_file.last_seq), ""
        return checked, previous

    # ------------------------------------------------------------------ small files
    def _check_small_files(self, database: Path) -> None:
        for path in sorted((database / "gc").glob("*.boundary")):
            self.checked += 1
            if not path.read_bytes().isdigit():
                self._add("boundary-damaged", f"{path.name} is not a number: {path.read_bytes()[:40]!r}", path)
        self._check_sync_point(database)

    def _check_sync_point(self, database: Path) -> None:
        file = power_loss.sync_file(database)
        try:
            point = power_loss.read_sync_point(database)
            boot_id = power_loss.current_boot_id()
        except (StoreError, UnicodeDecodeError) as exc:
            self._add("sync-damaged", str(exc), file)
            return
        except OSError:
            return
        if point is None:
            return
        for folder, name in point.highest.items():
            if not re.fullmatch(r"\d{20}\.\w+", str(name)) or folder not in power_loss.NUMBERED:
                self._add("sync-damaged", f"{file.name} names {folder}/{name}", file)
        if not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", point.boot_id) or point.clean not in (0, 1):
            self._add("sync-damaged", f"{file.name} has the boot id {point.boot_id!r}", file)
        elif point.boot_id != boot_id and not point.clean:
            text = f"{file.name} is from another boot of the machine ({point.boot_id}), and the store was not closed"
            self._add("power-lost", text, file)


def _newest(folder: Path) -> Path | None:
    return max(folder.iterdir(), default=None) if folder.is_dir() else None


def views_of(manifest: Any) -> Iterator[Any]:
    """Yield the tables to which a manifest refers."""
    for tree in (manifest, *manifest.segments):
        yield from tree.l0
        for run in tree.compacted:
            yield from run.sst_views


# ---- the manifest, which has no checksum, compared with the existing tables and WAL files
def contradictions(manifest: Any, tables: list[TableFile], wal: list[TableFile], highest_wal: int) -> Iterator[str]:
    """Yield the contradictions between a manifest and the files.

    Args:
        manifest: the VersionedManifest of the binding.
        tables: the tables that exist.
        wal: the WAL files that would be replayed, in order, without the empty ones.
        highest_wal: the number of the last WAL file, even if it is empty.
    """
    yield from _tables_differ(manifest, tables)
    yield from _order(manifest)
    yield from _sequence(manifest, tables, wal)
    yield from _numbers(manifest, highest_wal)


def _tables_differ(manifest: Any, tables: list[TableFile]) -> Iterator[str]:
    """Compare the info of each table with its copy in the manifest."""
    by_name = {table.path.stem: table for table in tables}
    views = [*manifest.l0, *(view for run in manifest.compacted for view in run.sst_views)]
    for view in views:
        table = by_name.get(view.sst.id.value)
        if table is not None and table.info is not None and _info(view.sst.info) != table.info:
            yield f"its description of {view.sst.id.value}.sst differs from the file's own"
        if view.visible_range is not None:
            yield f"it shows only a part of {view.sst.id.value}.sst, which this program never requests"
    names = [view.sst.id.value for view in views]
    if len(set(names)) < len(names):
        yield "it names a table twice"
    for subject, unexpected in (("segments", manifest.segments), ("other databases", manifest.external_dbs)):
        if unexpected:
            yield f"it has {subject}, which this program never creates"
    if manifest.wal_object_store_uri is not None or not manifest.initialized:
        yield "it has settings that this program never uses"


def _info(copy: Any) -> Info:
    values = {field.name: getattr(copy, field.name) for field in fields(Info) if field.name != "codec"}
    return Info(**values, codec=0 if copy.compression_codec is None else copy.compression_codec.value + 1)


def _order(manifest: Any) -> Iterator[str]:
    """Check that a sorted run's tables follow each other, and that runs have descending numbers."""
    for run in manifest.compacted:
        infos = [view.sst.info for view in run.sst_views]
        if not infos:
            yield f"sorted run {run.id} is empty"
        for table, other in itertools.pairwise(infos):
            if (table.last_entry or b"") >= (other.first_entry or b""):
                yield f"the tables of sorted run {run.id} overlap"
    runs = [run.id for run in manifest.compacted]
    if runs != sorted(set(runs), reverse=True):
        yield f"its sorted runs are in the order {runs}"


def _sequence(manifest: Any, tables: list[TableFile], wal: list[TableFile]) -> Iterator[str]:
    """Check that the tables have all writes up to the last sequence number, and the WAL those after it."""
    if any(table.damage for table in (*tables, *wal)):
        return
    newest = max((table.last_seq for table in tables), default=0)
    count = len(manifest.l0) + sum(len(run.sst_views) for run in manifest.compacted)
    if newest not in (0, manifest.last_l0_seq) and len(tables) == count:
        yield f"its tables end with write {newest}, but it records {manifest.last_l0_seq}"
    if manifest.recent_snapshot_min_seq > max(manifest.last_l0_seq, *(table.last_seq for table in wal), 0):
        yield f"it keeps snapshots from write {manifest.recent_snapshot_min_seq} on, which does not exist yet"
    if wal and wal[0].first_seq > manifest.last_l0_seq + 1:
        yield f"the WAL continues with write {wal[0].first_seq}, but its tables end with {manifest.last_l0_seq}"


def _numbers(manifest: Any, highest: int) -> Iterator[str]:
    for name in ("writer_epoch", "compactor_epoch"):
        if not getattr(manifest, name) <= manifest.id:  # each was written to a separate manifest
            yield f"its {name} is {getattr(manifest, name)} in manifest {manifest.id}"
    highest = max(highest, manifest.replay_after_wal_id)
    if not manifest.replay_after_wal_id < manifest.next_wal_sst_id <= highest + 1:
        yield (
            f"its next WAL file is {manifest.next_wal_sst_id}, but the last one is {highest}, "
            f"and those up to {manifest.replay_after_wal_id} are not needed"
        )
    for checkpoint in manifest.checkpoints:
        if not 0 < checkpoint.manifest_id <= manifest.id:
            yield f"a checkpoint refers to manifest {checkpoint.manifest_id}"
