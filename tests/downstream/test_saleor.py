"""Saleor's way to configure Celery: variables of the environment, and a schedule in Django's settings."""

from __future__ import annotations

from pathlib import Path

from kombu_opendata import QueueClient

from ..support.ledger import Ledger
from ..support.processes import Children, tail
from .compatibility import Row
from .django_project import DjangoProject

COMPATIBILITY = Row(
    package="saleor",
    version="3.x (settings)",
    tried="the namespace `CELERY` of Django's settings, from variables; beat's schedule in the database; a queue that "
    "a variable names, or none; no result backend; `worker -E`",
    result="Works. Task outcomes need no result backend.",
    settings="`CELERY_BROKER_URL`",
)


def test_saleor_is_configured_by_its_environment(
    broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    env = {"CELERY_BROKER_URL": broker_url, "LEDGER": str(ledger), "SEARCH_QUEUE_NAME": "search"}
    project = DjangoProject(broker_url, tmp_path, started, module="saleor", env=env)
    beat = project.beat()
    worker = project.worker("-E", "--queues=celery,search")
    ledger.wait_count(2)
    assert beat.terminate() == 0, tail(beat.log)
    assert worker.terminate() == 0, tail(worker.log)
    assert set(ledger.lines()) == {"search"}
    with QueueClient(broker_url) as client:
        assert client.metrics("celery").total == 0
        attempts = list(client.iter_attempts(queues=["search"]))
    assert [attempt.state for attempt in attempts] == ["succeeded"] * ledger.count()
    assert project.call("schedule", "entries")["update-search"]["runs"] == len(attempts)
