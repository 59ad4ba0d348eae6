"""Catalogue of the backups in a target: their contents, and the files that none of them needs.

============================  ========================================================================
file                          content
============================  ========================================================================
``backups/<id>.json``         one backup: its files with sizes and checksums, and a checksum of itself
``files/<SHA-256>``           a file of a store; backups share identical files
============================  ========================================================================

The description of a backup is written last, so a backup that was interrupted does not exist.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from ...errors import CorruptRecord, NewerFormat, StoreError
from ...staging.folder import Folder

#: newest form of ``backups/<id>.json`` that this version reads
FORMAT = 1
_BACKUPS, _FILES = "backups", "files"
_NAME = re.compile(rf"{_BACKUPS}/(\d{{8}}T\d{{6}}Z)\.json")


class SavedFile(msgspec.Struct, frozen=True):
    path: str
    bytes: int
    sha256: str


class SavedInstance(msgspec.Struct, frozen=True):
    """Instance of a store at one commit.

    Attributes:
        store_format: the version of the store's format.
        manifest: the number of SlateDB's manifest.
        last_wal: the number of SlateDB's last WAL file; 0 if there is none.
        last_commit: the number of the last record of the journal; 0 if the store has no journal.
        queues: the number of ready, delayed and in-flight messages, by queue.
    """

    store_format: int
    manifest: int
    last_wal: int
    last_commit: int
    queues: dict[str, int]
    files: list[SavedFile]


class Backup(msgspec.Struct, frozen=True):
    """Backup of a store.

    Attributes:
        id: the time at which it began.
        version: the version of the package that created it.
        source: the store, without secrets.
    """

    id: str
    created_at: datetime
    version: str
    source: str
    instances: dict[str, SavedInstance]
    format: int = FORMAT

    @property
    def files(self) -> dict[str, SavedFile]:
        """Files of the backup by checksum."""
        return {file.sha256: file for saved in self.instances.values() for file in saved.files}

    @property
    def bytes(self) -> int:
        return sum(file.bytes for saved in self.instances.values() for file in saved.files)

    @property
    def messages(self) -> int:
        return sum(sum(saved.queues.values()) for saved in self.instances.values())


def file_path(sha256: str) -> str:
    return f"{_FILES}/{sha256}"


class Catalogue:
    def __init__(self, target: Folder) -> None:
        self.target = target

    def ids(self) -> list[str]:
        """Return the ids of the complete backups, oldest first."""
        names = (_NAME.fullmatch(file.path) for file in self.target.files(_BACKUPS))
        return sorted(name[1] for name in names if name is not None)

    def read(self, id: str = "") -> Backup:
        """Return a backup, by default the newest.

        Raises:
            StoreError: there is no such backup.
            CorruptRecord: the backup does not match its checksum.
            NewerFormat: a newer version created the backup.
        """
        ids = self.ids()
        if not ids:
            raise StoreError(f"there is no backup in {self.target.name}", path=self.target.name)
        if id and id not in ids:
            text = f"there is no backup {id} in {self.target.name}: it has {', '.join(ids[-5:])}"
            raise StoreError(text, path=self.target.name)
        path = f"{_BACKUPS}/{id or ids[-1]}.json"
        return _decode(self.target.read_all(path), f"{self.target.name}/{path}")

    def all(self) -> list[Backup]:
        """Return all backups, oldest first; raise as :meth:`read`."""
        return [self.read(id) for id in self.ids()]

    def new_id(self, now: datetime) -> tuple[str, datetime]:
        """Return the id of a new backup, which is later than all others even if the clock is wrong."""
        newest = max(self.ids(), default="")
        seconds = int(now.timestamp())
        while (id := _id(seconds)) <= newest:
            seconds = max(seconds + 1, int(_time(newest).timestamp()) + 1)
        return id, now

    def add(self, backup: Backup) -> None:
        """Write the description of a backup whose files are in place: the backup exists from then on."""
        data = msgspec.json.encode(backup)
        signed = {"sha256": hashlib.sha256(data).hexdigest(), "backup": msgspec.Raw(data)}
        self.target.write(f"{_BACKUPS}/{backup.id}.json", [msgspec.json.encode(signed)])

    def prune(self, keep: int) -> tuple[list[str], int]:
        """Delete all but the newest ``keep`` backups, and the files that no backup needs; return ids and freed bytes.

        Raises:
            CorruptRecord, NewerFormat: a retained backup can't be read, so the unneeded files are unknown.
        """
        ids = self.ids()
        removed, retained = ids[:-keep], ids[-keep:]
        needed = {sha256 for id in retained for sha256 in self.read(id).files}
        for id in removed:
            self.target.delete([f"{_BACKUPS}/{id}.json"])
        freed = 0
        for file in list(self.target.files(_FILES)):
            if file.path.removeprefix(f"{_FILES}/") not in needed:
                self.target.delete([file.path])
                freed += file.bytes
        return removed, freed

    def stored(self) -> dict[str, int]:
        """Return the size of each file in the target, by checksum."""
        return {file.path.removeprefix(f"{_FILES}/"): file.bytes for file in self.target.files(_FILES)}


def _decode(data: bytes, where: str) -> Backup:
    try:
        signed = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        backup = signed["backup"]
        if hashlib.sha256(backup).hexdigest() != msgspec.json.decode(signed["sha256"]):
            raise ValueError("its checksum is wrong")
        raw: dict[str, Any] = msgspec.json.decode(backup)
        if raw.get("format", 0) > FORMAT:
            raise NewerFormat(f"{where} has format {raw['format']}, this version reads up to {FORMAT}: upgrade")
        return msgspec.json.decode(backup, type=Backup)
    except (msgspec.DecodeError, ValueError, KeyError) as exc:
        raise CorruptRecord(f"{where} is damaged: {exc}; use another backup", key=b"", offset=0) from exc


def _id(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%SZ")


def _time(id: str) -> datetime:
    return datetime.strptime(id, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
