"""Folders of backups: their errors name what to do, and nothing about the folders of stores."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kombu_opendata.errors import StoreFull, StoreUnwritable
from kombu_opendata.offline.backup.folders import BackupFolder
from kombu_opendata.staging.folder import LocalFolder


def test_a_refused_backup_does_not_mention_the_folder_of_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreUnwritable) as backup, BackupFolder(tmp_path).errors():
        raise PermissionError(errno.EACCES, "Permission denied", "/backups")
    with pytest.raises(StoreUnwritable) as staged, LocalFolder(tmp_path).errors():
        raise PermissionError(errno.EACCES, "Permission denied", "/store")
    assert staged.value.text.endswith("; a store's folder belongs to the broker's user")
    assert backup.value.text == "/backups can't be used by this user: Permission denied"


def test_a_full_disk_is_an_error_that_ends_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(StoreFull, match=r"run the same command again$"), BackupFolder(tmp_path).errors():
        raise OSError(errno.ENOSPC, "No space left on device", "/backups")
