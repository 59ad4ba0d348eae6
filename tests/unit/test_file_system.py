"""What a full disk lacks, and what to do about it."""

from __future__ import annotations

import errno
from pathlib import Path

from kombu_opendata.broker.standby.store_lock import fill_reserve, use_reserve
from kombu_opendata.file_system import free_inodes, is_full, remedy

from ..support.disks import small_disk


def use_up(disk: Path, but: int) -> None:
    free = free_inodes(disk)
    assert free is not None
    for number in range(free - but):
        (disk / f"ballast-{number}").touch()
    assert free_inodes(disk) == but


def test_a_file_system_without_inodes_is_named() -> None:
    with small_disk("size=4m", "nr_inodes=50", "mode=700") as disk:
        assert remedy(disk) == "free disk space"
        use_up(disk, but=0)
        assert remedy(disk) == "its file system has no free inodes: delete files there (df -i shows the number)"
        assert is_full(OSError(errno.ENOSPC, ""))
    assert not is_full(OSError(errno.EIO, ""))
    assert remedy("/nowhere") == "free disk space"


def test_the_reserve_is_used_when_inodes_are_short_and_filled_when_there_are_enough() -> None:
    with small_disk("size=4m", "nr_inodes=200", "mode=700") as disk:
        fill_reserve(disk)
        assert len(list((disk / "broker.reserve").iterdir())) == 32
        use_reserve(disk)
        assert len(list((disk / "broker.reserve").iterdir())) == 32
        use_up(disk, but=0)
        use_reserve(disk)
        assert free_inodes(disk) == 32
        fill_reserve(disk)
        assert free_inodes(disk) == 32
