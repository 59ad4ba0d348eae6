"""Input of the rules: the broker's reports, in the shapes that the rules need."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ....queue_client.queue_models import QueueMetrics, Worker
from ..figures.recent_figures import Trend


@dataclass(frozen=True)
class TaskFailures:
    """Failures of a task in the last minutes, by exception or reason, the most frequent first.

    The task is empty for messages that are no tasks.
    """

    task: str
    queue: str
    by_exception: tuple[tuple[str, int], ...]

    @property
    def count(self) -> int:
        """The number of all failures."""
        return sum(count for _name, count in self.by_exception)


@dataclass(frozen=True)
class Busy:
    """Messages of one task that one worker has held or run for long.

    Attributes:
        task: its name; empty for a message that is no task.
        task_id, message_id: ids of the oldest.
        running: whether the worker reported that the task began; otherwise it only holds the message.
        seconds: the duration for the oldest.
        count: the number of running messages, or of held ones if none runs.
        usual_seconds: the 95th percentile of the task's runtime; None if unknown.
        waiting: the number of messages that the worker holds beside the running ones.
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
    """All data at one moment.

    Attributes:
        queues: all queues except those that Celery creates for itself.
        trends: by queue; empty if the broker keeps no recent metrics.
        status: the broker's report; empty if the user may not see it.
        clock_ahead_seconds: the difference of the broker's clock to this host's.
        leases_expired: by queue, in the last ten minutes, or since the first reading.
        expects_standby: there was a standby, or the web UI's URL names more than one broker.
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
