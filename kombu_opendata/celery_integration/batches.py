"""Outcomes of the batches of celery-batches, each of which is one run for many messages.

The tasks of celery-batches call no method of their requests at the end of a run, and a pool process catches the
exception of a run. Therefore each of these tasks gets another ``flush``, which lets the pool run :func:`run_batch`. Its
return value is the report for all messages of the batch.

The modules of celery-batches are imported in functions: they are present only if the app uses them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextvars import ContextVar
from functools import partial, wraps
from time import monotonic
from typing import Any

from billiard.einfo import ExceptionInfo

from ..client.session.unconfirmed import TaskRun
from ..protocol.task_reports import MAX_NAME, TaskReport, TaskState, shortened
from .task_reporter import Reporter, failure_report

_failure: ContextVar[ExceptionInfo | None] = ContextVar("failure", default=None)


def report_batches(app: Any, pool: Any, reporter: Reporter) -> None:
    """Make the batches of an app's worker report their outcomes."""
    from celery_batches import Batches

    for task in app.tasks.values():
        if isinstance(task, Batches):
            task.flush = partial(_flush, task, pool, reporter)


def _flush(task: Any, pool: Any, reporter: Reporter, requests: Collection[Any]) -> Any:
    """Let the pool run a batch, as ``Batches.flush``."""
    from celery_batches import SimpleRequest

    if not reporter.is_wanted:
        return type(task).flush(task, requests)

    def accepted(_pid: int, _accepted_at: float) -> None:
        for request in requests:
            request.message.run = TaskRun.BEGUN
            if not task.acks_late:
                request.acknowledge()

    def ended(outcome: Any) -> None:
        report = outcome if isinstance(outcome, TaskReport) else failure_report(outcome, 0, 0, _name(task))
        if task.acks_late and report.state is TaskState.LOST:
            return  # the messages are delivered again when the worker ends
        for request in requests:
            reporter.end(request.message, report)
            if task.acks_late:
                request.acknowledge()

    simple = [SimpleRequest.from_request(request) for request in requests]
    return pool.apply_async(run_batch, (task, simple), accept_callback=accepted, callback=ended, error_callback=ended)


def run_batch(task: Any, requests: list[Any]) -> TaskReport:
    """Run a batch in a process or a thread of the pool."""
    from celery_batches.trace import apply_batches_task

    task_class = type(task)  # each task has its own class
    if "opendata_recorded" not in vars(task_class):
        task_class.__call__ = _recording(task_class.__call__)
        task_class.opendata_recorded = True
    token = _failure.set(None)
    began = monotonic()
    try:
        apply_batches_task(task, (requests,), 0, None)
        runtime_us = int((monotonic() - began) * 1e6)
        failure = _failure.get()
    finally:
        _failure.reset(token)
    if failure is None:
        return TaskReport(TaskState.SUCCEEDED, runtime_us, os.getpid(), _name(task))
    return failure_report(failure, runtime_us, os.getpid(), _name(task))


def _recording(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a task's ``__call__`` to record the exception of a run."""

    @wraps(call)
    def recording(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except Exception:
            _failure.set(ExceptionInfo())
            raise

    return recording


def _name(task: Any) -> str:
    return shortened(task.name, MAX_NAME)
