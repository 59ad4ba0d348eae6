"""Celery requests that report the outcomes of their tasks.

A worker makes the class of a task's requests with ``create_request_cls``, from the base class that ``Task.Request``
names. That class overrides ``on_success`` and does not call the base's, so a base class could not report successes.
Therefore :func:`reporting` derives another class from the worker's. A user's own base class still works.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from time import time
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery.exceptions import InvalidTaskError, NotRegistered

from ..client.session.unconfirmed import TaskRun
from ..protocol.messages import Lease
from ..protocol.task_reports import MAX_NAME, TaskReport, TaskState, shortened
from ..transport.kombu_message import DeliveredMessage
from .task_reporter import Reporter, Reporters, exception_texts, failure_report

if TYPE_CHECKING:
    from celery.worker.request import Request as _Base
else:
    _Base = object

log = logging.getLogger(__name__)

#: the property in a task's request with the queue and the id of its message
DELIVERED = "x-opendata-delivered"

#: methods of a consumer that settle a message that can't be run
_REFUSALS = ("on_unknown_message", "on_unknown_task", "on_invalid_task", "on_decode_error")
#: methods of a request that are extended
_ENDS = ("on_success", "on_failure", "on_timeout", "revoked", "maybe_expire", "terminate", "cancel", "send_event")
_SUCCEEDED = int(TaskState.SUCCEEDED)  # a plain number is encoded faster
#: read for each task; reading a member of an enumeration costs more
_BEGUN, _ACKNOWLEDGED, _SETTLED = TaskRun.BEGUN, TaskRun.ACKNOWLEDGED, TaskRun.SETTLED
#: the time limits in the message of a task without any
_NO_LIMITS = [None, None]
#: events that Celery sends after the loss of a pool process if it knows the task's state
_AFTER_LOSS = {"task-succeeded": TaskState.SUCCEEDED, "task-retried": TaskState.RETRIED}


def report_outcomes(reporters: Reporters) -> None:
    """Make the workers of this process report the outcomes of tasks, if their pools have reporters.

    If Celery lacks a name that this module needs, workers report nothing and log a warning.
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
    """Return the names that this version of Celery lacks."""
    owners = {"create_request_cls": strategy, **dict.fromkeys(_REFUSALS, consumer), **dict.fromkeys(_ENDS, request)}
    return [name for name, owner in owners.items() if not hasattr(owner, name)]


def reporting(create_request_cls: Callable[..., Any], reporters: Reporters) -> Callable[..., Any]:
    """Wrap ``create_request_cls`` for the workers whose pools have reporters."""

    @wraps(create_request_cls)
    def create(base: Any, task: Any, pool: Any, *args: Any, **kwargs: Any) -> Any:
        request_class = create_request_cls(base, task, pool, *args, **kwargs)
        reporter = reporters.get(pool)
        if reporter is None or not reporter.is_wanted:
            return request_class
        own_pid = os.getpid() if pool.is_green else 0  # a green pool reports a greenlet's id as its pid
        name = shortened(task.name, MAX_NAME)
        of_task = ReportedTask(
            reporter, name, bool(task.acks_late), own_pid, request_class.on_success, request_class.revoked
        )
        return type("Request", (ReportingRequest, request_class), {"opendata_task": of_task})

    return create


@dataclass(frozen=True, slots=True)
class ReportedTask:
    """Common data of all requests of a task.

    Attributes:
        name: the name of the task.
        acks_late: whether its messages are acknowledged when it has ended.
        own_pid: the pid of the worker; 0 if the pool reports the pid.
        on_success, revoked: the methods that are extended. They are called for each task, and ``super()`` would search
            for them in one class after the other.
    """

    reporter: Reporter
    name: str
    acks_late: bool
    own_pid: int
    on_success: Callable[..., Any]
    revoked: Callable[..., Any]


