"""Restore of a store from a backup."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from ...errors import CorruptRecord, NewerFormat, PreconditionFailed, RetryLater
from ...private_folder import PrivateFolder
from ...staging.folder import PART_SUFFIX, Folder
from ...storage.records.store_records import FORMAT_VERSION
from ...storage.slatedb.object_store import locate
from ...storage.slatedb.slate_admin import SlateAdmin
from ...url import LOCK_NAME, RESTORE_NAME
from ..files.store_location import StoreLocation, store_url
from ..findings import OnProgress, Progress
from .backup_catalogue import Backup, Catalogue, SavedFile, file_path
from .folders import BackupFolder, open_place

_THREADS = 4
_IGNORED = {LOCK_NAME, RESTORE_NAME + PART_SUFFIX, "lost+found"}


async def restore(target: str, destination: str, id: str = "", *, progress: OnProgress = lambda _: None) -> Backup:
    """Restore a store from a backup. After an interruption, the store is incomplete: repeat the call.

    Args:
        target: the folder or the bucket's URL with the backups.
        destination: a folder or a prefix of a bucket, which has no files.
        id: the id of the backup; empty for the newest.

    Raises:
        PreconditionFailed: there are files at the destination.
        RetryLater: a broker or another restore uses the destination.
        CorruptRecord: a file of the backup is missing or damaged; the text names it.
        NewerFormat: a newer version created the backup.
        StoreFull: no space; the same call continues later.
        StoreError: there is no such backup; a file can't be read or written.
    """
    source, place = open_place(target), open_place(destination)
    backup = Catalogue(source).read(id)
    for name, saved in backup.instances.items():
        if saved.store_format > FORMAT_VERSION:
            text = f"instance {name} of the backup {backup.id} has format {saved.store_format}"
            raise NewerFormat(f"{text}, this version reads up to {FORMAT_VERSION}: upgrade")
    with _alone(place):
        _check_empty(place, backup)
        await asyncio.to_thread(_copy, source, place, backup, progress)
        for name in backup.instances:
            await _forget_checkpoints(StoreLocation(store_url(place.root) if place.root else destination, name))
        place.delete([RESTORE_NAME])
    return backup


@contextlib.contextmanager
def _alone(place: Folder) -> Iterator[None]:
    """Hold the broker's lock on a folder, so that no broker starts on an incomplete store."""
    if not isinstance(place, BackupFolder):
        yield
        return
    folder = PrivateFolder(str(place.root))
    fd = folder.open_file(LOCK_NAME, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise RetryLater(
                f"a broker, or another restore, uses {place.name}: stop it first", path=place.name
            ) from exc
        yield
    finally:
        os.close(fd)
        folder.close()


def _check_empty(place: Folder, backup: Backup) -> None:
    """Raise PreconditionFailed unless the destination is empty, or the same restore was interrupted there."""
    try:
        restored_id = place.read_all(RESTORE_NAME).decode()
    except FileNotFoundError:
        restored_id = ""
    if restored_id and restored_id != backup.id:
        text = f"{place.name} has a part of the backup {restored_id}: restore that one, or remove the files there first"
        raise PreconditionFailed(text, path=place.name)
    if not restored_id:
        existing = next((file.path for file in place.files() if file.path.split("/")[0] not in _IGNORED), None)
        if existing is not None:
            text = f"{place.name} is not empty, it has {existing}: a store is restored into an empty folder or prefix"
            raise PreconditionFailed(text, path=place.name)
        place.write(RESTORE_NAME, [backup.id.encode()])


def _copy(source: Folder, place: Folder, backup: Backup, progress: OnProgress) -> None:
    """Copy all files, the manifests last: without them there is no database."""
    existing = {existing_file.path: existing_file.bytes for existing_file in place.files()}
    files = [file for saved in backup.instances.values() for file in saved.files]
    manifests = [file for file in files if file.path.endswith(".manifest")]

    def copy(file: SavedFile) -> None:
        if existing.get(file.path) == file.bytes and _checksum(place, file.path) == file.sha256:
            return
        place.write(file.path, _checked(source, file))

    with ThreadPoolExecutor(_THREADS, "restore") as pool:
        others = [file for file in files if not file.path.endswith(".manifest")]
        for number, _none in enumerate(pool.map(copy, others)):
            progress(Progress("files", number + 1, len(files)))
    for file in manifests:
        copy(file)


def _checked(source: Folder, file: SavedFile) -> Iterator[bytes]:
    """Iterate over the bytes of a file of a backup.

    Raises:
        CorruptRecord: the bytes differ from those that were saved.
    """
    path = file_path(file.sha256)
    digest, size = hashlib.sha256(), 0
    try:
        for piece in source.stream(path):
            digest.update(piece)
            size += len(piece)
            yield piece
    except FileNotFoundError as exc:
        raise _damaged(source, file, "is missing") from exc
    if size != file.bytes:
        raise _damaged(source, file, f"has {size} bytes instead of {file.bytes}")
    if digest.hexdigest() != file.sha256:
        raise _damaged(source, file, "does not match its checksum")


def _damaged(source: Folder, file: SavedFile, problem: str) -> CorruptRecord:
    text = f"{source.name}/{file_path(file.sha256)}, which is {file.path}, {problem}: restore another backup"
    return CorruptRecord(text, key=b"", offset=0)


def _checksum(place: Folder, path: str) -> str:
    digest = hashlib.sha256()
    for piece in place.stream(path):
        digest.update(piece)
    return digest.hexdigest()


async def _forget_checkpoints(location: StoreLocation) -> None:
    """Remove the checkpoints of the manifest: they name earlier manifests, which are not part of a backup."""
    admin = SlateAdmin(locate(location.url, location.instance, create=False))
    for checkpoint in await admin.checkpoints():
        await admin.delete_checkpoint(checkpoint.id)
