"""Locations of backups and stores, and the lock of a target: two backups could delete files of each other.

In a folder the lock is an flock. In a bucket it is an object that the backup rewrites periodically. A backup that finds
such an object watches it for ``WATCH_SECONDS``, and takes the lock over if the object does not change.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

from ...errors import InvalidURL, RetryLater, StoreError
from ...masking import masked
from ...private_folder import make_folder
from ...staging.bucket_folder import BucketFolder
from ...staging.folder import Folder, LocalFolder

log = logging.getLogger(__name__)

_NAME = "backup.lock"
#: interval of rewriting the lock's object, and time for which another backup watches it
RENEW_SECONDS, WATCH_SECONDS = 10.0, 45.0

#: raises RetryLater if another backup has taken over
Check = Callable[[], None]


class BackupFolder(LocalFolder):
    """Folder with backups, or with a store."""

    _retry, _owner = "run the same command again", ""

    def check_parent(self) -> None:
        make_folder(str(self.root))


def open_place(text: str) -> Folder:
    """Return the location that a folder's name or a bucket's URL names.

    Raises:
        InvalidURL: the text names neither.
        StoreError: a package is missing, or the settings in the environment are invalid.
    """
    for scheme in ("opendata://", "file://"):
        if text.startswith(f"{scheme}/"):
            return BackupFolder(Path(unquote(text.removeprefix(scheme))))
    if "://" not in text:
        return BackupFolder(Path(text).absolute())
    if text.startswith(("opendata", "memory:", "file:")):
        raise InvalidURL(f"{masked(text)!r} is neither a folder nor a bucket: use /folder or s3://bucket/prefix")
    return BucketFolder(text, {})


# ---- the lock
@contextlib.contextmanager
def locked(
    target: Folder, *, renew_seconds: float = RENEW_SECONDS, watch_seconds: float = WATCH_SECONDS
) -> Iterator[Check]:
    """Hold the lock of a target.

    Raises:
        RetryLater: another backup holds it.
    """
    if isinstance(target, BucketFolder):
        with _object(target, renew_seconds, watch_seconds) as check:
            yield check
    elif isinstance(target, BackupFolder):
        with _flock(target):
            yield lambda: None


@contextlib.contextmanager
def _flock(target: BackupFolder) -> Iterator[None]:
    with target.errors():
        target.make_folder(target.root)
    fd = os.open(target.root / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise _in_use(target, "") from exc
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def _object(target: BucketFolder, renew_seconds: float, watch_seconds: float) -> Iterator[Check]:
    owner = f"{platform.node()}, pid {os.getpid()}"
    version = _take(target, owner, watch_seconds)
    lost = False
    end = threading.Event()

    def renew() -> None:
        nonlocal version, lost
        while not lost and not end.wait(renew_seconds):
            try:
                new_version = target.put_if(_NAME, _content(owner), version)
            except StoreError as exc:
                log.warning("the lock on %s could not be renewed: %s", target.name, exc.text)
            else:
                lost, version = new_version is None, new_version or version

    def check() -> None:
        if lost:
            raise _in_use(target, "")

    thread = threading.Thread(target=renew, name="backup lock", daemon=True)
    thread.start()
    try:
        yield check
    finally:
        end.set()
        thread.join()
        if not lost:
            target.delete([_NAME])


def _take(target: BucketFolder, owner: str, watch_seconds: float) -> dict[str, str]:
    """Write the lock's object when no other backup renews it; return its version."""
    previous, until = None, 0.0
    while True:
        current = target.read_version(_NAME)
        if current is None or (current == previous and time.monotonic() > until):
            version = target.put_if(_NAME, _content(owner), current[1] if current is not None else None)
            if version is not None:
                return version
        elif previous is not None and current != previous:
            raise _in_use(target, current[0].decode(errors="replace").partition(";")[0])
        elif previous is None:
            previous, until = current, time.monotonic() + watch_seconds
            log.warning("a backup was interrupted, or writes to %s: wait for %g s to see", target.name, watch_seconds)
        time.sleep(1)


def _content(owner: str) -> bytes:
    """Return the object's bytes, which differ each time: some buckets distinguish versions only by their content."""
    return f"{owner}; {secrets.token_hex(8)}".encode()


def _in_use(target: Folder, owner: str) -> RetryLater:
    text = f"another backup{f' ({owner})' if owner else ''} writes to {target.name}: wait for it"
    return RetryLater(text, path=target.name)
