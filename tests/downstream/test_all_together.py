"""A Django project with all that a team installs on the first day: each package sees the tasks of the others."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from kombu_opendata import QueueClient

from ..support.flower import Flower
from ..support.ledger import Ledger
from ..support.processes import Children, tail, wait_until
from ..support.served import ServedBroker
from .collector import PATIENCE_SECONDS, Collector
from .django_project import DjangoProject
from .test_celery_exporter import Exporter
from .test_opentelemetry import spans

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
#: all that the page lets a user set
SETTINGS = set(re.findall(r"CELERY_\w+", PAGE.read_text().partition("## All of it in one project")[2]))
NOTE, FAIL = "django_checks.tasks.note", "django_checks.tasks.fail"


def _tasks_with_errors(collector: Collector) -> list[str]:
    """Return the tasks of Sentry's errors. RedBeat, which another test needs, logs an error without a task."""
    return [event["tags"]["celery_task_id"] for event in collector.envelope_items("event") if "tags" in event]


def settings_of(project: DjangoProject) -> set[str]:
    """Return the names of Celery's settings that Django has."""
    return set(re.findall(r"CELERY_\w+", project.run("-c", "from django.conf import settings; print(dir(settings))")))


def test_beat_results_sentry_traces_an_exporter_and_flower(
    broker: ServedBroker,
    client: QueueClient,
    collector: Collector,
    python_with: Callable[[str], str],
    tmp_path: Path,
    ledger: Ledger,
    started: Children,
) -> None:
    server = f"127.0.0.1:{collector.port}"
    env = {"SENTRY_DSN": f"http://key@{server}/1", "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{server}"}
    project = DjangoProject(broker.url, tmp_path, started, module="observed", env=env)
    assert settings_of(project) == SETTINGS
    started.add(exporter := Exporter(python_with("celery-exporter"), broker.url, tmp_path))
    started.add(flower := Flower(broker.url, tmp_path, app="project", cwd=project.project, env=project.env))
    worker = project.worker("--heartbeat-interval=1")
    flower.wait_ready()
    # Both listen to events by now: they have the worker's heartbeats.
    online = f'flower_worker_online{{worker="{worker.name}"}} 1.0'
    wait_until(lambda: online in flower.read("/metrics"), PATIENCE_SECONDS, lambda: tail(flower.log))
    wait_until(lambda: exporter.values("celery_worker_up"), PATIENCE_SECONDS, lambda: tail(exporter.log))

    project.call("schedule", "create", str(ledger))
    beat = project.beat()
    ledger.wait_for("crontab")
    failed = project.call("results", "send_failing")

    wait_until(
        lambda: _tasks_with_errors(collector) == [failed],
        PATIENCE_SECONDS,
        lambda: str(collector.envelope_items("event")),
    )
    check_ins = collector.wait_items("check_in", 2)
    assert {(found["monitor_slug"], found["status"]) for found in check_ins} >= {
        ("crontab", "in_progress"),
        ("crontab", "ok"),
    }
    wait_until(
        lambda: {f"apply_async/{NOTE}", f"run/{NOTE}", f"run/{FAIL}"} <= {span.name for span in spans(collector)},
        PATIENCE_SECONDS,
        lambda: str({span.name for span in spans(collector)}),
    )
    by_id = {span.span_id: span for span in spans(collector)}
    runs = [span for span in by_id.values() if span.name == f"run/{NOTE}" and span.parent_span_id in by_id]
    assert {by_id[span.parent_span_id].name for span in runs} == {f"apply_async/{NOTE}"}
    rows = project.call("results", "rows")["tasks"]
    assert [NOTE, "SUCCESS", "crontab"] in rows.values()
    assert rows[failed][:2] == [FAIL, "FAILURE"]
    for name, metric in ((NOTE, "celery_task_succeeded_total"), (FAIL, "celery_task_failed_total")):
        wait_until(
            lambda: (name,) in exporter.values(metric, "name"),  # noqa: B023
            PATIENCE_SECONDS,
            lambda: tail(exporter.log),
        )
    wait_until(
        lambda: flower.api("tasks").get(failed, {}).get("state") == "FAILURE", PATIENCE_SECONDS, "Flower has the task"
    )
    assert flower.lengths()["celery"]["consumers"] == 1
    states = {each.event.headers["task"]: each.state for each in client.iter_attempts(queues=["celery"]) if each.event}
    assert states == {NOTE: "succeeded", FAIL: "raised"}
    assert beat.terminate() == 0, tail(beat.log)
    assert flower.terminate() == 0, tail(flower.log)
    assert worker.terminate() == 0, tail(worker.log)
