"""A store is backed up while it is used or stopped, and what is restored from that verifies and drains."""

from __future__ import annotations

import threading
from pathlib import Path

from kombu_opendata import QueueClient

from ...support.backups import back_up, bodies, command
from ...support.broker import EmbeddedBroker
from ...support.verified import assert_verified


def fill(folder: Path, count: int, first: int = 0) -> list[bytes]:
    sent = [b"%06d" % number for number in range(first, first + count)]
    with QueueClient(f"opendata://{folder}") as client:
        client.create("q")
        client.send_batch("q", sent)
    return sent


def test_a_stopped_store_comes_back_with_all_its_messages(store_folder: Path, tmp_path: Path) -> None:
    store, target, restored = store_folder / "store", tmp_path / "backups", store_folder / "restored"
    sent = fill(store, 500)
    EmbeddedBroker(store).terminate()
    made = back_up(target, store)
    assert made["instances"]["default"]["queues"] == {"q": 500}
    command("restore", target, restored)
    assert_verified(restored)
    assert sorted(bodies(restored, "q")) == sent
    EmbeddedBroker(restored).terminate()
    assert sorted(bodies(store, "q")) == sent  # the original is untouched


def test_a_live_store_is_copied_with_all_that_was_confirmed_before(store_folder: Path, tmp_path: Path) -> None:
    """Also what is in the journal only, and while a client publishes and acknowledges all the time."""
    store, target, restored = store_folder / "store", tmp_path / "backups", store_folder / "restored"
    sent = fill(store, 300)
    ended = threading.Event()
    later: list[bytes] = []

    def publish() -> None:
        with QueueClient(f"opendata://{store}") as client:
            while not ended.is_set():
                body = b"later %06d" % len(later)
                client.send("q", body)
                later.append(body)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        for _ in range(3):
            confirmed = sent + list(later)
            back_up(target, store)
    finally:
        ended.set()
        thread.join()
    command("restore", target, restored)
    assert_verified(restored)
    found = bodies(restored, "q")
    assert len(found) == len(set(found))
    assert set(confirmed) <= set(found) <= set(sent + later)
    # what follows the confirmed ones is what was published next, without a hole
    assert sorted(found) == sorted(sent + later)[: len(found)]


def test_only_what_is_new_is_copied_and_what_no_backup_needs_is_removed(store_folder: Path, tmp_path: Path) -> None:
    store, target = store_folder / "store", tmp_path / "backups"
    fill(store, 2000)
    EmbeddedBroker(store).terminate()
    first = back_up(target, store)
    again = back_up(target, store)
    assert (again["copied_files"], again["copied_bytes"]) == (0, 0)
    fill(store, 10, 2000)
    EmbeddedBroker(store).terminate()
    more = back_up(target, store)
    assert 0 < more["copied_bytes"] < first["copied_bytes"]
    last = back_up(target, store, "--keep", "1")
    assert last["deleted"] == [first["id"], again["id"], more["id"]]
    files = {path.stat().st_size for path in (target / "files").iterdir()}
    assert sum(files) <= last["bytes"]
    restored = store_folder / "restored"
    command("restore", target, restored)
    assert len(bodies(restored, "q")) == 2010
