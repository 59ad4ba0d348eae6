"""The caches of a database: blocks, indexes and filters in memory; parts of a bucket's tables on a local disk.

A reader and a later writer of the database may share the cache in memory. Files never change and their names are never
reused, so the contents of both remain valid. SlateDB fills the folder on the disk, limits its size, and continues
without it where it can't write or read a part. After a crash of the host a part may be incomplete, as SlateDB does not
sync parts: then the folder is emptied.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
from pathlib import Path
from typing import Any

from ...errors import StoreUnwritable
from ...file_system import boot_id
from . import ffi
from .object_store import Location
from .slate_settings import SlateSettings

#: processes of one host that may cache a database at the same time, as during a take-over
_SLOTS = 8
#: the id of the only database in a cache
_ID = 1
_BLOCKS_IN_A_FOLDER, _BLOCKS_ELSEWHERE = 8 << 20, 32 << 20


class BlockCache:
    """The cache of one database, or none if the settings disable it."""

    def __init__(self, settings: SlateSettings, location: Location) -> None:
        blocks = settings.block_cache_bytes
        if blocks is None:
            blocks = _BLOCKS_ELSEWHERE if location.folder is None else _BLOCKS_IN_A_FOLDER
        indexes = settings.index_cache_bytes
        self._cache = ffi.public().DbCache.new_split_cache(_moka(blocks), _moka(indexes)) if blocks else None

    def join(self, builder: Any) -> None:
        """Connect the database of one of the binding's builders to the cache."""
        if self._cache is not None:
            builder.with_db_cache(self._cache, _ID)
        else:
            builder.with_db_cache_disabled()


def _moka(capacity: int) -> Any:
    u = ffi.public()
    return u.DbCache.new_moka_cache(u.MokaCacheOptions(max_capacity=capacity, time_to_live=None, time_to_idle=None))


class DiskCache:
    """The folder of one database, locked by this process. Another process gets a separate folder.

    Attributes:
        folder: the folder for SlateDB.

    Raises:
        StoreUnwritable: the folder can't be used.
    """

    def __init__(self, root: Path, url: str, database: str) -> None:
        name = hashlib.blake2b(f"{url}\0{database}".encode(), digest_size=8).hexdigest()
        try:
            root.mkdir(mode=0o700, exist_ok=True)  # the folder above must exist: the path may be mistyped
            _check(root)
            number, self._lock = _first_free(root, name)
            self.folder = root / f"{name}-{number}"
            if _changed_boot(self._lock) and self.folder.exists():
                shutil.rmtree(self.folder)
            self.folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as exc:
            text = f"no cache on disk: {root} can't be used: {exc.strerror}; name another folder"
            raise StoreUnwritable(text, folder=str(root)) from exc

    def close(self) -> None:
        """Release the lock, so that another process can use the folder."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _check(root: Path) -> None:
    """Raise StoreUnwritable if another user could change the files in the folder."""
    status = root.stat()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StoreUnwritable(
            f"no cache on disk: {root} must belong to this user, and no other user may write to it: chmod 700 {root}, "
            "or name another folder",
            folder=str(root),
        )


def _first_free(root: Path, name: str) -> tuple[int, int]:
    """Return the number of the first folder that no process uses, and its lock."""
    for number in range(_SLOTS):
        lock = os.open(root / f"{name}-{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return number, lock
    text = f"no cache on disk: {root} is the cache of {_SLOTS} brokers of this store already"
    raise StoreUnwritable(text, folder=str(root))


def _changed_boot(lock: int) -> bool:
    """Return True if the host was booted since the folder was used, so that it may have crashed; record this boot."""
    boot = boot_id().encode()
    before = os.pread(lock, 100, 0)
    os.ftruncate(lock, 0)
    os.pwrite(lock, boot, 0)
    return not boot or before != boot
