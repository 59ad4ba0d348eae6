"""Sentry's SDK in workers, senders and beat; its server is a collector."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from kombu_opendata import QueueClient

from ..support.processes import Child, Children, tail, wait_until
from ..support.served import ServedBroker
from ..support.workers import sender
from .collector import PATIENCE_SECONDS, Collector, collecting
from .compatibility import Row
from .conftest import APPS, RunProgram, StartWorker

COMPATIBILITY = Row(
    package="sentry-sdk",
    tried="`CeleryIntegration`: errors, tracing, cron monitors of beat; a server that does not answer",
    result="Works. Spans have the messaging system `opendata`. While the server does not answer, tasks run as before.",
)


def dsn(collector: Collector) -> dict[str, str]:
    return {"SENTRY_DSN": f"http://key@127.0.0.1:{collector.port}/1"}


def spans(transaction: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The spans of a transaction, by operation and name."""
    return {f"{span['op']} {span['description']}": span for span in transaction["spans"]}


def test_an_error_and_the_trace_from_the_sender_to_the_task(
    collector: Collector, start_worker: StartWorker, run_program: RunProgram
) -> None:
    env = dsn(collector)
    worker = start_worker("sentry", env=env)
    good_id, bad_id = run_program("sentry.py", env=env).split()
    (event,) = collector.wait_items("event", 1)
    assert event["tags"]["celery_task_id"] == bad_id
    assert event["transaction"] == "sentry.bad"
    (error,) = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("ValueError", "bad 2")
    transactions = {found["transaction"]: found for found in collector.wait_items("transaction", 3)}
    assert transactions.keys() == {"sender", "sentry.good", "sentry.bad"}
    sent = transactions["sender"]
    for name, task_id, status in (("sentry.good", good_id, "ok"), ("sentry.bad", bad_id, "internal_error")):
        ran = transactions[name]
        trace = ran["contexts"]["trace"]
        assert (trace["op"], trace["status"]) == ("queue.task.celery", status)
        assert trace["trace_id"] == sent["contexts"]["trace"]["trace_id"]
        assert trace["parent_span_id"] == spans(sent)[f"queue.submit.celery {name}"]["span_id"]
        for span in (spans(sent)[f"queue.publish {name}"], spans(ran)[f"queue.process {name}"]):
            assert span["data"]["messaging.message.id"] == task_id
            assert span["data"]["messaging.system"] == "opendata"
        assert spans(ran)[f"queue.process {name}"]["data"]["messaging.message.receive.latency"] > 0
    assert worker.terminate() == 0, tail(worker.log)


def test_beats_entries_are_cron_monitors(
    collector: Collector, broker: ServedBroker, start_worker: StartWorker, tmp_path: Path, started: Children
) -> None:
    env = {**dsn(collector), "CELERY_BROKER_URL": broker.url}
    start_worker("sentry", env=env)
    options = ("--pidfile=", "--scheduler=celery.beat:Scheduler")
    command = [sys.executable, "-m", "celery", "-A", "sentry", "beat", *options]
    started.add(Child(command, tmp_path / "beat.log", cwd=APPS, env=env))
    check_ins = collector.wait_items("check_in", 4)
    states = {(found["monitor_slug"], found["status"]) for found in check_ins}
    good, bad = "good-each-minute", "bad-each-minute"
    assert states == {(good, "in_progress"), (good, "ok"), (bad, "in_progress"), (bad, "error")}
    for slug in (good, bad):
        began, ended = (found for found in check_ins if found["monitor_slug"] == slug)
        assert began["check_in_id"] == ended["check_in_id"]
        assert ended["monitor_config"]["schedule"] == {"type": "interval", "value": 1, "unit": "minute"}


def test_a_server_that_hangs_does_not_slow_the_worker(
    broker: ServedBroker, start_worker: StartWorker, client: QueueClient
) -> None:
    number = 100
    with collecting(hangs=True) as silent:
        worker = start_worker("sentry", env=dsn(silent))
        with sender(broker.url) as app:
            for each in range(number):
                app.send_task("sentry.bad", (each,))
        wait_until(
            lambda: len(list(client.iter_attempts(queues=["celery"], states=["raised"]))) == number,
            PATIENCE_SECONDS / 2,  # the SDK waits this long for one answer
            lambda: tail(worker.log),
        )
        assert silent.requests > 0, "the SDK waits for an answer"
        attempts = list(client.iter_attempts(queues=["celery"], states=["raised"]))
        assert sorted(each.runtime_ms for each in attempts)[number // 2] < 100
        assert worker.terminate() == 0, tail(worker.log)
