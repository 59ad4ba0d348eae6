"""Superset's way to configure Celery: the class CeleryConfig of its documentation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from celery import Celery

from kombu_opendata import QueueClient

from ..support.ledger import Ledger
from ..support.processes import Child, Children, tail
from ..support.served import ServedBroker
from .compatibility import Row
from .conftest import APPS, StartWorker

COMPATIBILITY = Row(
    package="apache-superset",
    version="6.1 (settings)",
    tried="`CeleryConfig` in both spellings of its names: acks late, prefetch, rate limits, results, reports by beat",
    result="Works. Superset's caches, `RESULTS_BACKEND` and asynchronous queries of charts are configured separately.",
    settings="`broker_url` and `result_backend` of `CeleryConfig`",
)
QUERIES = 20


@pytest.mark.parametrize("names", ["lowercase", "uppercase"])
def test_queries_and_reports(
    names: str, broker: ServedBroker, start_worker: StartWorker, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    env = {"CELERY_BROKER_URL": broker.url, "SUPERSET_NAMES": names, "LEDGER": str(ledger)}
    worker = start_worker("superset_app:app", "-O", "fair", name="worker", concurrency=2, env=env)
    command = [sys.executable, "-m", "celery", "-A", "superset_app:app", "beat", f"--schedule={tmp_path / 'schedule'}"]
    started.add(beat := Child([*command, "--pidfile="], tmp_path / "beat.log", cwd=APPS, env=env))
    with Celery("web", broker=broker.url, backend=broker.url, set_as_current=False) as web:
        sent = [web.send_task("sql_lab.get_sql_results", (number,)) for number in range(QUERIES)]
        assert [result.get(timeout=60) for result in sent] == [{"query_id": number} for number in range(QUERIES)]
        inspect = web.control.inspect([worker.name], timeout=30)
        registered = inspect.registered("rate_limit", "acks_late")[worker.name]
        assert "sql_lab.get_sql_results [rate_limit=100/s acks_late=True]" in registered
        assert inspect.stats()[worker.name]["prefetch_count"] == 2 * 10
    ledger.wait_count(2)
    assert set(ledger.lines()) == {"report 1"}
    assert beat.terminate() == 0, tail(beat.log)
    assert worker.terminate() == 0, tail(worker.log)
    with QueueClient(broker.url) as client:
        assert client.metrics("celery").failed == 0
        assert "reports.scheduler" in {task.task for task in client.periodic_tasks().tasks}
