"""What can be wrong with a backup, its target and its destination: each is refused, with what to do."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from kombu_opendata.storage.commit.journal_format import complete_records

from ...support import rich_store
from ...support.backups import back_up, command
from ...support.disks import small_disk
from ...support.verified import assert_verified


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bad") / "store"
    rich_store.build(root, tail=True)
    return root


@pytest.fixture
def target(store: Path, tmp_path: Path) -> Path:
    back_up(tmp_path / "backups", store)
    return tmp_path / "backups"


def refused(*arguments: object, code: int, text: str) -> None:
    ended = command(*arguments, ok=False)
    assert ended.exit_code == code, ended.stderr
    assert text in ended.stderr
    assert "Traceback" not in ended.stderr


def largest(target: Path) -> Path:
    return max((target / "files").iterdir(), key=lambda path: path.stat().st_size)


def test_the_source(tmp_path: Path, store: Path) -> None:
    refused("backup", tmp_path / "b", tmp_path / "none", code=1, text="there is no store at")
    refused("backup", tmp_path / "b", store, "--instance", "other", code=1, text="it has default")
    refused("backup", store / "backups", store, code=2, text="must not be in one another")
    refused("backup", store.parent, store, code=2, text="must not be in one another")
    refused("backup", "opendata://host/x", store, code=2, text="neither a folder nor a bucket")


def test_a_damaged_store_makes_no_backup(tmp_path: Path) -> None:
    root = tmp_path / "store"
    rich_store.build(root, tail=True)
    segments = sorted((root / "default.journal").glob("*.journal"))
    data = bytearray(segments[-2].read_bytes())
    records = list(complete_records(bytes(data), int.from_bytes(data[16:24], "little"), 0))
    data[records[-1].end - 1] ^= 1  # another segment follows: this is not a torn end
    segments[-2].write_bytes(data)
    refused("backup", tmp_path / "b", root, code=4, text="verify")
    assert command("backup", tmp_path / "b", "--list").stdout.strip() == "no backups"


def test_a_changed_byte(target: Path, tmp_path: Path) -> None:
    file = largest(target)
    data = bytearray(file.read_bytes())
    data[1000] ^= 1
    file.write_bytes(data)
    refused("restore", target, tmp_path / "r", code=4, text=f"{file}, which is default")
    refused("restore", target, tmp_path / "r", code=4, text="does not match its checksum")


def test_a_truncated_and_a_missing_file(target: Path, tmp_path: Path, store: Path) -> None:
    file = largest(target)
    file.write_bytes(file.read_bytes()[:-1])
    refused("restore", target, tmp_path / "r", code=4, text="bytes instead of")
    file.unlink()
    refused("restore", target, tmp_path / "r", code=4, text="is missing")
    assert back_up(target, store)["copied_files"] == 1  # the next backup needs it, too, and so mends both
    command("restore", target, tmp_path / "other")
    assert_verified(tmp_path / "other")


def test_a_damaged_or_newer_description(target: Path, tmp_path: Path) -> None:
    (description,) = (target / "backups").iterdir()
    good = description.read_text()
    description.write_text(good.replace("default", "defauld"))
    refused("restore", target, tmp_path / "r", code=4, text="its checksum is wrong")
    description.write_text(good[:-20])
    refused("restore", target, tmp_path / "r", code=4, text=f"{description} is damaged")
    inner = json.dumps(json.loads(good)["backup"] | {"format": 2}).encode()
    newer = b'{"sha256":"%s","backup":%s}' % (hashlib.sha256(inner).hexdigest().encode(), inner)
    description.write_bytes(newer)
    refused("restore", target, tmp_path / "r", code=1, text="has format 2, this version reads up to 1: upgrade")
    assert not (tmp_path / "r").exists()


def test_the_destination(target: Path, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir(mode=0o700)
    (tmp_path / "used" / "file").write_text("x")
    refused("restore", target, tmp_path / "used", code=1, text="is not empty, it has file")
    refused("restore", target, tmp_path / "r", "--backup", "20200101T000000Z", code=1, text="there is no backup 2020")
    refused("restore", tmp_path / "none", tmp_path / "r", code=1, text="there is no backup in")


def test_a_mistyped_path(store: Path, target: Path, tmp_path: Path) -> None:
    """As that of a disk which is not mounted: nothing is written below the mount point's place."""
    for arguments in (
        ("backup", tmp_path / "mnt/disk/backups", store),
        ("restore", target, tmp_path / "mnt/disk/new"),
    ):
        refused(*arguments, code=3, text=f"the nearest one that exists is {tmp_path}.")
    assert not (tmp_path / "mnt").exists()


def test_no_space(store: Path, target: Path, tmp_path: Path) -> None:
    with small_disk("size=4m", "mode=0700") as disk:
        refused("backup", disk / "backups", store, code=5, text="free disk space")
        assert command("backup", disk / "backups", "--list").stdout.strip() == "no backups"
        refused("restore", target, disk / "restored", code=5, text="run the same command again")
