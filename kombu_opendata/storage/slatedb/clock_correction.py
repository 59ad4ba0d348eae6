"""The correction of a database's times after the clock was set back, or when another host's clock was ahead.

SlateDB requires that three kinds of times never decrease, and compares them with the clock of the process that opens
the database. If the clock is behind, writes fail immediately, and flushes and compactions later.

================================  ==========================================================================
time                              place
================================  ==========================================================================
of the newest write               the manifest's ``last_l0_clock_tick``, and the rows in the WAL
of the newest table in no run     the ULID in its name; without such a table, that of the last one compacted
of the newest compaction          the ULIDs in the list of compactions
================================  ==========================================================================

The binding has no parameter for a clock. So the correction writes the next manifest, in which these times are earlier,
and copies of the tables under their new names, and it deletes the lists of compactions, which loses no data.
The new manifest is the old one with those numbers replaced. It is not written if SlateDB would read any other
difference. The database must be closed, and this process its last writer.

Rows in the WAL can't be corrected. SlateDB writes them into a table when it is closed, and then the manifest is
corrected again.
"""

from __future__ import annotations

import asyncio
import struct
import tempfile
from pathlib import Path
from typing import Any

from ...errors import StoreError
from ...staging.folder import Folder
from ...staging.folder_url import open_folder
from ..records import keys
from . import ffi
from .object_store import Location, answered, locate, translated
from .slate_admin import earlier_ulid, ulid_number, ulid_time_ms

#: the layout of a time in a manifest
_TIME = struct.Struct("<q")
#: the layout of the half of a ULID that contains its time
_HALF = struct.Struct("<Q")
#: each batch of the broker writes at least one of these
_MARKS = (keys.NEWEST_TIME_KEY, keys.STORE_HEADER_KEY)


async def written(location: Location, deadline_seconds: float) -> tuple[int, int]:
    """Return the newest time (ms) in a closed database without its WAL, and the sequence number up to which that is.

    SlateDB fails if the clock is behind this time.

    Raises:
        StoreError: the store does not respond, or can't be read.
    """
    admin = ffi.public().AdminBuilder(location.path, location.store).build()
    reads = asyncio.gather(admin.read_manifest(None), admin.read_compactions(None))
    manifest, compactions = await answered(reads, location.url, deadline_seconds)
    if manifest is None:
        return 0, 0
    times = [manifest.last_l0_clock_tick, _newest_table_ms(manifest)]
    if compactions is not None:
        times += [ulid_time_ms(compaction.id) for compaction in compactions.recent_compactions]
    return max(times), manifest.last_l0_seq


async def newest_row_ms(location: Location, db: Any, last_seq: int) -> int:
    """Return the time of the last write of an open database, if it is after ``last_seq`` and so from the WAL."""
    with translated(location.url):
        rows = await asyncio.gather(*(db.get_key_value(key) for key in _MARKS))
    return max((int(row.create_ts) for row in rows if row is not None and row.seq > last_seq), default=0)


async def correct(location: Location, now_ms: int) -> None:
    """Make the times of a closed database not later than ``now_ms``, except for those of rows in its WAL.

    Raises:
        StoreError: the store can't be read or written, or this version of SlateDB has another format.
    """
    admin = ffi.public().AdminBuilder(location.path, location.store).build()
    with translated(location.url):
        manifest, compactions = await asyncio.gather(admin.read_manifest(None), admin.list_compactions(None, None))
    folder = open_folder(location.url)
    await _write_manifest(folder, location, manifest, now_ms)
    # without this boundary of deleted lists, SlateDB restarts their numbers at 1
    paths = [f"{location.name}/gc/compactions.boundary"]
    paths += [f"{location.name}/compactions/{version.id:020d}.compactions" for version in compactions]
    await asyncio.to_thread(folder.delete, paths)


async def _write_manifest(folder: Folder, location: Location, manifest: Any, now_ms: int) -> None:
    """Write the next manifest, if this one has a time that is later than ``now_ms``."""
    new_ids = _earlier_ids(manifest, _newest_table_ms(manifest) - now_ms)
    tick = min(manifest.last_l0_clock_tick, now_ms)
    if not new_ids and tick == manifest.last_l0_clock_tick:
        return
    data = await _read(folder, f"{location.name}/manifest/{manifest.id:020d}.manifest")
    data = data.replace(_TIME.pack(manifest.last_l0_clock_tick), _TIME.pack(tick))
    expected = str(manifest).replace(
        f"last_l0_clock_tick={manifest.last_l0_clock_tick},", f"last_l0_clock_tick={tick},"
    )
    for old, new in new_ids.items():
        data = data.replace(_half(old), _half(new))
        expected = expected.replace(old, new)
    if await asyncio.to_thread(_as_read, data, manifest.id) != expected:
        raise StoreError(
            f"the clock is behind the times in the store {location.url}, which this version can't correct: set the "
            "clock, or start the broker when it has caught up",
            url=location.url,
        )
    runs = (view for run in manifest.compacted for view in run.sst_views)
    for table in {view.sst.id.value for view in (*manifest.l0, *runs)} & new_ids.keys():
        content = await _read(folder, f"{location.name}/compacted/{table}.sst")
        await asyncio.to_thread(folder.write, f"{location.name}/compacted/{new_ids[table]}.sst", [content])
    await asyncio.to_thread(folder.write, f"{location.name}/manifest/{manifest.id + 1:020d}.manifest", [data])


def _newest_table_ms(manifest: Any) -> int:
    """Return the time of the newest table that is in no run, or that was compacted last."""
    if manifest.l0:
        return max(ulid_time_ms(view.sst.id.value) for view in manifest.l0)
    return ulid_time_ms(manifest.last_compacted_l0_sst_view_id or "")


def _earlier_ids(manifest: Any, by_ms: int) -> dict[str, str]:
    """Return the ids that must become earlier, with their replacements, which keep the order."""
    if by_ms <= 0:
        return {}
    ids = {manifest.last_compacted_l0_sst_view_id, manifest.last_compacted_l0_sst_id} - {None}
    for view in manifest.l0:
        ids |= {view.id, view.sst.id.value}
    return {id: earlier_ulid(id, by_ms) for id in ids}


def _half(id: str) -> bytes:
    return _HALF.pack(ulid_number(id) >> 64)


def _as_read(data: bytes, id: int) -> str:
    """Return the content of a manifest as SlateDB reads it; empty if it does not decode."""
    u = ffi.public()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "scratch", "manifest", f"{id:020d}.manifest")
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        scratch_location = locate(f"file://{scratch}", "scratch", create=False)
        try:
            return str(
                asyncio.run(u.AdminBuilder(scratch_location.path, scratch_location.store).build().read_manifest(id))
            )
        except (u.Error, u.InternalError):
            return ""


async def _read(folder: Folder, path: str) -> bytes:
    size = await asyncio.to_thread(folder.size, path)
    (data,) = await asyncio.to_thread(folder.read, path, [(0, size)])
    return data
