"""celery-exporter: the metrics of tasks; what it reads of queues from other brokers, Prometheus has by rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ..support.processes import Child, Children, free_ports, run, tail, wait_until
from ..support.scrape import Scrape, fetch
from ..support.served import ServedBroker
from .compatibility import Row
from .conftest import RunProgram, StartWorker
from .prometheus import EXAMPLES, StartPrometheus

COMPATIBILITY = Row(
    package="prometheus-exporter-celery",
    tried="celery-exporter under its name in the package index: tasks, workers; Prometheus with the rules",
    result="Metrics of tasks and workers work. It has none of queues: it reads them only from Redis and AMQP. With the "
    "rules, Prometheus has `celery_queue_length`, `celery_active_consumer_count` and `celery_active_worker_count`, but "
    "not `celery_active_process_count` ([patch](upstream/celery-exporter.md)).",
    settings="`kombu-opendata` in the exporter's environment; workers with `-E`; "
    "[celery-exporter.yml](../examples/monitoring/celery-exporter.yml) in Prometheus' `rule_files`",
)
PATIENCE_SECONDS = 60
START = "from src.cli import cli; cli()"  # its image has no other command


class Exporter(Child):
    def __init__(self, python: str, url: str, folder: Path) -> None:
        (self.port,) = free_ports(1)
        options = ("--broker-url", url, "--host", "127.0.0.1", "--port", str(self.port))
        super().__init__([python, "-c", START, *options], folder / "exporter.log", cwd=folder)

    def scrape(self) -> Scrape | None:
        """Its metrics; None before it listens."""
        try:
            with fetch(self.port) as answer:
                return Scrape(answer.read().decode())
        except OSError:
            return None

    def values(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """What is not 0 of a metric, by these labels."""
        scrape = self.scrape()
        if scrape is None:
            return {}
        samples = [sample for sample in scrape.samples if sample.name == name and sample.value]
        return {tuple(sample.labels[label] for label in labels): sample.value for sample in samples}


@pytest.fixture(scope="session")
def python(python_with: Callable[[str], str]) -> str:
    return python_with("celery-exporter")


def test_tasks_workers_and_the_lengths_of_queues(
    python: str,
    broker: ServedBroker,
    start_worker: StartWorker,
    run_program: RunProgram,
    start_prometheus: StartPrometheus,
    tmp_path: Path,
    started: Children,
) -> None:
    started.add(exporter := Exporter(python, broker.url, tmp_path))
    prometheus = start_prometheus({"opendata-queue": broker.metrics_port}, "celery-exporter.yml")
    wait_until(lambda: exporter.ended or exporter.scrape(), PATIENCE_SECONDS, lambda: tail(exporter.log))
    run_program("plain.py")
    prometheus.wait_values("celery_queue_length", "queue_name", {"celery": 4})
    worker = start_worker("plain", "-E", "--heartbeat-interval=1")
    for event in ("sent", "received", "started"):
        wanted = {("plain.good", "celery"): 3.0, ("plain.bad", "celery"): 1.0}
        wait_until(
            lambda: exporter.values(f"celery_task_{event}_total", "name", "queue_name") == wanted,  # noqa: B023
            PATIENCE_SECONDS,
            lambda: f"{wanted}:\n{tail(exporter.log)}",  # noqa: B023
        )
    succeeded = {("plain.good", "test"): 3.0}
    wait_until(
        lambda: exporter.values("celery_task_succeeded_total", "name", "hostname") == succeeded,
        PATIENCE_SECONDS,
        lambda: tail(exporter.log),
    )
    assert exporter.values("celery_task_failed_total", "name", "exception") == {("plain.bad", "ValueError"): 1.0}
    assert exporter.values("celery_task_runtime_count", "name") == {("plain.good",): 3.0}
    assert exporter.values("celery_worker_up", "hostname") == {("test",): 1.0}
    scrape = exporter.scrape()
    assert scrape is not None
    of_queues = [sample.name for sample in scrape.samples if sample.name in ("celery_queue_length", *RECORDED)]
    assert of_queues == [], "the rules are needed"
    prometheus.wait_values("celery_queue_length", "queue_name", {"celery": 0})
    for name in RECORDED:
        prometheus.wait_values(name, "queue_name", {"celery": 1})
    assert worker.terminate() == 0, tail(worker.log)
    for name in RECORDED:
        prometheus.wait_values(name, "queue_name", {"celery": 0})
    assert exporter.values("celery_worker_up", "hostname") == {}


RECORDED = ("celery_active_consumer_count", "celery_active_worker_count")


@pytest.mark.usefixtures("start_prometheus")
def test_promtool_accepts_the_rules() -> None:
    told = run(["promtool", "check", "rules", str(EXAMPLES / "celery-exporter.yml")], EXAMPLES)
    assert f"SUCCESS: {len(RECORDED) + 1} rules found" in told
