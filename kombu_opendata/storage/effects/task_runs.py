"""Effects on task runs: start, end, and the outcomes of tasks whose messages are settled next."""

from __future__ import annotations

from collections.abc import Iterator

from ...protocol.task_reports import TaskReport
from ..records.running_tasks import MAX_WAITED_MS, RunningTask
from ..state.running_state import Lease
from ..state.staged_job import DONE
from ..state.store_state import StoreState
from .deliveries import MessagesEffect
from .effect import Effect

#: by the place of a failed task in the effect: exception, error, traceback; its name, if it is known
Failures = dict[int, tuple[str, ...]]


class StartEffect(MessagesEffect, tag=60):
    """in flight → done, while the task runs: as :class:`AckEffect`, but the attempt continues."""

    def apply(self, state: StoreState) -> None:
        at, queue = self.at_ms, state.queues[self.queue]
        messages = queue.messages
        for id in self.pairs[::2]:
            entry = messages.in_flight[id]
            waited = at - entry.visible_at if 0 < entry.visible_at < at else 0
            if waited > MAX_WAITED_MS:
                waited = MAX_WAITED_MS
            task = RunningTask(id, entry.claimed_at, at, waited, entry.attempts)
            state.running.start(entry.session, self.queue, task)
            state.unlease(entry)
            messages.settle(entry)
            queue.done.append(id, at, entry.attempts)
            queue.counts.acked += 1
            if state.staged.active:
                state.staged.count(self.queue, id, DONE, at)


class FinishEffect(Effect, tag=61):
    """Started tasks have ended. ``runs`` is a flat list id, token, state, runtime in µs, process id, id, … of them."""

    queue: str
    at_ms: int
    runs: list[int]

    def apply(self, state: StoreState) -> None:
        self._finish(state, {})

    def _finish(self, state: StoreState, failures: Failures) -> None:
        queue, at = self.queue, self.at_ms
        for id, token, report in reports_in(self.runs, failures):
            finish(state, (queue, id, token), at, report)


class FinishFailedEffect(FinishEffect, tag=61):
    """As :class:`FinishEffect`, with failed tasks."""

    failures: Failures = {}  # noqa: RUF012 - a field's default; never changed

    def apply(self, state: StoreState) -> None:
        self._finish(state, self.failures)


class NoteReportsEffect(Effect, tag=62):
    """The outcomes of tasks whose messages are settled by the following effects of the same commit.

    ``runs`` is as in :class:`FinishEffect`.
    """

    queue: str
    at_ms: int
    runs: list[int]

    def apply(self, state: StoreState) -> None:
        self._note(state, {})

    def _note(self, state: StoreState, failures: Failures) -> None:
        if state.history is not None:
            for id, _token, report in reports_in(self.runs, failures):
                state.history.reports[self.queue, id] = report


class NoteFailuresEffect(NoteReportsEffect, tag=62):
    """As :class:`NoteReportsEffect`, with failed tasks."""

    failures: Failures = {}  # noqa: RUF012 - a field's default; never changed

    def apply(self, state: StoreState) -> None:
        self._note(state, self.failures)


def finish(state: StoreState, lease: Lease, at: int, report: TaskReport) -> RunningTask | None:
    """End a started task; return its record, or None if it does not run."""
    run = state.running.end(lease)
    if run is None:
        return None
    session, task = run
    if state.history is not None:
        state.history.finished(lease[0], task, state.session_names.get(session, ""), at, report)
    return task


def reports_in(runs: list[int], failures: Failures) -> Iterator[tuple[int, int, TaskReport]]:
    """Yield message id, token and report of each run."""
    fields = iter(runs)
    for place, (id, token, task_state, runtime, pid) in enumerate(zip(*[fields] * 5, strict=True)):
        texts = failures.get(place, _NO_TEXTS) if failures else _NO_TEXTS
        exception, error, traceback, task = (*texts, "")[:4]
        yield id, token, TaskReport(task_state, runtime, pid, task, exception, error, traceback)


_NO_TEXTS = ("", "", "")
