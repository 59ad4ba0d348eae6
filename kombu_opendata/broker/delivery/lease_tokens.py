"""Leases: exclusive rights of sessions to messages, and their end."""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Iterable, Mapping

from ...protocol.messages import Outcome, Reported, RunningLate
from ...protocol.task_reports import FAILED, TaskReport
from ...storage.operations.task_runs import TaskRuns
from ...storage.state.queue_buckets import QueueEntry
from ..model.queue import BrokerQueue
from ..model.sessions import Session, SessionChannel
from ..model.transient_queue import TransientQueue
from .outbox import Outbox
from .queue_registry import Queues
from .task_outcomes import TaskOutcomes

#: plain numbers, compared for each message: reading a member of an enumeration costs more than the comparison
_ACK, _START, _REPORT = int(Outcome.ACK), int(Outcome.START), int(Outcome.REPORT)
_FAILED = frozenset(map(int, FAILED))
_RETURNED = frozenset((int(Outcome.REQUEUE), int(Outcome.RELEASE)))
#: number of successive deliveries that a channel may return before its consumers have to wait
FREE_RETURNS = 100
_FIRST_WAIT_SECONDS, _MAX_WAIT_SECONDS = 0.01, 1.0


class LeaseTable:
    """Leases of one instance; ``stored`` has the leases of stored queues, by session, queue and message id."""

    __slots__ = ("_outbox", "_outcomes", "_queues", "_runs", "_stored")

    def __init__(
        self,
        queues: Queues,
        stored: Mapping[bytes, Mapping[tuple[str, int], QueueEntry]],
        outbox: Outbox,
        runs: TaskRuns,
        outcomes: TaskOutcomes,
    ) -> None:
        self._queues = queues
        self._stored = stored
        self._outbox = outbox
        self._runs = runs
        self._outcomes = outcomes

    def find(self, session: Session, queue: str, id: int, token: int) -> tuple[BrokerQueue, QueueEntry] | None:
        """Return the lease with this token; None if the session does not hold it (any more)."""
        broker_queue = self._queues.get(queue)
        entry = broker_queue.messages.in_flight.get(id) if broker_queue is not None else None
        if (
            broker_queue is None
            or entry is None
            or entry.claimed_at != token
            or entry.session != session.id
            or broker_queue.deleting
        ):
            return None
        return broker_queue, entry

    def held_by(self, session: Session) -> list[tuple[BrokerQueue, QueueEntry]]:
        """Return all leases of a session, in all kinds of queues."""
        entries = [*self._stored.get(session.id, {}).values(), *session.leases.values()]
        return [(self._queues[entry.queue], entry) for entry in entries if entry.queue in self._queues]

    def settle(self, session: Session, outcome: int, leases: Iterable[tuple[str, int, int]]) -> None:
        """End leases; ignore leases that the session lost, because another consumer may have the message."""
        acked: dict[BrokerQueue, dict[int, QueueEntry]] = {}
        for name, id, token in leases:
            session.settled += 1
            lease = self.find(session, name, id, token)
            if lease is None:
                continue
            queue, entry = lease
            if outcome != _ACK:
                session.count(outcome)
                self.end(session, queue, entry, outcome)
            elif id not in (entries := acked.get(queue) or acked.setdefault(queue, {})):
                self._end_on_channel(session, queue, entry, outcome)
                entries[id] = entry
        for queue, entries in acked.items():
            session.done += len(entries)
            queue.ack(entries.values())
            self._free_slot(queue)
        self._outbox.answer_now(session)

    # ------------------------------------------------------------------ outcomes of tasks
    def report(self, session: Session, items: Iterable[Reported]) -> None:
        """Settle messages with the outcomes of their tasks, and end tasks that were started."""
        for outcome, name, id, token, report in items:
            session.settled += 1
            if outcome == _REPORT and report is not None:
                self._finish(session, (name, id, token), report)
            else:
                self.settle_one(session, outcome, name, id, token, report)
        self._outbox.answer_now(session)

    def note_running(self, session: Session, running: Iterable[RunningLate]) -> None:
        """Record the running tasks of a session that still holds their messages; ignore leases that it lost."""
        durations = {
            (name, id, token): for_ms
            for name, id, token, for_ms in running
            if self.find(session, name, id, token) is not None
        }
        self._runs.note_late(session.id, durations)

    def settle_one(
        self, session: Session, outcome: int, name: str, id: int, token: int, report: TaskReport | None
    ) -> None:
        """End one lease, or a started task; do nothing if the session no longer has it."""
        if outcome == _REPORT:
            if report is not None:
                self._finish(session, (name, id, token), report)
            return
        settled = self.find(session, name, id, token)
        if settled is None:
            return
        queue, entry = settled
        if report is None or outcome == _START:
            if outcome != _START:
                session.count(outcome)
            self.end(session, queue, entry, outcome)
            return
        session.count(outcome, report.state)
        self._outcomes.count(report, due_at_ms=entry.visible_at)
        if outcome == _ACK and report.state in _FAILED:
            queue.tasks_failed += 1
        self.end(session, queue, entry, outcome, report=report)

    def _finish(self, session: Session, lease: tuple[str, int, int], report: TaskReport) -> None:
        """End a started task: of this session or, if the user may read the queue, of an earlier session."""
        name, id, token = lease
        queue, waited_ms = self._queues.get(name), -1
        if isinstance(queue, TransientQueue):
            if not queue.finish(id, token, session):
                return
        else:
            may_finish = session.rights.read[name] or self._runs.has(session.id, lease)
            task = self._runs.finish(lease, report) if may_finish else None
            if task is None:
                return
            waited_ms = task.waited_ms
        session.count(_REPORT, report.state)
        self._outcomes.count(report, waited_ms)
        self._free_slot(queue)
        if queue is not None and report.state in _FAILED:
            queue.tasks_failed += 1

    @property
    def expects_reports(self) -> bool:
        """True if workers report the outcomes of tasks."""
        return self._runs.enabled

    def lose_tasks(self, session: bytes) -> None:
        """Record as lost the tasks that a session started and did not report."""
        for name, task, report in self._runs.lose(session):
            if report.state:
                self._outcomes.count(report, task.waited_ms)
                if (queue := self._queues.get(name)) is not None:
                    queue.tasks_failed += 1
            self._free_slot(self._queues.get(name))

    def _free_slot(self, queue: BrokerQueue | None) -> None:
        """Wake a queue that may have limits after the end of a lease or a running task."""
        if queue is not None and (queue.flow is not None or queue.messages.partitions is not None):
            self._queues.wake(queue)

    # ------------------------------------------------------------------ ending
    def end(
        self,
        session: Session,
        queue: BrokerQueue,
        entry: QueueEntry,
        outcome: int,
        *,
        report: TaskReport | None = None,
        delay_ms: int = -1,
        lease_expired: bool = False,
    ) -> None:
        """End one lease; the arguments are those of :meth:`.BrokerQueue.end`."""
        self._end_on_channel(session, queue, entry, outcome)
        queue.end(entry, outcome, session.name, report=report, delay_ms=delay_ms, lease_expired=lease_expired)
        if outcome != _ACK and outcome != _START:
            self._queues.wake(queue)
        else:
            self._free_slot(queue)

    def _end_on_channel(self, session: Session, queue: BrokerQueue, entry: QueueEntry, outcome: int) -> None:
        """Remove a lease from its session, and give its place in the channel to another delivery."""
        key = (queue.name, entry.id)
        if session.leases:
            session.leases.pop(key, None)
        channel = session.lease_channels.pop(key, None)
        if channel is not None:
            channel.held -= 1
            if outcome in _RETURNED:
                self._note_return(channel)
            elif channel.returned:
                channel.returned = channel.waits = 0
            if channel.starved and not channel.is_full:
                self._queues.refill(channel)

    def _note_return(self, channel: SessionChannel) -> None:
        """Make the consumers of a channel that returns all its deliveries wait, to avoid a busy loop.

        The wait doubles each time until a delivery is handled. Other consumers can get the messages.
        """
        channel.returned += 1
        if channel.returned > FREE_RETURNS and not channel.is_waiting:
            channel.is_waiting = True
            seconds = min(_FIRST_WAIT_SECONDS * 2**channel.waits, _MAX_WAIT_SECONDS)
            channel.waits = min(channel.waits + 1, 10)
            get_running_loop().call_later(seconds, self._end_wait, channel)

    def _end_wait(self, channel: SessionChannel) -> None:
        channel.is_waiting = False
        self._queues.wake_channel(channel)

    def close_channel(self, session: Session, number: int) -> None:
        """Close a channel: remove its consumers, and release its deliveries."""
        channel = session.channels.pop(number, None)
        if channel is None:
            return
        for consumer in list(channel.consumers.values()):
            self._queues.remove_consumer(consumer)
        for name, id in [key for key, of in session.lease_channels.items() if of is channel]:
            queue = self._queues.get(name)
            entry = queue.messages.in_flight.get(id) if queue is not None else None
            if queue is not None and entry is not None and entry.session == session.id:
                self.end(session, queue, entry, Outcome.RELEASE)
