"""Remote control and events go through transient queues, which are memory of the broker. More is in test_pools.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.client.connection_options import default_name

from ..support.broker import EmbeddedBroker, Watch
from ..support.farm import Farm, Heard
from ..support.ledger import Ledger
from ..support.processes import Children, children, wait_until
from ..support.workers import Worker, sender

TRANSIENT = ("pidbox", "celeryev", "reply")


@pytest.fixture(scope="module")
def worked(module_store_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    url = f"opendata://{module_store_folder}"
    with children() as started, sender(url) as app:
        options = ["-E", "--heartbeat-interval=1"]
        worker = Worker(url, tmp_path_factory.mktemp("worker"), "worker", *options, pool="prefork")
        started.add(worker)
        worker.wait_ready()
        yield Farm(app, worker, EmbeddedBroker(module_store_folder))
        assert worker.terminate() == 0
        assert "Traceback" not in worker.log.read_text()


def test_a_revoked_task_does_not_run(worked: Farm, ledger: Ledger, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    worked.send("hold", str(ledger), "held", str(gate))
    ledger.wait_for("held began")
    revoked = worked.send("note", str(ledger), "revoked")
    worked.send("note", str(ledger), "after it")
    assert worked.control("revoke", revoked)["ok"]
    assert worked.inspect("revoked") == [revoked]
    gate.touch()
    ledger.wait_for("after it")
    worked.broker.wait_queue("celery", 0, 0)
    ledger.assert_once(["held began", "held ended", "after it"])


def test_the_connections_of_a_worker_have_its_node_name(worked: Farm, ledger: Ledger) -> None:
    worked.send("note", str(ledger), "named")
    worked.broker.wait_queue("celery", 0, 0)
    with QueueClient(f"opendata://{worked.broker.folder}", name="looks") as client:
        names = [one.name for one in client.workers()]
        assert names.count("worker@test") >= 2
        assert set(names) == {"worker@test", "looks", default_name()}, "the last one is this process"
        wait_until(lambda: bool(client.list_attempts(limit=1).items), 60, "the attempt in the history")
        assert client.list_attempts(limit=1).items[0].consumer == "worker@test"


def test_an_idle_worker_commits_nothing(worked: Farm) -> None:
    watch = Watch(worked.broker.folder)
    try:
        with Heard(worked.app) as heard:
            wait_until(heard.heartbeats, 60, "a heartbeat")
            before = watch.report()
            already = heard.heartbeats()
            wait_until(lambda: heard.heartbeats() >= already + 3, 60, "three more heartbeats")
            after = watch.report()
    finally:
        watch.close()
    assert after["published"] >= before["published"] + 3, "the heartbeats went through the broker"
    assert after["commits"] == before["commits"]


@pytest.mark.parametrize("end", ["shutdown", "kill"])
def test_no_transient_queue_outlives_its_worker(
    end: str, store_folder: Path, broker_url: str, tmp_path: Path, started: Children
) -> None:
    worker = Worker(broker_url, tmp_path, "worker", "-E")
    started.add(worker)
    worker.wait_ready()
    broker = EmbeddedBroker(store_folder)
    with sender(broker_url) as app, Heard(app) as heard:
        worked = Farm(app, worker, broker)
        assert worked.inspect("ping") == {"ok": "pong"}
        wait_until(lambda: heard.events, 60, "an event")
        assert broker.report()["transient_queues"] >= 2, "the worker's pidbox and the receiver's queue"
        if end == "shutdown":
            app.control.shutdown(destination=[worker.name])
            assert worker.wait(30) == 0
        else:
            worker.kill()
    wait_until(lambda: broker.report()["transient_queues"] == 0, 60, lambda: str(broker.report()))
    with sender(broker_url) as app, app.connection_for_read() as connection:
        bindings = connection.default_channel.list_bindings()
    assert [found for found in bindings if any(word in found[0] for word in TRANSIENT)] == []
