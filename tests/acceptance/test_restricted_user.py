"""A Celery app whose user has only what ``user permit --celery`` gives: all of it works, and nothing of another app."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chord

from kombu_opendata import QueueClient, errors

from ..support.broker import EmbeddedBroker
from ..support.farm import Farm, Heard
from ..support.flower import Flower
from ..support.kombu_client import connected, declare, send
from ..support.ledger import Ledger
from ..support.processes import children, tail, wait_until
from ..support.served import COMMAND, ServedBroker
from ..support.users import user_table, write_users
from ..support.workers import APPS, Worker, sender

pytestmark = pytest.mark.contract(13)

PATIENCE_SECONDS = 60


class Site:
    """A broker with an admin, a restricted Celery app with a worker, and another app's queue."""

    def __init__(self, broker: ServedBroker, url: str, admin: str, users: Path, worker: Worker, app: Celery) -> None:
        self.broker = broker
        self.url, self.admin = url, admin
        self.users = users
        self.worker = worker
        self.app = app

    def celery(self, *words: str) -> str:
        """What a command says that succeeds."""
        env = {**os.environ, "CELERY_BROKER_URL": self.url}
        command = [sys.executable, "-m", "celery", "-A", "farm", *words]
        done = subprocess.run(command, cwd=APPS, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def refusals(self) -> list[str]:
        """The calls of the app's own user that the broker refused."""
        lines = self.broker.log.read_text().splitlines()
        return [line for line in lines if "refused:" in line and "to user 'app'" in line]


def permit(users: Path, *words: str) -> None:
    """Change the users file by the command."""
    subprocess.run([COMMAND, "user", "permit", *words, "--users", users], check=True, capture_output=True)


@pytest.fixture(scope="module")
def site(module_store_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder, place = module_store_folder, tmp_path_factory.mktemp("worker")
    users = write_users(
        folder / "users.toml",
        user_table("root", "x", {}, roles=("admin",)),
        user_table("app", "x", {}),
        user_table("leaver", "x", {}),
    )
    permit(users, "app", "--celery")
    with children() as started:
        options = ("--store", f"file://{folder}/store", "--listen", "tcp:127.0.0.1:0", "--users", str(users))
        broker = ServedBroker(folder, *options)
        started.add(broker)
        url, admin = (f"opendata://{user}:x@127.0.0.1:{broker.port}" for user in ("app", "root"))
        with QueueClient(admin) as client:
            client.create("other")
            client.declare_exchange("other", "direct")
            client.bind("other", "other", "other")
            client.send("other", "not yours")
        settings: dict[str, Any] = {"result_backend": url, "task_ignore_result": False, "task_send_sent_event": True}
        worker = Worker(url, place, "worker", "-E", "--heartbeat-interval=1", pool="prefork", **settings)
        started.add(worker)
        worker.wait_ready()
        with sender(url) as app:
            app.conf.update(settings)
            yield Site(broker, url, admin, users, worker, app)
        assert worker.terminate() == 0, tail(worker.log)
        assert "Traceback" not in worker.log.read_text()
        assert broker.terminate() == 0


def test_tasks_results_and_chords(site: Site, tmp_path: Path) -> None:
    add = site.app.signature("farm.add")
    assert site.app.send_task("farm.add", (1, 2)).get(timeout=PATIENCE_SECONDS) == 3
    assert site.app.send_task("farm.add", (1, 2), countdown=1, expires=60).get(timeout=PATIENCE_SECONDS) == 3
    chain = (site.app.signature("farm.add", (1, 2)) | site.app.signature("farm.add", (3,))).apply_async()
    assert chain.get(timeout=PATIENCE_SECONDS) == 6
    ledger = Ledger(tmp_path / "ran.txt")
    chord([add.clone((1, 2)), add.clone((3, 4))], site.app.signature("farm.tell", (str(ledger),))).apply_async()
    ledger.wait_for("[3, 7]")
    assert not site.refusals()


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_a_worker_that_may_not_store_results_runs_and_settles_its_tasks(site: Site, tmp_path: Path, pool: str) -> None:
    """A failure that can't be stored would leave its message in flight, or end the worker."""
    settings: dict[str, Any] = {
        "result_backend": site.admin.replace("root", "leaver"),
        "task_ignore_result": False,
        "task_acks_late": True,
    }
    with children() as started, QueueClient(site.admin) as client, sender(site.admin) as app:
        worker = Worker(site.admin, tmp_path, f"refused-{pool}", "-Q", f"refused-{pool}", pool=pool, **settings)
        started.add(worker)
        worker.wait_ready()
        ledger = Ledger(tmp_path / "ran.txt")
        for number in range(3):
            app.send_task("farm.tell", (number, str(ledger)), queue=f"refused-{pool}")

        def left() -> int:
            return client.metrics(f"refused-{pool}").length

        ledger.wait_for("2")
        wait_until(lambda: left() == 0, PATIENCE_SECONDS, lambda: f"{left()}: {tail(worker.log)}")
        assert "can't be stored" in worker.log.read_text()
        assert worker.terminate() == 0, tail(worker.log)


def test_remote_control(site: Site, tmp_path: Path) -> None:
    assert "pong" in site.celery("inspect", "ping")
    farm = Farm(site.app, site.worker, EmbeddedBroker(tmp_path))
    assert [queue["name"] for queue in farm.inspect("active_queues")] == ["celery"]
    gate = tmp_path / "gate"
    held = site.app.send_task("farm.hold", (str(tmp_path / "ledger"), "held", str(gate)))
    wait_until(lambda: held.id in str(farm.inspect("active")), PATIENCE_SECONDS, "the task runs")
    held.revoke(terminate=True)
    wait_until(lambda: held.state == "REVOKED", PATIENCE_SECONDS, lambda: held.state)
    assert "ok" in farm.control("rate_limit", "farm.add", "100/s")
    assert site.app.control.purge() == 0
    assert not site.refusals()


def test_events_and_flower(site: Site, tmp_path: Path) -> None:
    flower = Flower(site.url, tmp_path)
    try:
        flower.wait_ready()
        with Heard(site.app) as heard:
            wait_until(heard.heartbeats, PATIENCE_SECONDS, "a heartbeat")
            task = site.app.send_task("farm.add", (1, 2))
            wait_until(lambda: "task-succeeded" in heard.types(task.id), PATIENCE_SECONDS, lambda: str(heard.events))
        wait_until(
            lambda: site.worker.name in flower.api("workers?refresh=1"), PATIENCE_SECONDS, lambda: tail(flower.log)
        )
        task = site.app.send_task("farm.add", (1, 2))
        wait_until(
            lambda: flower.api("tasks").get(task.id, {}).get("state") == "SUCCESS",
            PATIENCE_SECONDS,
            lambda: tail(flower.log),
        )
        assert set(flower.lengths()) == {"celery"}
    finally:
        flower.terminate()
    assert not site.refusals()


def test_nothing_of_another_app(site: Site) -> None:
    for options in ({"queue": "other"}, {"exchange": "other", "routing_key": "other"}):
        with pytest.raises(errors.AccessRefused, match="'other'"):
            site.app.send_task("farm.add", (1, 2), retry=False, **options)
    with connected(site.url) as connection:
        channel = connection.channel()
        with pytest.raises(errors.AccessRefused, match="may not write to queue 'other' over the default exchange"):
            send(channel, "other", "1")
        for call in (channel.basic_get, channel.queue_purge, channel.queue_delete):
            with pytest.raises(errors.AccessRefused, match="'other'"):
                call("other")
        with pytest.raises(errors.AccessRefused, match="may not read from exchange 'other'"):
            channel.queue_bind("celery", "other", "other")
        with pytest.raises(errors.AccessRefused, match="may not write to queue 'other'"):
            channel.queue_bind("other", "celery", "celery")
        with pytest.raises(errors.AccessRefused, match=r"may not read from exchange 'amq\.all'"):
            declare(channel, "celery.pidbox", arguments={"x-filter": "task LIKE '%'"})
        with pytest.raises(errors.AccessRefused, match="may not write to exchange 'other'"):
            declare(channel, "celeryev.spy", arguments={"x-dead-letter-exchange": "other"})
    with QueueClient(site.url) as client:
        with pytest.raises(errors.AccessRefused):
            client.peek("other")
        assert "other" not in {queue.name for queue in client.list_queues()}
    with QueueClient(site.admin) as client:
        assert client.metrics("other").length == 1


def test_a_worker_for_a_queue_that_is_not_permitted_says_so(site: Site, tmp_path: Path) -> None:
    worker = Worker(site.url, tmp_path, "wrong", "-Q", "other")
    try:
        wait_until(lambda: worker.ended, PATIENCE_SECONDS, lambda: tail(worker.log))
    finally:
        worker.kill()
    assert "user 'app' may not configure exchange 'other' in instance 'default'" in worker.log.read_text()


def test_a_worker_that_may_not_read_its_queue_any_more_ends(site: Site, tmp_path: Path) -> None:
    """It finishes what it holds; what waits is for others."""
    permit(site.users, "leaver", "--celery", "--queue", "leaving")
    url = site.url.replace("app:", "leaver:")
    wait_until(lambda: can_connect(url), PATIENCE_SECONDS, "the broker has read the file")
    gate, ledger = tmp_path / "gate", Ledger(tmp_path / "ran.txt")
    worker = Worker(url, tmp_path, "leaver", "-Q", "leaving", pool="prefork")
    try:
        worker.wait_ready()
        with sender(url) as app:
            app.send_task("farm.hold", (str(ledger), "held", str(gate)), queue="leaving")
            ledger.wait_for("held began")
        permit(site.users, "leaver", "--read", "^nothing$")
        wait_until(lambda: "may not read" in worker.log.read_text(), PATIENCE_SECONDS, lambda: tail(worker.log))
        gate.touch()
        wait_until(lambda: worker.ended, PATIENCE_SECONDS, lambda: tail(worker.log))
        ledger.assert_once(["held began", "held ended"])
    finally:
        gate.touch()
        worker.kill()


def can_connect(url: str) -> bool:
    try:
        with connected(url):
            return True
    except errors.AccessRefused:
        return False
