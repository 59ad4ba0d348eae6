"""The store's folder goes away under a running broker."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..support.broker import EmbeddedBroker
from ..support.kombu_client import connected
from ..support.processes import children, is_running, tail, wait_until
from ..support.served import ServedBroker


def is_removed(folder: Path) -> bool:
    """Remove it; a broker may write a file meanwhile, so it may take another try."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def test_a_broker_whose_store_was_deleted_ends_and_answers_for_nothing_more(store_folder: Path) -> None:
    store = store_folder / "store"
    broker = EmbeddedBroker(store)
    with connected(f"opendata://{store}") as connection:
        connection.SimpleQueue("q").put("one")
        first = broker.wait_up()
        wait_until(lambda: is_removed(store), 60, "end of the folder")
        wait_until(lambda: not is_running(first), 60, f"end of process {first}")
        wait_until(lambda: is_removed(store), 60, "end of the folder")  # with what the broker wrote as it ended
        queue = connection.SimpleQueue("q")  # declares it in the new store
        queue.put("two")
        assert broker.wait_up() != first
        assert queue.qsize() == 1


def test_a_folder_that_was_replaced_is_not_written_to(store_folder: Path, tmp_path: Path) -> None:
    store = store_folder / "store"
    with children() as started:
        served = ServedBroker(tmp_path, "--store", f"file://{store}", "--listen", "tcp:127.0.0.1:0")
        started.add(served)
        store.rename(store_folder / "moved")
        store.mkdir()
        (store / "broker.lock").touch()
        assert served.wait(60) == 1
        assert "deleted or replaced while the broker ran" in tail(served.log)
        assert [path.name for path in store.iterdir()] == ["broker.lock"]
