"""Calls that a worker repeats until the broker accepts them, without a time limit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from celery.exceptions import Reject
from kombu.exceptions import OperationalError

from ..client.session.route import FIRST_BACKOFF_SECONDS, longer
from ..client.session.session_link import Outlasting, outlasts_outage
from ..errors import ConnectionLost, QueueFull, QueuePaused, RetryLater
from .worker_shutdown import WorkerShutdown

log = logging.getLogger(__name__)

_NOT_NOW = (ConnectionLost, RetryLater, OperationalError)


class ResultNotStored(Reject):
    """The worker exits while the broker is unreachable.

    The message of a task with late acknowledgement returns to its queue.
    """

    def __init__(self, reason: object = None, requeue: bool = True) -> None:
        super().__init__(reason, requeue)


class PersistentCalls:
    """Calls of a result backend. In a worker they wait for the broker, as acknowledgements do.

    With a single broker, the connection waits. It keeps its session, so the broker stores nothing twice. With several,
    each call tries one after the other.

    Args:
        shutdown: the shutdown of the worker, if this process is a worker.
        shutdown_seconds: seconds for which a call still waits after the worker has begun a warm shutdown.
        has_alternatives: whether there are several brokers.
    """

    def __init__(self, shutdown: WorkerShutdown, shutdown_seconds: float, *, has_alternatives: bool) -> None:
        self._shutdown = shutdown
        self._shutdown_seconds = shutdown_seconds
        self._has_alternatives = has_alternatives

    def do(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call the function; in a worker, repeat it until it succeeds.

        Raises:
            ConnectionLost, RetryLater, OperationalError: this process is not a worker, or the worker exits, or a queue
                is full.
        """
        if not self._shutdown.is_worker:
            return call(*args)
        pause, is_logged = FIRST_BACKOFF_SECONDS, False
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
        """Call the function as :meth:`do`, to store the effect of a task.

        Raises:
            ResultNotStored: the worker exits.
        """
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
