"""Task runs: tasks that start when their message is acknowledged, and the outcomes that workers report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from ...errors import StoreFull
from ...protocol.task_reports import TaskReport, TaskState, shortened
from ..effects import tasks as task_effects
from ..effects.deliveries import AckEffect
from ..engine_parts import EngineParts, EngineService
from ..records.session_records import RunningTask
from ..state.queue_buckets import QueueEntry
from ..state.store_state import Queue
from ..state.task_state import Lease
from .message_operations import Operations

#: outcome of a task without a report
_UNKNOWN = TaskReport(0)
#: the length of an error for which there is no room in full
SHORT_ERROR = 255
LEFT_OUT = "(the traceback was left out: too many tasks failed at the same time)"


class LostTask(NamedTuple):
    """A task that no worker will report."""

    queue: str
    task: RunningTask
    report: TaskReport


class TaskRuns(EngineService):
    def __init__(self, parts: EngineParts, operations: Operations, *, enabled: bool) -> None:
        """Create the runs. If not ``enabled``, a start is an ack; tasks that already run end by :meth:`lose`."""
        super().__init__(parts)
        self.enabled = enabled
        self._operations = operations
        self._effects = parts.commits.effects

    def start(self, queue: Queue, entries: Iterable[QueueEntry]) -> None:
        """Move messages from in flight to done; their tasks, all of one session, run until :meth:`finish`."""
        at, session = self._clock.now_ms(), b""
        pairs: list[int] = []
        for entry in entries:
            session = entry.session
            self._payloads.drop(entry.id)
            pairs += entry.id, entry.bucket
        kind: type[task_effects.StartEffect | AckEffect] = task_effects.StartEffect if self.enabled else AckEffect
        effect = kind(queue.name, at, pairs)
        effect.apply(self._state)
        last = self._effects[-1] if self._effects else None
        if isinstance(last, kind) and last.at_ms == at and last.queue == queue.name:
            last.pairs += pairs
        else:
            self._effects.append(effect)
        session_tasks = self._state.running.by_session.get(session, {})
        if len(session_tasks) > self._sizes.running_tasks:  # the client sends no reports
            self.finish(next(iter(session_tasks)), TaskReport(TaskState.LOST))

    def note_late(self, session: bytes, running_ms: dict[Lease, int]) -> None:
        """Record the run times of the tasks of a session's messages in flight. They are only in memory."""
        now = self._clock.now_ms()
        since = {lease: min(max(now - for_ms, lease[2]), now) for lease, for_ms in running_ms.items()}
        self._state.running.set_late(session, since)

    def has(self, session: bytes, lease: Lease) -> bool:
        return self._state.running.by_lease.get(lease) == session

    def finish(self, lease: Lease, report: TaskReport) -> RunningTask | None:
        """End a started task; return its record, or None if it does not run."""
        at = self._clock.now_ms()
        has_failed = report.exception or report.error or report.traceback
        if has_failed:
            report = self._fitting(report)
        task = task_effects.finish(self._state, lease, at, report)
        if task is None:
            return None
        name, id, token = lease
        run = [id, token, report.state, report.runtime_us, report.pid]
        effects = self._effects
        last = effects[-1] if effects else None
        if has_failed:
            effects.append(task_effects.FinishFailedEffect(name, at, run, _failures(report)))
        elif type(last) is task_effects.FinishEffect and last.at_ms == at and last.queue == name:
            last.runs += run
        else:
            effects.append(task_effects.FinishEffect(name, at, run))
        return task

    def ack(self, queue: Queue, entry: QueueEntry, report: TaskReport) -> None:
        """Move a message from in flight to done, with the outcome of its task."""
        if self.enabled and not (report.exception or report.error or report.traceback):
            self._operations.ack(queue, (entry,), (report.state, report.runtime_us, report.pid))
            return
        self.note(queue, entry, report)
        self._operations.ack(queue, (entry,))

    def note(self, queue: Queue, entry: QueueEntry, report: TaskReport) -> None:
        """Record the outcome of the task of a message in flight, before the operation that settles the message."""
        if not self.enabled or self._state.history is None:
            return
        at = self._clock.now_ms()
        id = entry.id
        name = queue.name
        report = self._fitting(report)
        run = [id, entry.claimed_at, report.state, report.runtime_us, report.pid]
        failures = _failures(report)
        self._commits.apply(
            task_effects.NoteFailuresEffect(name, at, run, failures)
            if failures
            else task_effects.NoteReportsEffect(name, at, run)
        )

    def lose(self, session: bytes) -> list[LostTask]:
        """End the tasks of a session that no longer reports: as lost, or without a state if reports are off."""
        now = self._clock.now_ms()
        lost_tasks = []
        for lease, task in list(self._state.running.by_session.get(session, {}).items()):
            report = TaskReport(TaskState.LOST, 1000 * max(now - task.started_at_ms, 0)) if self.enabled else _UNKNOWN
            self.finish(lease, report)
            lost_tasks.append(LostTask(lease[0], task, report))
        return lost_tasks

    def _fitting(self, report: TaskReport) -> TaskReport:
        """Return the report, with its texts shortened or removed if there is no room for them."""
        if not (report.error or report.traceback):
            return report
        commits = self._commits
        size = len(report.error) + len(report.traceback)
        try:
            commits.check_room(size)
        except StoreFull:
            return replace(report, error="", traceback="")
        if commits.text_bytes + size > self._sizes.report_bytes:
            report = replace(report, error=shortened(report.error, SHORT_ERROR), traceback=LEFT_OUT)
        commits.text_bytes += len(report.error) + len(report.traceback)
        return report


def _failures(report: TaskReport) -> task_effects.Failures:
    """Return the texts of the only run of an effect; empty if it did not fail."""
    if report.exception or report.error or report.traceback:
        return {0: (report.exception, report.error, report.traceback, report.task)}
    return {}
