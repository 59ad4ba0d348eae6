"""Stores that the previous version wrote are opened, verified, served and backed up by this one.

``app`` was filled by clients (:mod:`tests.support.apps.fill_store`), ``rich`` by the engine
(:mod:`tests.support.rich_store`). The broker of both was killed, so a part of each is in the journal only.
"""

from __future__ import annotations

import tarfile
from collections import Counter
from pathlib import Path

from celery import Celery

from kombu_opendata import QueueClient
from kombu_opendata.client.result_client import ResultClient
from kombu_opendata.url import parse

from ..support.apps.fill_store import STAGED
from ..support.backups import back_up, bodies, command
from ..support.broker import EmbeddedBroker
from ..support.verified import assert_verified

STORES = Path(__file__).with_name("previous_store.tar.xz")
#: what waits, or waits again because the lease of who held it is over
WAITING = {
    "by-header": 1, "by-topic": 1, "dead": 6, "delayed": 1, "held": 5, "large-amounts": 9, "plain": 23,
    "staged": STAGED,
}  # fmt: skip


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(STORES) as stores:
        members = [member for member in stores if member.name.split("/")[0] == name]
        stores.extractall(folder, members, filter="data")
    (folder / name).chmod(0o700)
    return folder / name


def check(store: Path) -> None:
    """Its broker has all that the previous one had."""
    with QueueClient(f"opendata://{store}") as client:
        settled = client.metrics("settled")
        assert (settled.done, settled.failed, settled.archived_failed) == (4, 5, 1)
        ids = [one.id for one in client.iter_by_state("settled", "failed")]
        assert len(ids) == 5
        client.redrive("settled", ids=ids[:1])
        assert client.read("settled")[0].body.startswith(b"settled ")
        assert client.send("plain", b"new") > max(ids)
    app = Celery(broker=f"opendata://{store}", backend=f"opendata://{store}", set_as_current=False)
    assert [app.AsyncResult(f"task-{number}").get(timeout=60) for number in range(3)] == [
        {"number": number} for number in range(3)
    ]  # fmt: skip
    found = {queue: bodies(store, queue) for queue in WAITING}
    counts = Counter({queue: len(waiting) for queue, waiting in found.items()})
    counts["plain"] -= 1
    assert counts == WAITING
    assert b"large " + bytes(200_000) in found["plain"]
    assert set(found["staged"]) == {b"staged %d" % number for number in range(STAGED)}
    assert b"last" in found["plain"]


def test_what_clients_stored(store_folder: Path) -> None:
    store = unpacked("app", store_folder)
    report = assert_verified(store)
    assert report.messages == 347
    check(store)
    EmbeddedBroker(store).terminate()
    assert_verified(store)


def test_its_backup(store_folder: Path, tmp_path: Path) -> None:
    store = unpacked("app", store_folder)
    back_up(tmp_path / "backups", store)
    command("restore", tmp_path / "backups", store_folder / "restored")
    check(store_folder / "restored")


def test_what_the_engine_stored(store_folder: Path) -> None:
    """Also dead letters that wait to be sent, a chord that is open, and results in chunks."""
    store = unpacked("rich", store_folder)
    assert assert_verified(store).messages == 68
    broker = EmbeddedBroker(store)
    results = ResultClient([parse(f"opendata://{store}")])
    assert results.get([b"large"]) == [bytes(2_500_000)]
    results.close()
    with QueueClient(f"opendata://{store}") as client:
        assert client.metrics("settled").failed + client.metrics("settled").done <= 24
        assert b"shared" in bodies(store, "a")
    broker.terminate()
    assert_verified(store)
