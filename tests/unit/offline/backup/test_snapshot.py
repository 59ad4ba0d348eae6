"""A snapshot reads the journal again when its segments change during the read."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

from kombu_opendata.offline import open_store
from kombu_opendata.offline.backup.backup_catalogue import SavedFile
from kombu_opendata.offline.backup.folders import BackupFolder
from kombu_opendata.offline.backup.snapshot import save_instance
from kombu_opendata.staging.folder import FolderEntry
from kombu_opendata.storage.commit.journal import Journal
from kombu_opendata.storage.commit.journal_format import HEADER_BYTES, RECORD_BYTES

from ....support.engine import nothing, run


def segments(folder: Path, position: int) -> list[Path]:
    """Three segments with one record each, the first of which follows this position."""
    payload = b"payload"
    journal = Journal(folder, segment_bytes=HEADER_BYTES + RECORD_BYTES + len(payload), sync=False)
    assert not list(journal.replay(position))
    journal.start()
    for _ in range(3):
        journal.append(payload)
    journal.close()
    return sorted(folder.glob("*.journal"))


class BeginningJournal(BackupFolder):
    """A store whose journal has no segment when it is listed first; the second segment is listed last."""

    def __init__(self, root: Path, journal: Path, new: list[Path]) -> None:
        super().__init__(root)
        self.journal, self.steps = journal, [[new[0], new[2]], [new[1]]]

    def files(self, under: str = "") -> Iterator[FolderEntry]:
        if under == "default/wal":
            for path in self.steps.pop(0) if self.steps else ():
                shutil.copy(path, self.journal)
        return super().files(under)


def test_a_journal_that_began_after_it_was_listed_is_read_again(tmp_path: Path) -> None:
    root, journal = tmp_path / "store", tmp_path / "store" / "default.journal"
    run(root, nothing)
    for path in journal.iterdir():
        path.unlink()
    saved: dict[str, int] = {}

    def keep(path: str, data: bytes) -> SavedFile:
        saved[path] = len(data)
        return SavedFile(path, len(data), "")

    async def main() -> int:
        async with await open_store(root) as store:
            assert store.journal is not None
            position = store.journal.position
            source = BeginningJournal(root, journal, segments(tmp_path / "new", position))
            made = await save_instance(store, source, keep, lambda _stable, _others: [], {})
            assert not source.steps
        return made.last_commit - position

    assert asyncio.run(main()) == 3
    assert len(saved) == 3
