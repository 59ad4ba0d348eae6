"""What findings are made from: what the broker said, in the shapes that the rules need."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ....queue_client.queue_models import QueueMetrics, Worker
from ..figures.recent_figures import Trend


@dataclass(frozen=True)
class TaskFailures:
    """Failures of a task in the last minutes, by exception or reason, the most frequent first; the task may be empty
    for messages that are no tasks."""

    task: str
    queue: str
    by_exception: tuple[tuple[str, int], ...]

    @property
    def count(self) -> int:
        """All of them."""
        return sum(count for _name, count in self.by_exception)


@dataclass(frozen=True)
class Busy:
    """Messages of one task that one worker has had for long.

    Attributes:
        task: its name; empty for a message that is no task.
        task_id, message_id: of the oldest.
        running: whether the worker reported that the task began; otherwise it only holds the message.
        seconds: for how long, the oldest.
        count: how many of them run, or how many are held if none runs.
        usual_seconds: how long 95 of 100 runs of the task took; None if that is not known.
        waiting: how many the worker holds beside those that run.
    """

    task: str
    task_id: str
    message_id: int
    queue: str
    worker: str
    running: bool
    seconds: float
    count: int
    usual_seconds: float | None
    waiting: int = 0


@dataclass(frozen=True)
class Seen:
    """All figures at one moment.

    Attributes:
        queues: without those that Celery makes for itself.
        trends: by queue; none from a broker that keeps no figures.
        status: the broker's report; empty if the user may not see it.
        clock_ahead_seconds: of the broker's clock, compared with this host's.
        leases_expired: by queue, in the last ten minutes, or since the page looks.
        expects_standby: there was one, or the page's URL names more than one broker.
    """

    now: datetime
    queues: list[QueueMetrics] = field(default_factory=list)
    trends: dict[str, Trend] = field(default_factory=dict)
    failures: list[TaskFailures] = field(default_factory=list)
    busy: list[Busy] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)
    clock_ahead_seconds: float = 0.0
    expects_standby: bool = False
    leases_expired: dict[str, int] = field(default_factory=dict)