class ReportingRequest(_Base):
    """Base class of requests, besides Celery's, which reports the end of each run.

    A message's ack and the task's end may happen in any order and in two threads, depending on the task and the pool.
    Both synchronize on the message's ``run``. All names are private, because the other base class may be a user's.
    """

    opendata_task: ReportedTask
    # Celery's requests have slots, so an instance attribute costs a dictionary. Few requests set these two.
    __killed: TaskReport | None = None  # report of a run that a user terminated or cancelled
    __expected: TaskReport | None = None  # report for the message's settlement while the end is unknown

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Refuse a message that would end the worker: Celery does not check the types of these values.

        An id that is not a text, such as a UUID, becomes one: result backends would fail with it.

        Raises:
            InvalidTaskError: the worker rejects the message.
        """
        headers = kwargs.get("headers") or {}
        if type(id := headers.get("id")) is not str and id:
            headers["id"] = str(id)
        try:
            super().__init__(*args, **kwargs)
            self.stamped_headers and self.stamps  # noqa: B018 - properties that raise
        except (AttributeError, LookupError, TypeError, ValueError) as exc:
            raise InvalidTaskError(f"it is not the message of a task: {exc}") from exc
        if not self.id:
            raise InvalidTaskError("the message has no id")
        if (limits := self.time_limits) != _NO_LIMITS and not _are_limits(limits):
            raise InvalidTaskError(f"the time limits of a task are two numbers, not {limits!r}")

    def __expect(self, report: TaskReport | None) -> None:
        """Set the report for a settlement of the message before the end is known."""
        with self.opendata_task.reporter.lock:
            message = self.message
            if message.run is None or message.run is _BEGUN or message.run is self.__expected:
                message.run = _BEGUN if report is None else report
                self.__expected = report

    def __end(self, report: TaskReport) -> None:
        """Report the end of the task: now, or with the message's settlement. Only the first report counts."""
        self.opendata_task.reporter.end(self.message, report, self.__expected)

    def __runtime_us(self) -> int:
        return max(int((time() - self.time_start) * 1e6), 0) if self.time_start else 0

    def __report_of(self, state: TaskState, error: str = "") -> TaskReport:
        of = self.opendata_task
        return TaskReport(state, self.__runtime_us(), of.own_pid or self.worker_pid or 0, of.name, "", error)

    def __failure(self, exc_info: Any) -> TaskReport:
        of = self.opendata_task
        return failure_report(exc_info, self.__runtime_us(), of.own_pid or self.worker_pid or 0, of.name)

    # ------------------------------------------------------------ ends of a run
    def on_success(self, failed__retval__runtime: Any, **kwargs: Any) -> Any:
        of = self.opendata_task
        if isinstance(failed__retval__runtime, ExceptionInfo):  # SystemExit, in a pool without processes
            self.__end(self.__failure(failed__retval__runtime))
            return of.on_success(self, failed__retval__runtime, **kwargs)
        failed, _, seconds = failed__retval__runtime
        if seconds is not None:
            report = TaskReport(_SUCCEEDED, int(seconds * 1e6), of.own_pid or self.worker_pid or 0, of.name)
            message = self.message
            run = message.run
            # as in __end, without its lock
            if run is _ACKNOWLEDGED:  # if two threads end it concurrently, the broker accepts the first report
                message.run = _SETTLED
                of.reporter.report(message.lease, report)
            elif run is _BEGUN and of.acks_late:  # no thread acknowledges it yet
                message.run = report
            else:
                self.__end(report)
        elif not failed:  # a green pool killed it, or Celery knew its result
            self.__end(self.__killed or self.__report_of(TaskState.SUCCEEDED))
        return of.on_success(self, failed__retval__runtime, **kwargs)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        report = self.__killed
        if report is None:
            report = self.__failure(exc_info)
            if report.state == TaskState.LOST:
                return self.__lose(report, exc_info, *args, **kwargs)
        self.__end(report)
        return super().on_failure(exc_info, *args, **kwargs)

    def __lose(self, report: TaskReport, *args: Any, **kwargs: Any) -> Any:
        """Handle the loss of the pool process. Celery may find that the task had succeeded, or publish it again."""
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

    # ------------------------------------------------------------ start and cancellation
    def revoked(self) -> Any:
        message = self.message
        if message.run is None:  # Celery checks this before each run
            message.run = _BEGUN
            message.properties[DELIVERED] = message.lease[:2]  # Celery passes the properties to the task
        revoked = self.opendata_task.revoked(self)
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
        self.__expect(report)  # for an ack in the meantime
        try:
            return kill(*args, **kwargs)
        except BaseException:  # the pool does not support it
            self.__killed = before
            self.__expect(before)
            raise


def _are_limits(limits: Any) -> bool:
    return len(limits) == 2 and all(limit is None or isinstance(limit, (int, float)) for limit in limits)


def running_late(reporter: Reporter) -> Iterator[tuple[Lease, float]]:
    """Yield the leases and start times of a worker's running tasks whose messages are not acknowledged.

    These are the tasks with ``acks_late``, and all tasks of a solo worker, whose event loop acknowledges when it runs
    again.
    """
    for request in _active_requests():
        if isinstance(request, ReportingRequest) and request.opendata_task.reporter is reporter:
            message, began = request.message, request.time_start
            if began and message.run is _BEGUN:
                yield message.lease, began


def _active_requests() -> list[Any]:
    active: Any = import_module("celery.worker.state").active_requests
    while True:
        with suppress(RuntimeError):  # another thread began or ended a task during the copy
            return list(active)


def _refusing(refuse: Callable[..., Any], reporters: Reporters) -> Callable[..., Any]:
    """Wrap one of :data:`_REFUSALS`; its arguments are some of body, message and error."""

    @wraps(refuse)
    def wrapped(consumer: Any, *args: Any, **kwargs: Any) -> Any:
        reporter = reporters.get(consumer.pool)
        message = next((arg for arg in args if isinstance(arg, DeliveredMessage)), None)
        if reporter is not None and reporter.is_wanted and message is not None:
            error = next((arg for arg in args if isinstance(arg, Exception)), None)
            message.run = _refusal(error)
        return refuse(consumer, *args, **kwargs)

    return wrapped


def _refusal(error: Exception | None) -> TaskReport:
    """Return the report of a message for which no task ran. It omits the task name, which the sender chose."""
    if error is None:
        exception, text = "", "it is not the message of a task"
    elif type(error) is KeyError:  # its task is not registered
        exception, text = exception_texts(NotRegistered(*error.args))
    else:
        exception, text = exception_texts(error)
    return TaskReport.cut(TaskState.REJECTED, 0, os.getpid(), "", exception, text)
