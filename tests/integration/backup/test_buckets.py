"""Backups to, from and between buckets, on an S3 server in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.errors import RetryLater
from kombu_opendata.offline.backup import folders
from kombu_opendata.offline.backup.folders import open_place

from ...support.backups import back_up, bodies, command, drained
from ...support.broker import EmbeddedBroker
from ...support.processes import Children, children
from ...support.s3 import BUCKET, S3
from ...support.served import ServedBroker
from ...support.verified import assert_verified

pytest.importorskip("obstore", reason="obstore is not installed: pip install kombu-opendata[objectstore]")


@pytest.fixture(scope="module")
def processes() -> Iterator[Children]:
    with children() as started:
        yield started


def served(processes: Children, folder: Path, name: str) -> ServedBroker:
    broker = ServedBroker(folder, "--store", f"s3://{BUCKET}/{name}", "--listen", "tcp:127.0.0.1:0")
    processes.add(broker)
    return broker


def test_from_a_live_bucket_to_a_folder_and_through_a_bucket_back(
    s3: S3, processes: Children, store_folder: Path, tmp_path: Path
) -> None:
    broker = served(processes, tmp_path, "live")
    sent = [b"%06d" % number for number in range(300)]
    with QueueClient(f"opendata://127.0.0.1:{broker.port}") as client:
        client.create("q")
        client.send_batch("q", sent)
        made = back_up(tmp_path / "backups", f"s3://{BUCKET}/live")
        assert made["instances"]["default"]["queues"] == {"q": 300}
        client.send("q", b"later")
        back_up(f"s3://{BUCKET}/backups", f"s3://{BUCKET}/live")
    restored = store_folder / "from-folder"
    command("restore", tmp_path / "backups", restored)
    assert_verified(restored)
    assert sorted(bodies(restored, "q")) == sent
    EmbeddedBroker(restored).terminate()
    restored = store_folder / "from-bucket"
    command("restore", f"s3://{BUCKET}/backups", restored)
    assert_verified(restored)
    assert sorted(bodies(restored, "q")) == [*sent, b"later"]


def test_a_folder_moves_into_a_bucket(s3: S3, processes: Children, store_folder: Path, tmp_path: Path) -> None:
    store, target = store_folder / "store", f"s3://{BUCKET}/of-folder"
    sent = [b"%06d" % number for number in range(300)]
    with QueueClient(f"opendata://{store}") as client:
        client.create("q")
        client.send_batch("q", sent)
        back_up(target, store)  # with messages that are in the journal only
    assert "300" in command("backup", target, "--list").stdout
    command("restore", target, f"s3://{BUCKET}/moved")
    broker = served(processes, tmp_path, "moved")
    assert sorted(drained(f"opendata://127.0.0.1:{broker.port}", "q")) == sent
    broker.terminate()
    command("verify", f"s3://{BUCKET}/moved")
    refused = command("restore", target, f"s3://{BUCKET}/moved", ok=False)
    assert refused.exit_code == 1
    assert "is not empty" in refused.stderr


def test_two_backups_at_once(s3: S3, tmp_path: Path) -> None:
    """The second one is refused, unless the first one is dead."""
    locked = partial(folders.locked, renew_seconds=0.2, watch_seconds=2.0)
    for target in (open_place(f"s3://{BUCKET}/backups"), open_place(str(tmp_path / "backups"))):
        with locked(target) as check:
            with pytest.raises(RetryLater, match=r"another backup.*writes to"), locked(target):
                pass
            check()
    with locked(target := open_place(f"s3://{BUCKET}/backups")) as check:
        target.write("backup.lock", [b"other host, pid 1; 1"])  # who took it over and died
        with locked(target), pytest.raises(RetryLater):
            check()
