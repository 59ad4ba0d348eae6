"""Reports of tasks that are sent without a settlement of their messages, and reports of failures from Celery's data.

If the message of a task is acknowledged when the task begins, the task is reported when it ends. It may outlive the
connection that delivered the message, so a worker's reporter has the current connection.

If the message is acknowledged when the task ends, the task is also reported as running after a second, so that a task
that hangs is known. The reporter checks the active requests periodically, so short tasks cost nothing.

Exceptions of tasks are foreign code: their ``str()``, their attributes and the names of their classes may raise.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from time import time
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

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

from ..client.session.unconfirmed import TaskRun
from ..client.socket.framed_socket import FramedSocket
from ..errors import ConnectionLost
from ..protocol.messages import Lease, Outcome
from ..protocol.task_reports import TaskReport, TaskState
from ..transport.channel import Channel
from ..transport.kombu_message import DeliveredMessage

log = logging.getLogger(__name__)

_REPORT = int(Outcome.REPORT)  # a plain number is encoded faster
#: read for each task; reading a member of an enumeration costs more
_BEGUN, _ACKNOWLEDGED, _SETTLED = TaskRun.BEGUN, TaskRun.ACKNOWLEDGED, TaskRun.SETTLED
#: limit for reports of tasks that ended while the worker had no connection; the broker stops waiting for them earlier
MAX_WAITING = 10_000
#: seconds after which running tasks are reported, and interval of the checks
RUNNING_SECONDS = 1.0
#: limit for the running tasks of one report
MAX_RUNNING = 1_000


class Reporter:
    """Reporter of one worker.

    Args:
        active: returns the start times of tasks whose messages are not acknowledged yet, by lease.

    Attributes:
        channel: the channel of the worker's consumer; None before its first connection.
        lock: the :attr:`.SessionLink.run_lock` of the connection, because a task may end in another thread.
    """

    __slots__ = ("__weakref__", "_active", "_running", "_socket", "_timer", "_waiting", "channel", "lock")

    def __init__(self, active: Callable[[Reporter], Iterable[tuple[Lease, float]]]) -> None:
        self.channel: Channel | None = None
        self.lock = threading.RLock()
        self._active = active
        self._waiting: deque[tuple[Lease, TaskReport]] = deque(maxlen=MAX_WAITING)
        self._running: set[Lease] = set()  # as reported over this socket
        self._socket: FramedSocket | None = None
        self._timer: Any = None

    def watch(self, timer: Any) -> None:
        """Check periodically for running tasks, by a timer of the worker. Without a timer, start a thread for it.

        A worker whose event loop runs the tasks has no timer that works during a task.
        """
        if timer is not None:
            if self._timer is not None:
                self._timer.cancel()  # a worker that reconnects clears only some kinds of timers
            self._timer = timer.call_repeatedly(RUNNING_SECONDS, self.report_running)
        elif self._timer is None:
            self._timer = threading.Thread(target=_watch, args=(weakref.ref(self),), name="opendata-tasks", daemon=True)
            self._timer.start()

    def report_running(self) -> None:
        """Report the long-running tasks, unless they are the same as in the last report. Never raises."""
        connection = None if self.channel is None else self.channel.connection
        if connection is None or connection.closed:
            return
        now = time()
        try:
            ages = ((lease, now - started_at) for lease, started_at in self._active(self))
            active = [(lease, seconds) for lease, seconds in ages if seconds >= RUNNING_SECONDS]
            seconds_by_lease = dict(islice(sorted(active, key=lambda each: -each[1]), MAX_RUNNING))
            if seconds_by_lease or self._running:
                same = self._socket if seconds_by_lease.keys() == self._running else None
                running = [(*lease, int(1000 * seconds)) for lease, seconds in seconds_by_lease.items()]
                self._socket = connection.report_running(running, same)
                self._running = set(seconds_by_lease)
        except ConnectionLost:
            self._socket = None
        except Exception:
            log.exception("the running tasks could not be reported")

    def connect(self, channel: Channel) -> None:
        """Set the worker's new connection, and report the tasks that ended since the last one was lost."""
        self.channel = channel
        connection = channel.connection
        if connection is not None:
            self.lock = connection.link.run_lock
        for _ in range(len(self._waiting)):
            self.report(*self._waiting.popleft())

    @property
    def is_wanted(self) -> bool:
        """True if the broker of the current connection requests reports."""
        return self.channel is not None and self.channel.takes_reports

    def end(self, message: DeliveredMessage, report: TaskReport, expected: TaskReport | None = None) -> None:
        """Report the end of a task: now, or with the message's settlement. Only the first report counts.

        Args:
            expected: a report that was set before the end was known.
        """
        with self.lock:
            run = message.run
            if run is _BEGUN or run is None or run is expected:
                message.run = report
                return
            if run is not _ACKNOWLEDGED:
                return
            message.run = _SETTLED
        self.report(message.lease, report)

    def report(self, lease: Lease, report: TaskReport) -> None:
        """Report a task whose message is acknowledged. Never raises: the task has ended in any case."""
        connection = None if self.channel is None else self.channel.connection
        try:
            if connection is None:
                raise ConnectionLost("the worker has no connection")
            connection.settle_task(0, _REPORT, lease, report)
        except ConnectionLost:
            self._waiting.append((lease, report))
        except Exception:
            log.exception("the outcome of message %d of queue %s could not be reported", lease[1], lease[0])


def _watch(of: weakref.ref[Reporter]) -> None:
    """Report the running tasks of a worker as long as its reporter exists."""
    pause = threading.Event()
    while (reporter := of()) is not None:
        reporter.report_running()
        del reporter
        pause.wait(RUNNING_SECONDS)


#: by pool: a worker's pool outlives its connections
Reporters: TypeAlias = WeakKeyDictionary[Any, Reporter]


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
