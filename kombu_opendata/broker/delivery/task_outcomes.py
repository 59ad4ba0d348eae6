"""Outcomes of an instance's tasks, counted by task and state, with their runtimes and waiting times.

Senders choose the names of tasks, so only the first :data:`MAX_TASKS` names have separate metrics. The other names
share the metrics of :data:`OTHER`. All metrics begin at 0 at startup.
"""

from __future__ import annotations

from bisect import bisect_left

from ...protocol.task_reports import STATES, TaskReport
from ...storage.clock import Clock
from ...storage.commit.measurements import Histogram

MAX_TASKS = 100
OTHER = "(other)"
#: name for messages without a task
UNKNOWN = "(unknown)"

#: bounds in seconds, from a task that does nothing to a task of an hour
RUNTIME_SECONDS = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0,
)  # fmt: skip
#: bounds in seconds, from an idle worker to a backlog of a day
WAITING_SECONDS = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 3600.0, 21_600.0, 86_400.0)


class RunsOfTask:
    """Outcomes of the runs of one task.

    Attributes:
        states: the number of runs by the number of their :class:`.TaskState`.
        runtime: the runtimes, in seconds.
        waiting: the times for which the messages had been due when the runs began, in seconds.
    """

    __slots__ = ("runtime", "states", "waiting")

    def __init__(self) -> None:
        self.states = [0] * len(STATES)
        self.runtime = Histogram(RUNTIME_SECONDS)
        self.waiting = Histogram(WAITING_SECONDS)


class TaskOutcomes:
    """Outcomes of all tasks since startup; ``tasks`` has them by name."""

    __slots__ = ("_clock", "tasks")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.tasks: dict[str, RunsOfTask] = {}

    def count(self, report: TaskReport, waited_ms: int = -1, *, due_at_ms: int = 0) -> None:
        """Count a task that has ended.

        Args:
            waited_ms: the time for which its message had been due when the task began; -1 if it is unknown.
            due_at_ms: the due time of its message, if the task has just ended.
        """
        if due_at_ms:
            waited_ms = max(self._clock.now_ms() - report.runtime_us // 1000 - due_at_ms, 0)
        runs = self.tasks.get(report.task) or self._runs_of(report.task)
        runs.states[report.state] += 1
        seconds = report.runtime_us / 1e6
        histogram = runs.runtime
        histogram.counts[bisect_left(RUNTIME_SECONDS, seconds)] += 1
        histogram.sum += seconds
        if waited_ms >= 0:
            seconds = waited_ms / 1000
            histogram = runs.waiting
            histogram.counts[bisect_left(WAITING_SECONDS, seconds)] += 1
            histogram.sum += seconds

    def _runs_of(self, task: str) -> RunsOfTask:
        name = task or UNKNOWN
        if name not in self.tasks and len(self.tasks) >= MAX_TASKS:
            name = OTHER
        runs = self.tasks.get(name)
        if runs is None:
            runs = self.tasks[name] = RunsOfTask()
        return runs
