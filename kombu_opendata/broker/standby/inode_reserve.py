"""The reserve of inodes: empty files that a broker deletes if it can't start without them.

SlateDB and the journal create files when a broker opens a store. On a file system without a free inode, this would
fail, although few files are needed, and most of them are deleted again. With the reserve, the broker starts, consumers
continue, and publishes are refused once the journal is full, as on a full disk.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from ...file_system import free_inodes

log = logging.getLogger(__name__)

_FOLDER = "broker.reserve"
#: a startup needs about 15
_FILES = 32


def use_reserve(store: Path) -> None:
    """Delete the reserve if the store's file system has fewer free inodes than that."""
    free = free_inodes(store)
    if free is None or free >= _FILES:
        return
    count = 0
    for number in range(_FILES):
        with contextlib.suppress(OSError):
            (store / _FOLDER / str(number)).unlink()
            count += 1
    log.warning(
        "the file system of %s has only %d free inodes: delete files there (df -i shows the number); until then, "
        "publishes may be refused. The broker's reserve of %d inodes is used", store, free, count,
    )  # fmt: skip


def fill_reserve(store: Path) -> None:
    """Create the missing files of the reserve, if that leaves twice as many inodes free."""
    free = free_inodes(store)
    if free is None or free < 3 * _FILES:
        return
    with contextlib.suppress(OSError):
        (store / _FOLDER).mkdir(mode=0o700, exist_ok=True)
        for number in range(_FILES):
            (store / _FOLDER / str(number)).touch(mode=0o600)
