"""Location of a store: a folder or a URL, its instances, and the broker that runs on it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from ...errors import InvalidURL, OpenDataError, StoreError
from ...storage.commit import power_loss
from ...storage.slatedb.object_store import databases
from ...url import DEFAULT_INSTANCE, LOCK_NAME


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Instance of a store.

    Attributes:
        url: the object store's URL for the storage engine.
        instance: the name of the database.
        root: the store's folder; None if it is not local.
    """

    url: str
    instance: str
    root: Path | None = None

    @property
    def database(self) -> Path | None:
        return None if self.root is None else self.root / self.instance

    @property
    def journal(self) -> Path | None:
        """Folder of the journal; it may not exist."""
        return None if self.root is None else self.root / f"{self.instance}.journal"

    @property
    def staged(self) -> Path | None:
        """Folder of staged batches, which may not exist."""
        return None if self.root is None else self.root / f"{self.instance}.staged"

    def __str__(self) -> str:
        return f"{self.root or self.url} (instance {self.instance})"


def find_store(folder_or_url: str | Path, instance: str | None = None) -> StoreLocation:
    """Find a store.

    Args:
        folder_or_url: a folder, ``opendata:///folder``, ``file:///folder``, or a bucket's URL.
        instance: None for the only one, or for ``default`` if there are several.

    Raises:
        StoreError: there is no store, or no such instance; the text lists the existing ones.
        InvalidURL: the URL is that of a broker, or of an unknown kind.
    """
    text = str(folder_or_url)
    if "://" in text and not text.startswith(("opendata:///", "file:///")):
        if text.startswith("opendata"):
            raise InvalidURL(
                f"{text!r} is a broker, not a store: give the store's folder or bucket, or ask the broker", url=text
            )
        return StoreLocation(text, instance or DEFAULT_INSTANCE)
    for scheme in ("opendata://", "file://"):
        if text.startswith(scheme):
            text = unquote(text.removeprefix(scheme))
    root = Path(text).absolute()
    return StoreLocation(store_url(root), _choose(root, instance), root)


def store_url(root: Path) -> str:
    return f"file://{quote(str(root))}"


def instances(root: Path) -> list[str]:
    """Return the names of the databases in a store's folder.

    Raises:
        StoreError: the folder can't be read.
    """
    return sorted(databases(store_url(root)))


def check_readable(location: StoreLocation) -> None:
    """Check that this user may read every file of an instance in a folder; a bucket is not checked.

    Raises:
        StoreError: this user may not read a file.
    """
    database, journal, staged = location.database, location.journal, location.staged
    if database is None or journal is None or staged is None:
        return
    try:
        for path in (power_loss.sync_file(database), *_files(database), *_files(journal), *_files(staged)):
            with contextlib.suppress(FileNotFoundError):
                os.close(os.open(path, os.O_RDONLY))
    except OSError as exc:
        raise StoreError(f"{exc.filename} can't be read: {exc.strerror}", path=str(exc.filename)) from exc


def running_broker(root: Path | None) -> int | None:
    """Return the process on this host that holds the lock on a store's folder; 0 if unknown, None if there is none."""
    if root is None:
        return None
    try:
        status = os.lstat(root / LOCK_NAME)  # not stat: a link could point to any process's lock
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    lock_id = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in locks:
        fields = line.split()
        if "FLOCK" in fields and lock_id in fields:
            return int(fields[4])
    return None


def power_lost(location: StoreLocation) -> bool:
    """Return True if a power loss may have torn the end of the journal; False if the sync point can't be read."""
    database = location.database
    if database is None:
        return False
    try:
        return power_loss.lost_power(database, power_loss.read_sync_point(database), power_loss.current_boot_id())
    except (OSError, OpenDataError):
        return False


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and its subfolders; none if the folder does not exist."""

    def on_error(exc: OSError) -> None:
        if not isinstance(exc, FileNotFoundError):
            raise exc

    for parent, _folders, names in os.walk(folder, onerror=on_error):
        for name in names:
            yield Path(parent, name)


def _choose(root: Path, instance: str | None) -> str:
    if not root.is_dir():
        raise StoreError(f"there is no store at {root}: no such folder", path=str(root))
    names = instances(root)
    if not names:
        raise StoreError(f"there is no store at {root}: the folder has no database", path=str(root), instances=[])
    if instance is None:
        if len(names) == 1:
            return names[0]
        instance = DEFAULT_INSTANCE
    if instance not in names:
        text = f"the store at {root} has no instance {instance!r}: it has {', '.join(names)}"
        raise StoreError(text, path=str(root), instance=instance, instances=names)
    return instance
