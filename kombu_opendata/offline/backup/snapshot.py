"""Snapshot of one instance of a store at one commit: the files of SlateDB, the journal and staged batches.

SlateDB's files never change once they are in place. A checkpoint in its manifest keeps them while they are copied, and
the batches with them (:meth:`kombu_opendata.storage.operations.staged_jobs.Staging.remove_unneeded`). Neither the
broker nor its clients therefore wait for a backup. The order of the steps makes the files consistent:

1. The checkpoint's manifest names the tables, and the WAL file after which SlateDB replays the WAL.
2. The WAL's files are listed, up to the last existing one.
3. The journal is read. It has all previous commits that these WAL files lack, unless segments were released since
   step 2: then steps 2 and 3 are repeated.
4. The batches are listed, which include all that a committed job names.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

from ...errors import CorruptRecord, StoreChanged, StoreError
from ...staging.batch_format import FILE_NAME
from ...staging.folder import Folder, FolderEntry
from ...storage.commit import journal_format
from ...storage.slatedb.object_store import locate
from ...storage.slatedb.slate_admin import SlateAdmin
from ..records.offline_store import OfflineStore
from .backup_catalogue import SavedFile, SavedInstance

_TRIES = 5
_WAL = re.compile(r"(\d{20})\.sst")

#: writes bytes to the target
Keep = Callable[[str, bytes], SavedFile]
#: copies two lists of files to the target. The content of a file in the first list is determined by its name, so it is
#: not read if a backup has it. The content of a file in the second list may differ from that of an earlier store
Copy = Callable[[list[FolderEntry], list[FolderEntry]], list[SavedFile]]


async def save_instance(
    store: OfflineStore, source: Folder, keep: Keep, copy: Copy, queues: dict[str, int]
) -> SavedInstance:
    """Save the files of an open store. The journal's are read immediately, because the broker reuses them.

    Raises:
        StoreChanged: the broker wrote too fast for each attempt; try again.
        CorruptRecord: files are missing or damaged.
    """
    location = store.location
    admin = SlateAdmin(locate(location.url, location.instance, create=False))
    manifest_id = store.hold.manifest_id if store.hold is not None else None
    manifest = await admin.manifest(manifest_id)
    if manifest is None:
        raise StoreChanged(f"the manifest of {location} was replaced; try again")
    name = location.instance
    tables = {f"{name}/compacted/{id}.sst" for id in manifest.tables}
    stable = [file for file in source.files(f"{name}/compacted") if file.path in tables]
    if missing := tables - {file.path for file in stable}:
        raise _damaged(f"{min(missing)} is missing")
    (manifest_file,) = [
        file for file in source.files(f"{name}/manifest") if file.path.endswith(f"/{manifest.id:020d}.manifest")
    ]
    for _ in range(_TRIES):
        before = _segments(location.journal)
        wal = _wal(source, name, manifest.replay_after_wal)
        journal = _read_journal(store, before, keep)
        if journal is not None:
            break
    else:
        raise StoreChanged(f"the journal of {location} was released {_TRIES} times while it was read; try again")
    for file in source.files(f"{name}.staged"):
        if FILE_NAME.fullmatch(file.path.removeprefix(f"{name}.staged/")) and not file.path.endswith(".part"):
            stable.append(file)
    saved, last_commit = journal
    files = [*saved, *await asyncio.to_thread(copy, stable, [manifest_file, *wal])]
    assert store.header is not None
    last_wal = manifest.replay_after_wal + len(wal)
    return SavedInstance(store.header.format_version, manifest.id, last_wal, last_commit, queues, files)


def _wal(source: Folder, name: str, after: int) -> list[FolderEntry]:
    """Return the WAL files that SlateDB replays."""
    numbered = {
        int(match[1]): file
        for file in source.files(f"{name}/wal")
        if (match := _WAL.fullmatch(file.path.rpartition("/")[2])) is not None
    }
    numbers = sorted(number for number in numbered if number > after)
    if numbers and numbers[-1] != after + len(numbers):
        raise _damaged(f"of the WAL files {after + 1} to {numbers[-1]} of {name} some are missing")
    return [numbered[number] for number in numbers]


# ---- the journal
def _segments(folder: Path | None) -> list[Path]:
    return sorted(folder.glob("*.journal")) if folder is not None and folder.is_dir() else []


def _read_journal(store: OfflineStore, before: list[Path], keep: Keep) -> tuple[list[SavedFile], int] | None:
    """Save the complete records of each segment; return the files, and the number of the last record.

    Return None if the broker changed the journal during the call so that it must be read again.
    """
    saved: list[SavedFile] = []
    last_commit = 0
    folder = store.location.journal
    position = store.journal.position if store.journal is not None else 0
    paths = _segments(folder)
    for path, following in zip(paths, [*paths[1:], None], strict=False):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise StoreError(f"{path} can't be read: {exc.strerror}", path=str(path)) from exc
        header = journal_format.parse_header(data)
        if header is None or header.version > journal_format.VERSION:
            if not path.exists():
                return None
            raise _damaged(f"{path} does not begin with a journal header that this version knows")
        last, end = header.first - 1, journal_format.HEADER_BYTES
        for record in journal_format.complete_records(data, header.first, position, _first(following)):
            if record.sequence != last + 1 and record.sequence > position + 1:
                if store.broker_pid is not None:
                    return None  # the broker is writing the record before this one
                break  # torn by a power loss: the store could be opened
            last, end = record.sequence, record.end
        if saved and header.first != last_commit + 1:
            if not before or not path.exists() or not before[0].exists():
                return None
            raise _damaged(f"records {last_commit + 1} to {header.first - 1} are missing before {path}")
        last_commit = last
        assert folder is not None
        saved.append(keep(f"{folder.name}/{path.name}", data[:end]))
    return (saved, last_commit) if all(path.exists() for path in before) else None


def _first(path: Path | None) -> int | None:
    """Return the number of a segment's first record; None if the segment no longer exists."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            header = journal_format.parse_header(file.read(journal_format.HEADER_BYTES))
    except FileNotFoundError:
        return None
    return header.first if header is not None else None


def _damaged(problem: str) -> CorruptRecord:
    return CorruptRecord(f"{problem}: the store is damaged; verify it and restore an earlier backup", key=b"", offset=0)
