"""The file system of a folder is that of the innermost mount above it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kombu_opendata.broker.standby import shared_file_systems
from kombu_opendata.broker.standby.shared_file_systems import check_file_system, file_system
from kombu_opendata.errors import StartError, StoreUnwritable

MOUNTS = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
42 27 0:50 / /srv rw,relatime shared:1 master:2 - nfs4 10.0.0.1:/srv rw,vers=4.2
43 42 254:1 / /srv/local rw,relatime - xfs /dev/vdb rw
44 27 0:51 / /mnt/my\040disk rw,relatime - fuse.sshfs user@host:/ rw
45 27 0:52 / /over rw,relatime - ext4 /dev/vdc rw
46 45 0:53 / /over rw,relatime - cifs //host/share rw
47 27 0:54 / /memory rw,relatime - tmpfs tmpfs rw
48 27 0:55 / /odd rw,relatime - fuse.own host rw
49 27 0:56 / /juice rw,relatime - fuse.JuiceFS host rw
""".lstrip()
TYPES = {
    "/": "ext4", "/srv": "nfs4", "/srv/queue/deep": "nfs4", "/srv/local/queue": "xfs", "/srvice": "ext4",
    "/mnt/my disk/queue": "fuse.sshfs", "/mnt/my": "ext4", "/over/queue": "cifs", "/memory/q": "tmpfs",
}  # fmt: skip


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    file = tmp_path / "mountinfo"
    file.write_text(MOUNTS)
    return file


@pytest.mark.parametrize(("folder", "kind"), TYPES.items())
def test_the_innermost_and_latest_mount_counts(mounts: Path, folder: str, kind: str) -> None:
    assert file_system(Path(folder), mounts) == kind


@pytest.mark.parametrize("folder", ["/srv/queue", "/mnt/my disk/queue", "/over/queue", "/juice"])
def test_what_several_hosts_can_mount_is_refused(mounts: Path, folder: str) -> None:
    with pytest.raises(StoreUnwritable, match=r"which other hosts can mount.*Use a local disk.*or a bucket") as caught:
        check_file_system(Path(folder), mounts)
    assert isinstance(caught.value, StartError)
    assert caught.value.values["file_system"] in caught.value.text


def test_a_link_leads_to_the_file_system_of_its_target(mounts: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/srv/queue")
    assert file_system(tmp_path / "link", mounts) == "nfs4"


def test_what_is_in_memory_or_unknown_is_warned_about(mounts: Path, caplog: pytest.LogCaptureFixture) -> None:
    check_file_system(Path("/memory/queue"), mounts)
    check_file_system(Path("/odd/queue"), mounts)
    assert ["lost when the machine restarts" in caplog.messages[0], "no other host" in caplog.messages[1]] == [True] * 2
    caplog.clear()
    check_file_system(Path("/srv/local/queue"), mounts)
    check_file_system(Path("/queue"), mounts)
    assert not caplog.messages


def test_a_system_without_a_list_of_mounts(tmp_path: Path) -> None:
    mounts = tmp_path / "none"
    assert file_system(Path("/srv"), mounts) == ""
    check_file_system(Path("/srv"), mounts)


def test_the_types_are_each_of_one_kind() -> None:
    kinds = shared_file_systems._SHARED, shared_file_systems._LOCAL, shared_file_systems._IN_MEMORY
    assert sum(map(len, kinds)) == len(frozenset.union(*kinds))
