"""Sends the reports of tasks whose messages were acknowledged when they began.

A task may outlive the connection over which its message came, so a worker's reporter has the present one.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from ..errors import ConnectionLost
from ..protocol.messages import Lease, Outcome
from ..protocol.task_reports import TaskReport
from ..transport.channel import Channel

log = logging.getLogger(__name__)

_REPORT = int(Outcome.REPORT)  # a plain number is encoded faster
#: reports of tasks that ended while the worker was without a connection; the broker gives up waiting before
MAX_WAITING = 10_000


class Reporter:
    """The reports of one worker.

    Attributes:
        channel: that of the worker's consumer; None before its first connection.
        lock: of the connection, while a message is settled: a task's end may come in another thread.
    """

    __slots__ = ("__weakref__", "_waiting", "channel", "lock")

    def __init__(self) -> None:
        self.channel: Channel | None = None
        self.lock = threading.RLock()
        self._waiting: deque[tuple[Lease, TaskReport]] = deque(maxlen=MAX_WAITING)

    def connect(self, channel: Channel) -> None:
        """The worker has a new connection: report what ended since it lost the last one."""
        self.channel = channel
        connection = channel.connection
        if connection is not None:
            self.lock = connection.link.lock
        for _ in range(len(self._waiting)):
            self.report(*self._waiting.popleft())

    @property
    def is_wanted(self) -> bool:
        """Whether the broker of the present connection takes reports."""
        return self.channel is not None and self.channel.takes_reports

    def report(self, lease: Lease, report: TaskReport) -> None:
        """Report a task whose message is acknowledged. Raises nothing: the task has ended, whoever knows of it."""
        connection = None if self.channel is None else self.channel.connection
        try:
            if connection is None:
                raise ConnectionLost("the worker has no connection")
            connection.settle_task(0, _REPORT, lease, report)
        except ConnectionLost:
            self._waiting.append((lease, report))
        except Exception:
            log.exception("the outcome of message %d of queue %s could not be reported", lease[1], lease[0])


#: by pool: a worker's pool outlives its connections
Reporters: TypeAlias = WeakKeyDictionary[Any, Reporter]
