"""Comparison of a manifest, which has no checksum, with the existing tables and WAL files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from ..findings import Finding, finding
from .sorted_table import Info, TableFile


def check_manifest(
    manifest: Any, tables: list[TableFile], wal: list[TableFile], highest_wal: int, file: str
) -> Iterator[Finding]:
    """Yield the contradictions between a manifest and the files.

    Args:
        manifest: the VersionedManifest of the binding.
        tables: the tables that exist.
        wal: the WAL files that would be replayed, in order, without the empty ones.
        highest_wal: the number of the last WAL file, even if it is empty.
        file: the manifest's file, for the findings.
    """
    for text in (
        *_tables_differ(manifest, tables),
        *_order(manifest),
        *_sequence(manifest, tables, wal),
        *_numbers(manifest, highest_wal),
    ):
        yield finding("manifest-suspect", text, file=file)


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
    for what, unexpected in (("segments", manifest.segments), ("other databases", manifest.external_dbs)):
        if unexpected:
            yield f"it has {what}, which this program never creates"
    if manifest.wal_object_store_uri is not None or not manifest.initialized:
        yield "it has settings that this program never uses"


def _info(told: Any) -> Info:
    codec = told.compression_codec
    told_fields = {field.name: getattr(told, field.name) for field in fields(Info) if field.name != "codec"}
    return Info(**told_fields, codec=0 if codec is None else codec.value + 1)


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
    listed = len(manifest.l0) + sum(len(run.sst_views) for run in manifest.compacted)
    if newest not in (0, manifest.last_l0_seq) and len(tables) == listed:
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
