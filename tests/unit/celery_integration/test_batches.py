"""Reports of batches, with a stand-in for celery-batches; tests/downstream has them with the package itself."""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kombu_opendata.celery_integration.batches import report_batches, run_batch
from kombu_opendata.celery_integration.task_reporter import Reporter
from kombu_opendata.client.session.unconfirmed import TaskRun
from kombu_opendata.protocol.task_reports import TaskReport, TaskState


class Batches:
    """A task, as far as a batch needs it."""

    name = "t"

    def __init__(self, acks_late: bool) -> None:
        self.acks_late = acks_late

    def __call__(self, requests: list[Any]) -> None:
        if "bad" in requests:
            raise ValueError("bad")

    def flush(self, requests: list[Any]) -> str:
        return "its own flush"


class SimpleRequest:
    @staticmethod
    def from_request(request: Any) -> str:
        return str(request.body)


def apply_batches_task(task: Any, args: tuple[Any], loglevel: int, logfile: None) -> None:
    try:
        task(*args)
    except Exception:
        return


class Request:
    def __init__(self, body: str) -> None:
        self.body = body
        self.message: Any = SimpleNamespace(run=None, lease=("q", 1, 1))
        self.acknowledged_with: Any = None

    def acknowledge(self) -> None:
        self.acknowledged_with = self.message.run
        self.message.run = (
            TaskRun.ACKNOWLEDGED if self.message.run is TaskRun.BEGUN else TaskRun.SETTLED
        )  # as a channel does


class Channel:
    takes_reports = True
    closed = False

    def __init__(self) -> None:
        self.connection = self.link = self
        self.run_lock = nullcontext()
        self.sent: list[TaskReport] = []

    def settle_task(self, channel: int, outcome: int, lease: Any, report: TaskReport) -> None:
        self.sent.append(report)


def pool_of(outcome: Any = None) -> Any:
    def apply_async(run: Any, args: Any, *, accept_callback: Any, callback: Any, error_callback: Any) -> None:
        accept_callback(7, 0.0)
        if outcome is None:
            callback(run(*args))
        else:
            error_callback(outcome)

    return SimpleNamespace(apply_async=apply_async)


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> Channel:
    module, trace = ModuleType("celery_batches"), ModuleType("celery_batches.trace")
    vars(module).update(Batches=Batches, SimpleRequest=SimpleRequest)
    vars(trace).update(apply_batches_task=apply_batches_task)
    monkeypatch.setitem(sys.modules, "celery_batches", module)
    monkeypatch.setitem(sys.modules, "celery_batches.trace", trace)
    return Channel()


def flushed(channel: Channel, bodies: list[str], acks_late: bool, pool: Any) -> list[Request]:
    reporter = Reporter(lambda _: ())
    reporter.connect(channel)  # type: ignore[arg-type]
    task = type("Own", (Batches,), {})(acks_late)
    report_batches(SimpleNamespace(tasks={"t": task, "other": object()}), pool, reporter)
    requests = [Request(body) for body in bodies]
    task.flush(requests)
    return requests


@pytest.mark.parametrize(("bodies", "state"), [(["a", "b"], TaskState.SUCCEEDED), (["a", "bad"], TaskState.RAISED)])
def test_each_message_has_the_report_of_its_batch(channel: Channel, bodies: list[str], state: TaskState) -> None:
    early = flushed(channel, bodies, False, pool_of())
    assert [request.acknowledged_with for request in early] == [TaskRun.BEGUN] * 2
    assert [(report.state, report.task) for report in channel.sent] == [(state, "t")] * 2
    late = flushed(channel, bodies, True, pool_of())
    assert [request.acknowledged_with.state for request in late] == [state] * 2
    assert len(channel.sent) == 2, "with the acks"


def test_a_lost_process_leaves_late_messages_to_the_end_of_the_worker(channel: Channel) -> None:
    lost = SimpleNamespace(exception=SystemExit(1), traceback="")
    early = flushed(channel, ["a"], False, pool_of(lost))
    assert [report.state for report in channel.sent] == [TaskState.LOST]
    assert early[0].message.run is TaskRun.SETTLED
    (late,) = flushed(channel, ["a"], True, pool_of(lost))
    assert late.acknowledged_with is None


def test_a_broker_that_wants_no_reports_gets_none(channel: Channel) -> None:
    channel.takes_reports = False
    (request,) = flushed(channel, ["a"], False, pool_of())
    assert (request.message.run, channel.sent) == (None, [])


def test_batches_in_two_threads_keep_their_failures_apart(channel: Channel) -> None:
    task = type("Own", (Batches,), {})(False)
    found: dict[str, int] = {}
    threads = [
        threading.Thread(target=lambda body=body: found.update({body: run_batch(task, [body]).state}))
        for body in ("bad", "good")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"bad": TaskState.RAISED, "good": TaskState.SUCCEEDED}
