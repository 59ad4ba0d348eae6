"""Shutdown of this process's worker, which the processes of its pool read from shared memory.

A process of a prefork pool receives no signal when its worker begins a warm shutdown: the worker waits for its tasks. A
task that waits for the broker must notice the shutdown, so that the worker does not wait indefinitely.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from functools import wraps
from typing import Any

from celery import exceptions


class Stage(IntEnum):
    """Stage of a worker, from its startup to its end."""

    RUNS = 0
    WARM = 1
    COLD = 2


#: methods of the bootstep of the worker's pool, and the stages that they begin; a cold shutdown calls ``close`` first
_METHODS = {"create": Stage.RUNS, "close": Stage.WARM, "terminate": Stage.COLD}


class WorkerShutdown:
    """Stage of this process's worker; the process is the worker or one of its pool processes.

    Attributes:
        is_worker: True if there is a worker. Its pool processes inherit the value, as they are forked.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._stage = mmap.mmap(-1, 1)  # shared with forked processes
        self._worker_pid = os.getpid()
        self._seen_at: float | None = None
        self.is_worker = False

    def watch(self) -> None:
        """Follow the worker of this process, if its modules are loaded; a second call does nothing."""
        components: Any = sys.modules.get("celery.worker.components")
        if components is None or self.is_worker:
            return
        self.is_worker, self._worker_pid = True, os.getpid()
        for name, stage in _METHODS.items():
            setattr(components.Pool, name, self._noting(getattr(components.Pool, name), stage))

    def _noting(self, method: Callable[..., Any], stage: Stage) -> Callable[..., Any]:
        @wraps(method)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.enter(stage)
            return method(*args, **kwargs)

        return wrapped

    def enter(self, stage: Stage) -> None:
        """Record the worker's stage for all its processes."""
        self._stage[0] = stage
        if stage == Stage.RUNS:
            self._seen_at = None

    def allows_waiting(self, seconds: float) -> bool:
        """Return True if a call may wait: the worker runs, or began a warm shutdown less than ``seconds`` ago."""
        stage = max(self._stage[0], self._requested())
        if stage == Stage.RUNS:
            return True
        if self._seen_at is None:
            self._seen_at = self._monotonic()
        return stage == Stage.WARM and self._monotonic() - self._seen_at < seconds

    def end_worker(self) -> None:
        """Raise the worker's pending shutdown, in its own thread: a solo worker runs tasks there."""
        if os.getpid() == self._worker_pid and threading.current_thread() is threading.main_thread():
            _raise_requested()

    def _requested(self) -> Stage:
        """Return the stage that a signal has requested, or the end of the worker of this pool process."""
        if os.getpid() != self._worker_pid:
            return Stage.RUNS if os.getppid() == self._worker_pid else Stage.COLD
        try:
            _raise_requested()
        except exceptions.WorkerTerminate:
            return Stage.COLD
        except exceptions.WorkerShutdown:
            return Stage.WARM
        return Stage.RUNS


def _raise_requested() -> None:
    from celery.worker.state import maybe_shutdown  # imported here for programs that only send tasks

    maybe_shutdown()


worker_shutdown = WorkerShutdown()
