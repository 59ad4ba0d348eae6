"""The reports of exceptions, however badly they behave."""

from __future__ import annotations

import pickle
import sys
import time
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery.exceptions import (
    Ignore,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
)
from celery.utils.serialization import UnpickleableExceptionWrapper, get_pickleable_exception

from kombu_opendata.celery_integration.task_reporter import failure_report
from kombu_opendata.protocol.task_reports import MAX_ERROR, MAX_EXCEPTION, MAX_TRACEBACK, TaskReport, TaskState

HERE = __name__


def info_of(exc: BaseException, cause: BaseException | None = None) -> Any:
    """What Celery hands to ``on_failure`` in the process that ran the task."""
    try:
        raise exc from cause
    except BaseException:
        return ExceptionInfo(sys.exc_info())


def report_of(exc: BaseException, cause: BaseException | None = None) -> TaskReport:
    report = failure_report(info_of(exc, cause), 1500, 42, "app.task")
    assert (report.runtime_us, report.pid, report.task) == (1500, 42, "app.task")
    assert report.fault == ""
    return report


class Bad(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Outer:
    class Inner(ValueError):
        pass


@pytest.mark.parametrize(
    ("exc", "state"),
    [
        (ValueError("x"), TaskState.RAISED),
        (MemoryError(), TaskState.RAISED),
        (Retry(exc=ValueError("x"), when=1), TaskState.RETRIED),
        (Reject("no"), TaskState.REJECTED),
        (Ignore(), TaskState.IGNORED),
        (TimeLimitExceeded(3), TaskState.TIMED_OUT),
        (SoftTimeLimitExceeded(), TaskState.TIMED_OUT),
        (WorkerLostError("signal 9"), TaskState.LOST),
        (SystemExit(1), TaskState.LOST),
        (Terminated(15), TaskState.REVOKED),
    ],
)
def test_the_state_follows_from_the_exception(exc: BaseException, state: TaskState) -> None:
    assert report_of(exc).state == state


def test_the_texts_of_an_exception() -> None:
    report = report_of(Outer.Inner("a", 1))
    assert (report.exception, report.error) == (f"{HERE}.Outer.Inner", "('a', 1)")
    assert report.traceback.startswith("Traceback (most recent call last):")
    assert report_of(KeyError("k")).exception == "KeyError"
    assert report_of(ValueError()).error == ""


def test_causes_and_groups_are_in_the_traceback() -> None:
    report = report_of(ValueError("the end"), KeyError("the cause"))
    assert "the cause" in report.traceback
    assert "direct cause of the following" in report.traceback
    group = report_of(ExceptionGroup("several", [ValueError("first"), TypeError("second")]))
    assert (group.exception, group.error) == ("ExceptionGroup", "several (2 sub-exceptions)")
    assert "first" in group.traceback
    assert "second" in group.traceback


def test_an_exception_whose_text_raises() -> None:
    report = report_of(Bad())
    assert (report.exception, report.error) == (f"{HERE}.Bad", "<str() of this Bad failed>")


class Exits(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


def test_an_exception_whose_text_exits_does_not_end_the_worker() -> None:
    report = report_of(Exits())
    assert (report.state, report.error) == (TaskState.RAISED, "<str() of this Exits failed>")


def test_an_exception_that_can_not_be_pickled_keeps_its_name() -> None:
    class Local(Exception):
        pass

    exc = get_pickleable_exception(Local("unique"))
    assert isinstance(exc, UnpickleableExceptionWrapper)
    arrived = pickle.loads(pickle.dumps(info_of(exc)))  # as it comes from a pool's process
    report = failure_report(arrived, 0, 1, "t")
    assert (report.exception, report.state) == (f"{HERE}.Local", TaskState.RAISED)
    assert "unique" in report.error


def test_an_exception_from_a_pools_process() -> None:
    report = failure_report(pickle.loads(pickle.dumps(info_of(Outer.Inner("there")))), 0, 1, "t")
    assert (report.exception, report.error) == (f"{HERE}.Outer.Inner", "there")
    assert "in info_of" in report.traceback


def test_the_reason_of_a_retry_or_a_reject() -> None:
    retried = report_of(Retry(exc=ValueError("the reason"), when=3))
    assert (retried.exception, retried.error) == ("ValueError", "the reason")
    plain = report_of(Retry(when=3))
    assert (plain.exception, plain.error) == ("celery.exceptions.Retry", "Retry in 3s")
    rejected = report_of(Reject(KeyError("k"), requeue=False))
    assert (rejected.exception, rejected.error) == ("KeyError", "'k'")
    said = report_of(Reject("not for me"))
    assert (said.exception, said.error) == ("celery.exceptions.Reject", "not for me")


def test_an_ignored_task_has_no_error() -> None:
    report = report_of(Ignore("because"))
    assert (report.exception, report.error, report.traceback) == ("", "", "")


@pytest.mark.parametrize("text", ["\ud800 \udfff", "é" * 5000, "\x00\n\r\x1b[2J", "🙂" * 5000], ids=ascii)
def test_any_text_is_reported_as_utf8(text: str) -> None:
    report = report_of(ValueError(text))
    for said, limit in (
        (report.exception, MAX_EXCEPTION),
        (report.error, MAX_ERROR),
        (report.traceback, MAX_TRACEBACK),
    ):
        assert len(said.encode()) <= limit


def test_a_traceback_of_10_mb_costs_no_more_than_a_short_one() -> None:
    """Both ends stay; what is between is not even encoded."""
    info = info_of(ValueError("y" * 10_000_000))
    info.traceback = f"begin {'x' * 10_000_000} end"
    began = time.process_time()
    reports = [failure_report(info, 0, 1, "t") for _ in range(100)]
    spent = time.process_time() - began
    traceback = reports[0].traceback
    assert len(traceback.encode()) <= MAX_TRACEBACK
    assert (traceback[:5], traceback[-3:]) == ("begin", "end")
    assert "10000010" in traceback, "how long it was"
    assert spent < 0.5, "encoding them would take a second"


def test_nothing_that_an_exception_does_gets_out(caplog: pytest.LogCaptureFixture) -> None:
    class Worse(Exception):
        pass

    class Info:
        exception = Worse()

        @property
        def traceback(self) -> str:
            raise RecursionError("deep")

    assert failure_report(Info(), 1, 2, "t") == TaskReport(TaskState.RAISED, 1, 2, "t")
    assert "can't be reported" in caplog.text
