"""Flower, as a user starts it, sees the workers and the tasks of this broker."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from pathlib import Path
from typing import Any

from ..support.broker import EmbeddedBroker
from ..support.farm import Farm
from ..support.ledger import Ledger
from ..support.processes import Child, Children, tail, wait_until
from ..support.workers import APPS, Worker, sender

PATIENCE_SECONDS = 60


class Flower(Child):
    """Flower on a port that the system chose."""

    def __init__(self, url: str, folder: Path) -> None:
        command = [sys.executable, "-m", "celery", "-A", "farm", "flower", "--port=0", "--address=127.0.0.1"]
        env = {"CELERY_BROKER_URL": url, "FARM_READY": "", "FLOWER_UNAUTHENTICATED_API": "true"}
        super().__init__(command, folder / "flower.log", cwd=APPS, env=env)

    def wait_ready(self) -> None:
        """Until it says where it listens."""
        wait_until(lambda: self.ended or self._page() is not None, PATIENCE_SECONDS, lambda: tail(self.log))
        self.check()

    def _page(self) -> str | None:
        found = re.search(r"Visit me at (http://\S+)", self.log.read_text())
        return found[1] if found else None

    def read(self, path: str) -> str:
        """A page's text; an error of Flower's is an error of the test."""
        with urllib.request.urlopen(f"{self._page()}{path}", timeout=PATIENCE_SECONDS) as answer:
            text: str = answer.read().decode()
        return text

    def api(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.read(f"/api/{path}"))
        return found


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
    shown = flower.api("workers")[worker.name]
    assert shown["stats"]["broker"]["transport"] == "opendata"
    assert "farm.note" in shown["registered"]
    assert [queue["name"] for queue in shown["active_queues"]] == ["celery"]
    assert flower.api("tasks")[task_id]["name"] == "farm.note"
    assert 'type="task-succeeded"' in flower.read("/metrics")
    flower.terminate()
    assert worker.terminate() == 0, tail(worker.log)
