"""Effects on tasks: their runs and outcomes, their results and chords, and failures that were handled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ...protocol.task_reports import TaskReport
from ..records.failures import Handled
from ..records.payload_places import EnvelopePlace
from ..records.results import Result
from ..records.session_records import MAX_WAITED_MS, RunningTask
from ..state.staged_state import DONE
from ..state.store_state import StoreState
from ..state.task_state import Lease
from . import Effect
from .deliveries import MessagesEffect, acknowledge

#: place of a failed task in the effect → exception, error, traceback, and the name of the task if it is known
Failures = dict[int, tuple[str, ...]]


class StartEffect(MessagesEffect, tag=60):
    """in flight → done, while the task runs: as :class:`AckEffect`, but the attempt continues."""

    def apply(self, state: StoreState) -> None:
        at, queue = self.at_ms, state.queues[self.queue]
        for id in self.pairs[::2]:
            entry = queue.messages.in_flight[id]
            waited = at - entry.visible_at if 0 < entry.visible_at < at else 0
            if waited > MAX_WAITED_MS:
                waited = MAX_WAITED_MS
            partitions = queue.messages.partitions
            partition = 0 if partitions is None else partitions.started(entry)
            task = RunningTask(id, entry.claimed_at, at, waited, entry.attempts, partition)
            state.running.start(entry.session, self.queue, task)
            acknowledge(state, queue, entry, at)
            if state.staged.active:
                state.staged.left(self.queue, id, DONE)


class ReportsEffect(Effect):
    """The base of effects with reports of tasks."""

    queue: str
    at_ms: int
    runs: list[int]
    failures: ClassVar[Failures] = {}


class FinishEffect(ReportsEffect, tag=61):
    """Started tasks have ended. ``runs`` is a flat list id, token, state, runtime in µs, process id, id, … of them."""

    def apply(self, state: StoreState) -> None:
        queue, at = self.queue, self.at_ms
        for id, token, report in reports_in(self.runs, self.failures):
            finish(state, (queue, id, token), at, report)


class FinishFailedEffect(FinishEffect, tag=61):
    """As :class:`FinishEffect`, with failed tasks."""

    failures: Failures = {}  # type: ignore[misc]  # noqa: RUF012 - a field of the longer form


class NoteReportsEffect(ReportsEffect, tag=62):
    """The outcomes of tasks whose messages are settled by the following effects of the same commit.

    ``runs`` is as in :class:`FinishEffect`.
    """

    def apply(self, state: StoreState) -> None:
        for id, _token, report in reports_in(self.runs, self.failures):
            if state.history is not None:
                state.history.reports[self.queue, id] = report
            if state.staged.active:
                state.staged.reported[self.queue, id] = report.state


class NoteFailuresEffect(NoteReportsEffect, tag=62):
    """As :class:`NoteReportsEffect`, with failed tasks."""

    failures: Failures = {}  # type: ignore[misc]  # noqa: RUF012 - a field of the longer form


def finish(state: StoreState, lease: Lease, at: int, report: TaskReport) -> RunningTask | None:
    """End a started task; return its record, or None if it does not run."""
    run = state.running.end(lease)
    if run is None:
        return None
    session, task = run
    if task.partition and lease[0] in state.queues:
        partitions = state.queues[lease[0]].messages.partitions
        if partitions is not None:
            partitions.finished(task.partition)
    if state.history is not None:
        state.history.finished(lease[0], task, state.session_names.get(session, ""), at, report)
    if state.staged.active:
        state.staged.finished(task.message_id, report.state, at)
    if state.idempotency.unique:
        state.idempotency.ended(task.message_id)
    return task


def reports_in(runs: list[int], failures: Failures) -> Iterator[tuple[int, int, TaskReport]]:
    """Yield message id, token and report of each run."""
    fields = iter(runs)
    for place, (id, token, task_state, runtime, pid) in enumerate(zip(*[fields] * 5, strict=True)):
        texts = failures.get(place, _NO_TEXTS) if failures else _NO_TEXTS
        exception, error, traceback, task = (*texts, "")[:4]
        yield id, token, TaskReport(task_state, runtime, pid, task, exception, error, traceback)


_NO_TEXTS = ("", "", "")


class StoreResultEffect(Effect, tag=50):
    """A result (if there is a ``name``), a chord's part (if there is a ``group``), or both were stored."""

    name: bytes
    kind: int
    expires_at_ms: int
    value: bytes
    group: bytes
    index: int
    member: bytes
    chord_expires_at_ms: int
    place: ClassVar[EnvelopePlace | None] = None

    def apply(self, state: StoreState) -> None:
        results = state.results
        at = state.newest_ms
        expires_at = self.chord_expires_at_ms
        if self.name:
            results.store(self.name, Result(self.kind, self.expires_at_ms, self.value, self.place), at)
        if self.group:
            results.add_part(self.group, self.index, self.member, self.place or self.value, at, expires_at)


