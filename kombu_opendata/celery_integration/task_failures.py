"""Reports of tasks that did not succeed, from Celery's data: the state, and the exception as texts.

The exceptions are those of tasks, so every access may raise: their ``str()``, their attributes, the names of their
classes.
"""

from __future__ import annotations

import logging
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import (
    Ignore,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
)
from celery.utils.serialization import UnpickleableExceptionWrapper

from ..protocol.task_reports import TaskReport, TaskState

log = logging.getLogger(__name__)

_STATES: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], TaskState], ...] = (
    (Retry, TaskState.RETRIED),
    (Reject, TaskState.REJECTED),
    (Ignore, TaskState.IGNORED),
    ((TimeLimitExceeded, SoftTimeLimitExceeded), TaskState.TIMED_OUT),
    ((WorkerLostError, SystemExit, KeyboardInterrupt), TaskState.LOST),
    (Terminated, TaskState.REVOKED),
)


def failure_report(exc_info: Any, runtime_us: int, pid: int, task: str) -> TaskReport:
    """Return the report of a run that ended with an exception; ``exc_info`` is Celery's ``ExceptionInfo``.

    Never raises.
    """
    state = TaskState.RAISED
    try:
        exc = exc_info.exception
        if isinstance(exc, ExceptionWithTraceback):
            exc = exc.exc
        state = next((state for kinds, state in _STATES if isinstance(exc, kinds)), state)
        if state is TaskState.IGNORED:
            return TaskReport(state, runtime_us, pid, task)
        exception, error = exception_texts(_reason(exc))
        traceback = exc_info.traceback
        return TaskReport.cut(
            state, runtime_us, pid, task, exception, error, traceback if isinstance(traceback, str) else ""
        )
    except Exception:
        log.exception("the exception of task %s can't be reported", task)
        return TaskReport(state, runtime_us, pid, task)


def _reason(exc: BaseException) -> BaseException:
    """Return the exception for which a task is retried or rejected, or the exception itself."""
    if isinstance(exc, Retry):
        reason = exc.exc
    elif isinstance(exc, Reject):
        reason = exc.reason
    else:
        return exc
    return reason if isinstance(reason, BaseException) else exc


def exception_texts(exc: BaseException) -> tuple[str, str]:
    """Return the qualified name of an exception's type, and its message."""
    if isinstance(exc, UnpickleableExceptionWrapper):  # stands for an exception that could not leave the pool's process
        module, name = str(exc.exc_module), str(exc.exc_cls_name)
    else:
        module, name = str(type(exc).__module__), type(exc).__qualname__
    try:
        text = str(exc.reason or "") if isinstance(exc, Reject) else str(exc)
    except (Exception, SystemExit, GeneratorExit):  # would end the worker
        text = f"<str() of this {name} failed>"
    return (name if module == "builtins" else f"{module}.{name}"), text
