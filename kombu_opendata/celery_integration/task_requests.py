"""Celery's requests, which report how their tasks ended.

A worker makes the class of a task's requests with ``create_request_cls``, from the class that ``Task.Request`` names.
What it makes overrides ``on_success`` without calling that class, so a hook in there would not be called:
:func:`reporting` derives a class from what it makes. A user's own class of requests goes on working below.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

from billiard.einfo import ExceptionInfo
from celery.exceptions import NotRegistered

from ..protocol.messages import Lease, Outcome
from ..protocol.task_reports import MAX_NAME, TaskReport, TaskState, shortened
from ..transport.kombu_message import DeliveredMessage
from .task_failures import exception_texts, failure_report
from .task_reporter import Reporter, Reporters

if TYPE_CHECKING:
    from celery.worker.request import Request as _Base
else:
    _Base = object

log = logging.getLogger(__name__)

#: methods of a consumer that settle a message which can't be run
_REFUSALS = ("on_unknown_message", "on_unknown_task", "on_invalid_task", "on_decode_error")
#: methods of a request that are extended
_ENDS = ("on_success", "on_failure", "on_timeout", "revoked", "maybe_expire", "terminate", "cancel", "send_event")
_SUCCEEDED, _START = int(TaskState.SUCCEEDED), int(Outcome.START)  # plain numbers are encoded faster
_ACK = Outcome.ACK  # looked up for each task
#: events that Celery sends after the loss of a pool process, if more is known of the task
_AFTER_LOSS = {"task-succeeded": TaskState.SUCCEEDED, "task-retried": TaskState.RETRIED}


def report_outcomes(reporters: Reporters) -> None:
    """Have the workers of this process report what becomes of tasks, if their pools have reporters.

    Without what this module needs of Celery, workers report nothing, and say so.
    """
    strategy: Any = import_module("celery.worker.strategy")
    consumer: Any = import_module("celery.worker.consumer.consumer").Consumer
    if missing := missing_names(strategy, consumer, import_module("celery.worker.request").Request):
        log.warning("this version of Celery has no %s: outcomes of tasks are not reported", ", ".join(missing))
        return
    strategy.create_request_cls = reporting(strategy.create_request_cls, reporters)
    for name in _REFUSALS:
        setattr(consumer, name, _refusing(getattr(consumer, name), reporters))


def missing_names(strategy: Any, consumer: Any, request: Any) -> list[str]:
    """What this version of Celery lacks."""
    wanted = {"create_request_cls": strategy, **dict.fromkeys(_REFUSALS, consumer), **dict.fromkeys(_ENDS, request)}
    return [name for name, owner in wanted.items() if not hasattr(owner, name)]


def reporting(create_request_cls: Callable[..., Any], reporters: Reporters) -> Callable[..., Any]:
    """``create_request_cls``, for the workers whose pools have reporters."""

    @wraps(create_request_cls)
    def create(base: Any, task: Any, pool: Any, *args: Any, **kwargs: Any) -> Any:
        request_class = create_request_cls(base, task, pool, *args, **kwargs)
        reporter = reporters.get(pool)
        if reporter is None or not reporter.is_wanted:
            return request_class
        own_pid = os.getpid() if pool.is_green else 0  # a green pool calls a greenlet's id its pid
        of_task = ReportedTask(reporter, shortened(task.name, MAX_NAME), own_pid)
        return type("Request", (ReportingRequest, request_class), {"opendata_task": of_task})

    return create


class ReportedTask(NamedTuple):
    """What all requests of a task have in common; ``own_pid`` is 0 where the pool tells the pid."""

    reporter: Reporter
    name: str
    own_pid: int


class ReportingRequest(_Base):
    """What a class of requests is derived from, beside Celery's: reports the end of each run.

    Whether a message's ack comes before or after the task's end, and in which thread, depends on the task and the pool.
    Both come here: :meth:`__settle` and :meth:`__end`. All names are private, as the class beside it may be a user's.
    """

    opendata_task: ReportedTask
    __report: TaskReport | None = None  # what the message's settlement is to carry
    __lease: Lease | None = None  # of a message that was acknowledged before the task's end
    __is_over = False
    __killed: TaskReport | None = None  # the report of a run that the worker was told to end

    def __settle(self, outcome: Outcome) -> TaskReport | int:
        """How to settle the message: with what is known of the task, or so that the task is one that runs."""
        report = self.__report
        if report is None and outcome is _ACK:
            self.__lease = self.message.lease
            return _START
        self.__is_over = True
        return outcome if report is None else report

    def __expect(self, report: TaskReport | None) -> None:
        """What to report if the message is settled before the end is known."""
        if not self.__is_over:
            self.__report = report

    def __end(self, report: TaskReport) -> None:
        """Report the end of the task: now, or with the message's settlement. Only the first one counts."""
        with self.opendata_task.reporter.lock:
            if self.__is_over:
                return
            self.__is_over = True
            if self.__lease is None:
                self.__report = report
                return
        self.opendata_task.reporter.report(self.__lease, report)

    def __runtime_us(self) -> int:
        return max(int((time() - self.time_start) * 1e6), 0) if self.time_start else 0

    def __report_of(self, state: TaskState, error: str = "") -> TaskReport:
        of = self.opendata_task
        return TaskReport(state, self.__runtime_us(), of.own_pid or self.worker_pid or 0, of.name, "", error)

    def __failure(self, exc_info: Any) -> TaskReport:
        of = self.opendata_task
        return failure_report(exc_info, self.__runtime_us(), of.own_pid or self.worker_pid or 0, of.name)

    # ------------------------------------------------------------ how a run ends
    def on_success(self, failed__retval__runtime: Any, **kwargs: Any) -> Any:
        if isinstance(failed__retval__runtime, ExceptionInfo):  # SystemExit, in a pool without processes
            self.__end(self.__failure(failed__retval__runtime))
            return super().on_success(failed__retval__runtime, **kwargs)
        failed, _, seconds = failed__retval__runtime
        if seconds is not None:
            of = self.opendata_task
            pid = of.own_pid or self.worker_pid or 0
            self.__end(TaskReport(_SUCCEEDED, int(seconds * 1e6), pid, of.name))
        elif not failed:  # a green pool killed it, or Celery knew its result
            self.__end(self.__killed or self.__report_of(TaskState.SUCCEEDED))
        return super().on_success(failed__retval__runtime, **kwargs)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        report = self.__killed
        if report is None:
            report = self.__failure(exc_info)
            if report.state == TaskState.LOST:
                return self.__lose(report, exc_info, *args, **kwargs)
        self.__end(report)
        return super().on_failure(exc_info, *args, **kwargs)

    def __lose(self, report: TaskReport, *args: Any, **kwargs: Any) -> Any:
        """The pool process ended. Celery may find out that the task had succeeded, or send it once more."""
        send_event: Callable[..., Any] = super().send_event

        def hear(type: str, **fields: Any) -> Any:
            nonlocal report
            if type in _AFTER_LOSS:
                report = self.__report_of(_AFTER_LOSS[type])
            return send_event(type, **fields)

        self.__expect(report)
        self.send_event = hear
        try:
            return super().on_failure(*args, **kwargs)
        finally:
            del self.send_event
            self.__end(report)

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        if not soft:
            error = f"the hard time limit of {timeout:g} s was exceeded"
            self.__end(self.__killed or self.__report_of(TaskState.TIMED_OUT, error))
        return super().on_timeout(soft, timeout)

    # ------------------------------------------------------------ how it is begun or ended
    def revoked(self) -> Any:
        self.message.on_settle = self.__settle  # each run is preceded by this question
        revoked = super().revoked()
        if revoked:
            self.__end(self.__report_of(TaskState.REVOKED, "it expired" if self.maybe_expire() else ""))
        return revoked

    def terminate(self, *args: Any, **kwargs: Any) -> Any:
        report = self.__report_of(TaskState.REVOKED, "it was terminated")
        result = self.__kill(super().terminate, report, args, kwargs)
        if self.time_start:
            self.__end(report)
        return result

    def cancel(self, *args: Any, **kwargs: Any) -> Any:
        return self.__kill(super().cancel, self.__report_of(TaskState.LOST, "its worker cancelled it"), args, kwargs)

    def __kill(self, kill: Callable[..., Any], report: TaskReport, args: Any, kwargs: Any) -> Any:
        before, self.__killed = self.__killed, report
        self.__expect(report)  # if it acknowledges meanwhile
        try:
            return kill(*args, **kwargs)
        except BaseException:  # a pool that can't do it
            self.__killed = before
            self.__expect(before)
            raise


def _refusing(refuse: Callable[..., Any], reporters: Reporters) -> Callable[..., Any]:
    """One of :data:`_REFUSALS`; its arguments are some of body, message and error."""

    @wraps(refuse)
    def wrapped(consumer: Any, *args: Any, **kwargs: Any) -> Any:
        reporter = reporters.get(consumer.pool)
        message = next((arg for arg in args if isinstance(arg, DeliveredMessage)), None)
        if reporter is not None and reporter.is_wanted and message is not None:
            error = next((arg for arg in args if isinstance(arg, Exception)), None)
            message.on_settle = partial(_said, _refusal(error))
        return refuse(consumer, *args, **kwargs)

    return wrapped


def _said(report: TaskReport, _outcome: Outcome) -> TaskReport:
    return report


def _refusal(error: Exception | None) -> TaskReport:
    """The report of a message that no task ran for. Its task's name is the sender's, so it counts under no name."""
    if error is None:
        exception, text = "", "it is not the message of a task"
    elif type(error) is KeyError:  # the look-up of its task failed
        exception, text = exception_texts(NotRegistered(*error.args))
    else:
        exception, text = exception_texts(error)
    return TaskReport.cut(TaskState.REJECTED, 0, os.getpid(), "", exception, text)