class StoreLargeResultEffect(StoreResultEffect, tag=97):
    """As :class:`StoreResultEffect`, with a value that is in a payload segment; ``value`` is empty."""

    place: EnvelopePlace  # type: ignore[misc]  # a field of this form


class ForgetResultsEffect(Effect, tag=51):
    """Unneeded results are deleted."""

    names: list[bytes]

    def apply(self, state: StoreState) -> None:
        for name in self.names:
            state.results.forget(name)


class OpenChordEffect(Effect, tag=52):
    """A chord was declared or extended.

    ``size`` is its size (-1: unknown), ``added`` the number of further tasks; ``again`` replaces an earlier chord.
    ``body`` is the task id of its callback.
    """

    group: bytes
    expires_at_ms: int
    size: int
    added: int
    header: bytes
    again: bool
    body: bytes = b""
    member: ClassVar[bytes] = b""

    def apply(self, state: StoreState) -> None:
        if self.again:
            state.results.close_chord(self.group)
        chord = state.results.change_chord(self.group)
        chord.expires_at_ms = self.expires_at_ms
        chord.size = self.size if self.size >= 0 else chord.size
        chord.added += self.added
        chord.header, chord.body = self.header or chord.header, self.body or chord.body
        if self.member:
            chord.members[self.member] = None


class AddToChordEffect(OpenChordEffect, tag=52):
    """A chord was extended by a task whose id is ``member``, so that a repetition of the request is recognized."""

    member: bytes = b""  # type: ignore[misc]  # a field of the longer form


class CloseChordEffect(Effect, tag=53):
    """A chord is deleted."""

    group: bytes

    def apply(self, state: StoreState) -> None:
        state.results.close_chord(self.group)


class HandleFailuresEffect(Effect, tag=65):
    """Failed attempts were retried, in the same commit, or archived.

    ``rows`` is a flat list attempt's number, new message id, …; the ids are 0 if the attempts were archived.
    """

    how: int
    at_ms: int
    rows: list[int]

    def apply(self, state: StoreState) -> None:
        how, at = self.how, self.at_ms
        pairs = zip(self.rows[::2], self.rows[1::2], strict=True)
        state.handled.handled(Handled(number, how, at, id) for number, id in pairs)


class FollowFailuresEffect(HandleFailuresEffect, tag=65):
    """As :class:`HandleFailuresEffect`, of attempts of a staged job.

    ``followed`` is a flat list message id of the attempt, message id of the retry, …; ``queue`` has the retries.
    """

    followed: list[int] = []  # noqa: RUF012 - a field's default; never changed
    queue: str = ""

    def apply(self, state: StoreState) -> None:
        HandleFailuresEffect.apply(self, state)
        for predecessor, id in zip(self.followed[::2], self.followed[1::2], strict=True):
            state.staged.follow(id, predecessor, [self.queue], resumes=True)
