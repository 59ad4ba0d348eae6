"""Shutdown of this process's worker, and calls that a worker repeats until the broker accepts them or the worker ends.

A process of a prefork pool receives no signal when its worker begins a warm shutdown and waits for its tasks. A task
that waits for the broker must notice the shutdown, so that the worker does not wait indefinitely: the processes of a
pool read the worker's stage from shared memory.
"""

from __future__ import annotations

import logging
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
from kombu.exceptions import OperationalError

from ..client.session.route import FIRST_BACKOFF_SECONDS, longer
from ..client.session.session_link import Outlasting, outlasts_outage
from ..errors import ConnectionLost, QueueFull, QueuePaused, RetryLater

log = logging.getLogger(__name__)


class Stage(IntEnum):
    """Stage of a worker, from its startup to its end."""

    RUNS = 0
    WARM = 1
    COLD = 2


#: methods of the pool's bootstep, and the stages that begin with them; a cold shutdown calls ``close`` first
_METHODS = {"create": Stage.RUNS, "close": Stage.WARM, "terminate": Stage.COLD}


class WorkerShutdown:
    """Stage of this process's worker; the process is the worker or one of its pool processes.

    Attributes:
        is_worker: True if there is a worker; forked pool processes inherit the value.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._stage = mmap.mmap(-1, 1)  # shared with forked processes
        self._worker_pid = os.getpid()
        self._shutdown_at: float | None = None
        self.is_worker = False

    def watch(self) -> None:
        """Follow the worker of this process, if its modules are loaded; a second call does nothing."""
        components: Any = sys.modules.get("celery.worker.components")
        if components is None or self.is_worker:
            return
        self.is_worker = True
        self._worker_pid = os.getpid()
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
            self._shutdown_at = None

    def allows_waiting(self, seconds: float) -> bool:
        """Return True if a call may wait: the worker runs, or began a warm shutdown less than ``seconds`` ago."""
        stage = max(self._stage[0], self._requested())
        if stage == Stage.RUNS:
            return True
        if self._shutdown_at is None:
            self._shutdown_at = self._monotonic()
        return stage == Stage.WARM and self._monotonic() - self._shutdown_at < seconds

    def end_worker(self) -> None:
        """Raise the worker's pending shutdown, if this is the worker's thread, in which a solo worker runs tasks."""
        if os.getpid() == self._worker_pid and threading.current_thread() is threading.main_thread():
            _raise_requested()

    def _requested(self) -> Stage:
        """Return the stage that a signal has requested; the last stage if this pool process has lost its worker."""
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


_NOT_NOW = (ConnectionLost, RetryLater, OperationalError)


class ResultNotStored(exceptions.Reject):
    """The worker exits while the broker is unreachable.

    The message of a task with late acknowledgement returns to its queue.
    """

    def __init__(self, reason: object = None, requeue: bool = True) -> None:
        super().__init__(reason, requeue)


class PersistentCalls:
    """Calls of a result backend. In a worker they wait for the broker, as acknowledgements do.

    With a single broker, the connection waits. It keeps its session, so the broker stores nothing twice. With several
    brokers (``has_alternatives``), each call tries one after the other.

    Args:
        shutdown_seconds: seconds for which a call still waits after the worker has begun a warm shutdown.
    """

    def __init__(self, shutdown: WorkerShutdown, shutdown_seconds: float, *, has_alternatives: bool) -> None:
        self._shutdown = shutdown
        self._shutdown_seconds = shutdown_seconds
        self._has_alternatives = has_alternatives

    def do(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call the function; in a worker, repeat it until it succeeds.

        Raises:
            ConnectionLost, RetryLater, OperationalError: this process is no worker, its worker exits, or a queue is
                full.
        """
        if not self._shutdown.is_worker:
            return call(*args)
        pause = FIRST_BACKOFF_SECONDS
        is_logged = False
        while True:
            token = outlasts_outage.set(None if self._has_alternatives else Outlasting(self._may_wait))
            try:
                return call(*args)
            except _NOT_NOW as exc:
                if not is_outage(exc) or not self._may_wait():
                    raise
                if not is_logged:
                    log.warning("the broker does not take what a task has done, trying again: %s", exc)
                is_logged = True
            finally:
                outlasts_outage.reset(token)
            time.sleep(pause)
            pause = longer(pause)

    def do_for(self, request: Any, call: Callable[..., Any], *args: Any) -> Any:
        """Call the function as :meth:`do`, to store the effect of a task; raise ResultNotStored if the worker exits."""
        try:
            return self.do(call, *args)
        except _NOT_NOW as exc:
            if request is None or not self._shutdown.is_worker or not is_outage(exc):
                raise
            log.error("the worker ends, and what a task has done is not stored: %s", exc)
            self._shutdown.end_worker()
            raise ResultNotStored(f"the worker ended before the broker was back: {exc}") from exc

    def do_once(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call the function once. A signal handler may have interrupted a waiting call in the same context."""
        token = outlasts_outage.set(None)
        try:
            return call(*args)
        finally:
            outlasts_outage.reset(token)

    def _may_wait(self) -> bool:
        return self._shutdown.allows_waiting(self._shutdown_seconds)


def is_outage(error: Exception) -> bool:
    """Return True if the broker is unreachable or refuses all calls.

    A full or paused queue may wait for this worker.
    """
    cause = error.__cause__ if isinstance(error, OperationalError) and error.__cause__ is not None else error
    return not isinstance(cause, (QueueFull, QueuePaused))
