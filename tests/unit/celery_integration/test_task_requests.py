"""What the reports need of Celery; tests/acceptance/test_task_outcomes.py has them from real workers."""

from __future__ import annotations

import inspect
from time import time
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import request, strategy
from celery.worker.consumer.consumer import Consumer

from kombu_opendata.celery_integration import task_requests
from kombu_opendata.celery_integration.task_reporter import Reporter, Reporters
from kombu_opendata.celery_integration.task_requests import missing_names, reporting
from kombu_opendata.errors import ConnectionLost
from kombu_opendata.protocol.task_reports import TaskReport, TaskState


def test_this_version_of_celery_has_what_the_reports_need() -> None:
    assert missing_names(strategy, Consumer, request.Request) == []
    made = inspect.signature(request.create_request_cls).parameters
    assert list(made)[:3] == ["base", "task", "pool"]
    assert list(inspect.signature(request.Request.on_timeout).parameters) == ["self", "soft", "timeout"]
    assert "create_request_cls(" in inspect.getsource(strategy.default), "by its global name, which is replaced"


def test_a_version_that_lacks_something_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = strategy.create_request_cls
    monkeypatch.setattr(request, "Request", type("Request", (), {}))
    task_requests.report_outcomes(Reporters())
    assert strategy.create_request_cls is before
    assert "this version of Celery has no on_success" in caplog.text


class Channel:
    """Notes what is sent over it."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.is_open = self.takes_reports = is_open
        self.connection = self.link = self
        self.run_lock = None
        self.sent: list[Any] = []
        self.closed = not is_open
        self.socket = ""
        self.running: list[Any] = []

    def settle_task(self, channel: int, outcome: int, lease: Any, report: TaskReport) -> None:
        if not self.is_open:
            raise ConnectionLost("closed")
        self.sent.append((lease, report))

    def report_running(self, running: Any, socket: str | None) -> str:
        if socket != self.socket:
            self.running.append(running)
        return self.socket


def test_workers_without_a_reporter_have_celerys_own_class() -> None:
    pool: Any = type("Pool", (), {"is_green": False})()
    task: Any = SimpleNamespace(name="t", acks_late=False)
    create = reporting(lambda base, task, pool: base, reporters := Reporters())
    assert create(request.Request, task, pool) is request.Request
    reporters[pool] = Reporter(lambda _: ())
    assert create(request.Request, task, pool) is request.Request, "it has no connection"
    reporters[pool].connect(Channel())  # type: ignore[arg-type]
    assert issubclass(create(request.Request, task, pool), request.Request)


def test_reports_wait_for_the_next_connection() -> None:
    reporter, lease, report = Reporter(lambda _: ()), ("q", 1, 2), TaskReport(TaskState.SUCCEEDED)
    reporter.connect(closed := Channel(is_open=False))  # type: ignore[arg-type]
    reporter.report(lease, report)
    reporter.connect(channel := Channel())  # type: ignore[arg-type]
    assert (closed.sent, channel.sent) == ([], [(lease, report)])


def test_tasks_that_run_for_long_are_reported_once_over_each_socket() -> None:
    long, short = ("q", 1, 2), ("q", 3, 4)
    active = {long: time() - 5.0, short: time() + 60.0}
    reporter = Reporter(lambda _: active.items())
    reporter.report_running()
    reporter.connect(channel := Channel())  # type: ignore[arg-type]
    for socket in ("first", "first", "second"):
        channel.socket = socket
        reporter.report_running()
    del active[long]
    reporter.report_running()
    reporter.report_running()
    leases = [[task[:3] for task in running] for running in channel.running]
    assert leases == [[long], [long], []]
    assert 5_000 <= channel.running[0][0][3] < 60_000
