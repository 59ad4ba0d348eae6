"""django-celery-beat: the schedule of the database, changed while beat runs."""

from __future__ import annotations

import json
from pathlib import Path

from kombu_opendata import QueueClient

from ..support.broker import EmbeddedBroker
from ..support.ledger import Ledger
from ..support.processes import Children, tail, wait_until
from .compatibility import Row
from .django_project import DjangoProject

COMPATIBILITY = Row(
    package="django-celery-beat",
    tried="`DatabaseScheduler`: intervals, crontabs, clocked and one-off entries, options, changes while beat runs, a "
    "broker that is killed",
    result="Everything works. `periodic_tasks()` has the names of the entries.",
)


def test_the_database_scheduler_follows_changes_and_a_killed_broker(
    broker_url: str, store_folder: Path, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    project = DjangoProject(broker_url, tmp_path, started, {"CELERY_RESULT_BACKEND": "django-db"})
    project.call("schedule", "create", str(ledger))
    worker = project.worker()
    beat = project.beat()
    ledger.wait_for("interval", "crontab", "clocked", "one-off")

    project.call("schedule", "change", "interval", {"args": json.dumps([str(ledger), "changed"])})
    ledger.wait_for("changed")
    before = ledger.runs()["interval"]
    project.call("schedule", "change", "interval", {"enabled": False})
    project.call("schedule", "change", "disabled", {"enabled": True})
    ledger.wait_for("disabled")
    changed = ledger.runs()["changed"]
    broker = EmbeddedBroker(store_folder)
    killed = broker.kill()
    wait_until(lambda: ledger.runs()["disabled"] >= 3, 60, lambda: f"runs after a restart:\n{tail(beat.log)}")
    assert broker.pid() != killed

    runs = ledger.runs()
    assert runs["interval"] == before
    assert runs["changed"] == changed
    assert runs["clocked"] == runs["one-off"] == 1
    assert runs["crontab of another month"] == 0
    with QueueClient(broker_url) as client:
        (message,) = client.peek("periodic")
        assert message.headers["periodic_task_name"] == "to a queue"
        assert message.headers["expires"]
        assert message.properties["priority"] == 7
        names = {entry.name for entry in client.periodic_tasks().tasks}
    assert {"to a queue", "disabled"} <= names, "those that were published since the restart"
    assert beat.terminate() == 0, tail(beat.log)
    assert worker.terminate() == 0, tail(worker.log)

    entries = project.call("schedule", "entries")
    assert entries["disabled"]["runs"] >= 3, "beat has saved them"
    assert {name for name, entry in entries.items() if not entry["enabled"]} == {"clocked", "interval", "one-off"}
    rows = project.call("results", "rows")["tasks"].values()
    assert ["django_checks.tasks.note", "SUCCESS", "crontab"] in rows
