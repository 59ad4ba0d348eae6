"""Flower, as a user starts it with ``celery opendata flower``, sees the workers, tasks and queues of this broker."""

from __future__ import annotations

import html
import re
import urllib.error
from pathlib import Path

import pytest

from kombu_opendata import QueueClient

from ..support.broker import EmbeddedBroker
from ..support.certificates import Authority
from ..support.farm import Farm
from ..support.flower import PATIENCE_SECONDS, Flower
from ..support.ledger import Ledger
from ..support.processes import Children, tail, wait_until
from ..support.served import ServedBroker
from ..support.users import user_table, write_users
from ..support.workers import Worker, sender
from .compatibility import Row


class PlainFlower(Flower):
    """Flower without this broker's command."""

    command = ("flower",)


COMPATIBILITY = Row(
    package="flower",
    tried="workers, tasks, control, the API, metrics, the broker tab; users, TLS, a broker that restarts",
    result="Everything works. Started by `celery -A app flower`, the broker tab and `/api/queues/length` answer 404 "
    "([patch](upstream/flower.md)).",
    settings="`celery -A app opendata flower` instead of `celery -A app flower`",
)


def test_flowers_own_command_knows_no_queues(broker_url: str, tmp_path: Path, started: Children) -> None:
    started.add(worker := Worker(broker_url, tmp_path, "worker", "-E"))
    worker.wait_ready()
    started.add(flower := PlainFlower(broker_url, tmp_path))
    flower.wait_ready()
    wait_until(lambda: worker.name in flower.api("workers?refresh=1"), PATIENCE_SECONDS, lambda: tail(flower.log))
    for path in ("/broker", "/api/queues/length"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            flower.read(path)
    assert flower.terminate() == 0


def test_flower_shows_workers_and_tasks(store_folder: Path, broker_url: str, tmp_path: Path, started: Children) -> None:
    ledger = Ledger(tmp_path / "ran.txt")
    worker = Worker(broker_url, tmp_path, "worker", "-E", "--heartbeat-interval=1")
    started.add(worker)
    worker.wait_ready()
    flower = Flower(broker_url, tmp_path)
    started.add(flower)
    flower.wait_ready()
    with sender(broker_url) as app:
        farm = Farm(app, worker, EmbeddedBroker(store_folder))
        wait_until(lambda: worker.name in flower.api("workers?refresh=1"), PATIENCE_SECONDS, lambda: tail(flower.log))
        # It listens to events by now: the worker's heartbeats reach its metrics.
        online = f'flower_worker_online{{worker="{worker.name}"}} 1.0'
        wait_until(lambda: online in flower.read("/metrics"), PATIENCE_SECONDS, lambda: flower.read("/metrics"))
        task_id = farm.send("note", str(ledger), "seen")
        ledger.wait_for("seen")
        wait_until(
            lambda: flower.api("tasks").get(task_id, {}).get("state") == "SUCCESS",
            PATIENCE_SECONDS,
            lambda: str(flower.api("tasks")),
        )
        later = farm.send("note", str(ledger), "later", countdown=3600)
        figures = {"messages": 1, "messages_ready": 0, "messages_unacknowledged": 0, "messages_delayed": 1}
        wanted = {"celery": {**figures, "consumers": 1}}
        wait_until(lambda: flower.lengths() == wanted, PATIENCE_SECONDS, lambda: str(flower.lengths()))
        app.control.revoke(later)
    assert cells(flower.read("/broker")) == [["celery", "1", "0", "0", "1", "—"]]
    shown = flower.api("workers")[worker.name]
    assert shown["stats"]["broker"]["transport"] == "opendata"
    assert "farm.note" in shown["registered"]
    assert [queue["name"] for queue in shown["active_queues"]] == ["celery"]
    assert flower.api("tasks")[task_id]["name"] == "farm.note"
    assert 'type="task-succeeded"' in flower.read("/metrics")
    assert flower.terminate() == 0
    assert worker.terminate() == 0, tail(worker.log)


def cells(page: str) -> list[list[str]]:
    """The rows of a page's table."""
    rows = re.findall(r"<tr id=.*?</tr>", page, re.DOTALL)
    return [[html.unescape(re.sub("<.*?>", "", cell)) for cell in re.findall("<td.*?</td>", row)] for row in rows]


def test_a_broker_with_users_and_tls_that_goes_and_comes_back(
    store_folder: Path, tmp_path: Path, started: Children
) -> None:
    """Flower's user is one of two hosts' broker; the queue's name is not simple."""
    authority = Authority(tmp_path)
    issued = authority.issue("server", "localhost")
    users = write_users(tmp_path / "users.toml", user_table("eye", "s3cr3t"))
    queue = 'm/"ail" 🌻'

    def serve(port: int = 0) -> ServedBroker:
        options = ("--store", f"file://{store_folder}/store", "--listen", f"tcp:127.0.0.1:{port}")
        secured = ("--users", str(users), "--tls-cert", str(issued.chain), "--tls-key", str(issued.key))
        started.add(broker := ServedBroker(tmp_path, *options, *secured))
        return broker

    broker = serve()
    url = f"opendatas://eye:s3cr3t@localhost:1,localhost:{broker.port}"
    ssl = {"ca_certs": str(authority.path)}
    with QueueClient(url, tls=ssl) as client:
        client.create(queue)
        client.send_batch(queue, ["a", "b"])
        client.read(queue)
    flower = Flower(url, tmp_path, "--url-prefix=eyes", task_default_queue=queue, broker_use_ssl=ssl)
    started.add(flower)
    flower.wait_ready()
    figures = {"messages": 2, "messages_ready": 1, "messages_unacknowledged": 1, "messages_delayed": 0, "consumers": 0}
    assert flower.lengths() == {queue: figures}
    assert cells(flower.read("/broker")) == [[queue, "2", "1", "1", "0", "—"]]

    broker.kill()
    with pytest.raises(urllib.error.HTTPError, match="503") as refused:
        flower.lengths()
    told = refused.value.read().decode()
    assert "localhost" in told
    page = flower.read("/broker")
    assert "No queue data is available" in page
    assert flower.read("/healthcheck") == "OK"
    serve(broker.port)
    wait_until(lambda: cells(flower.read("/broker")), PATIENCE_SECONDS, lambda: tail(flower.log))
    assert flower.lengths() == {queue: figures}
    assert flower.terminate() == 0
    assert "s3cr3t" not in page + told + flower.log.read_text()
