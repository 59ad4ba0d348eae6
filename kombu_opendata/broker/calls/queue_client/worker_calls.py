"""Calls about workers, for the queue client: listing them and their messages, and controlling them.

A worker is a client, with all its connections and its timed leases. Its id is the session id of its timed leases. No
connection can have that id, so users who see it can't use it to resume a session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....errors import NotFound, RequestError
from ....protocol import messages as m
from ....protocol.messages import Outcome
from ....storage.clock import TimeSlice
from ....storage.read.queue_pages import row_in_flight, row_running
from ....storage.state.queue_buckets import QueueEntry
from ....storage.state.task_state import RunningTasks
from ...delivery.lease_expiry import is_timed, session_of
from ...delivery.lease_tokens import LeaseTable
from ...delivery.outbox import Outbox
from ...delivery.queue_registry import Queues
from ...metrics.metrics_memory import ClientRates
from ...model.queue import BrokerQueue
from ...model.sessions import Consumer, Session
from ...model.stored_queue import StoredQueue
from ..dispatch import BrokerCalls, Context, check_range, handles
from .claimed_messages import MAX_PAGE
from .read import ReadCalls
from .settle import Holders

SUSPEND, RESUME, SHUTDOWN, RELEASE = ACTIONS = ("suspend", "resume", "shutdown", "release")


class WorkerCalls(BrokerCalls):
    """Calls about the workers of one instance."""

    _all_sessions: Mapping[bytes, Session]
    _queues: Queues
    _leases: LeaseTable
    _holders: Holders
    _reads: ReadCalls
    _outbox: Outbox
    _running: RunningTasks
    _rates: ClientRates

    @handles(m.ListWorkers)
    async def list_workers(self, call: Context, msg: m.ListWorkers) -> m.Workers:
        rows: dict[bytes, dict[str, Any]] = {}  # by worker
        names: dict[bytes, str] = {}

        def row_of(holder: bytes) -> dict[str, Any]:
            worker = self._holders.worker(holder)
            names[worker] = names.get(worker) or self._holders.name(holder)
            return rows.setdefault(worker, _new_row(worker))

        pace = TimeSlice()
        async for queue in pace.over(list(self._queues.values())):
            if queue.messages.in_flight and not queue.deleting:
                async for entry in pace.over(list(queue.messages.in_flight.values())):
                    row, since = row_of(entry.session), self._running_since_ms(queue, entry)
                    row["running" if since else "held"] += 1
                    row["reader"] = row["reader"] or is_timed(entry.session)
                    _note(row, since or entry.claimed_at, entry.id)
        for holder, tasks in self._running.by_session.items():
            row = row_of(holder)
            row["running"] += len(tasks)
            for task in tasks.values():
                _note(row, task.started_at_ms, task.message_id)
        sessions = self._sessions()
        workers: list[dict[str, Any]] = []
        for id in (*sessions, *sorted(rows.keys() - sessions.keys())):
            connections = sessions.get(id, [])
            row = rows.get(id, _new_row(id))
            workers.append({**row, **self._rates.of(connections), **_described(connections, names.get(id, ""))})
        return m.Workers(msg.rid, workers)

    @handles(m.WorkerMessages)
    def worker_messages(self, call: Context, msg: m.WorkerMessages) -> None:
        check_range("the limit", msg.limit, 1, MAX_PAGE)
        rows = [
            (queue.name, row_in_flight(entry, self._running_since_ms(queue, entry)))
            for queue, entry in self._held(msg.session)
        ]
        for session, tasks in self._running.by_session.items():
            if self._holders.worker(session) == msg.session:
                rows += [(lease[0], row_running(session, task)) for lease, task in tasks.items()]
        call.reply(m.HeldMessages(msg.rid, [(queue, self._holders.row(row)) for queue, row in rows[: msg.limit]]))

    def _running_since_ms(self, queue: BrokerQueue, entry: QueueEntry) -> int:
        """Return when the task of a message in flight began; 0 if that is not known."""
        return self._running.late_since_ms(entry.session, (queue.name, entry.id, entry.claimed_at))

    def _in_flight(self) -> list[tuple[BrokerQueue, QueueEntry]]:
        leases: list[tuple[BrokerQueue, QueueEntry]] = []
        for queue in self._queues.values():
            if not queue.deleting:
                leases += [(queue, entry) for entry in queue.messages.in_flight.values()]
        return leases

    def _held(self, worker: bytes) -> list[tuple[BrokerQueue, QueueEntry]]:
        return [(queue, entry) for queue, entry in self._in_flight() if self._holders.worker(entry.session) == worker]

    def _sessions(self) -> dict[bytes, list[Session]]:
        sessions: dict[bytes, list[Session]] = {}
        for session in self._all_sessions.values():
            sessions.setdefault(session_of(session.client), []).append(session)
        return sessions

    @handles(m.ControlWorker)
    def control_worker(self, call: Context, msg: m.ControlWorker) -> None:
        if msg.action not in ACTIONS:
            raise RequestError(f"the action {msg.action!r} is unknown: use {', '.join(ACTIONS)}")
        if msg.action == RELEASE:
            leases = self._held(msg.session)
            for queue, entry in leases:
                self._leases.end(self._holders.of(entry), queue, entry, Outcome.RELEASE)
            call.audit("released %d messages that worker %s held", len(leases), msg.session.hex())
            call.answer_once(msg.rid, m.Count(msg.rid, len(leases)))
            return
        sessions = self._sessions().get(msg.session)
        if not sessions:
            raise NotFound(f"no worker {msg.session.hex()} is connected: list them first", session=msg.session.hex())
        count = sum(len(_consumers(session)) for session in sessions)
        for session in sessions:
            if msg.action == SHUTDOWN:
                self._shut_down(session, call.session.name)
            else:
                self._suspend(session, msg.action == SUSPEND)
        call.audit("requested of worker %r (%s): %s", sessions[0].name, msg.session.hex(), msg.action)
        call.answer_once(msg.rid, m.Count(msg.rid, count))

    def _suspend(self, session: Session, suspended: bool) -> None:
        """Stop a session's deliveries until it is resumed, or resume them."""
        session.suspended = suspended
        if suspended:
            self._reads.stop(session)
        else:
            self._queues.wake_session(session)

    def _shut_down(self, session: Session, by: str) -> None:
        """Cancel a session's consumers, as if their queues were deleted. It may still settle its deliveries."""
        for consumer in _consumers(session):
            self._queues.remove_consumer(consumer)
            cancelled = m.Cancelled(consumer.channel.number, consumer.tag, f"shut down by {by}")
            self._outbox.reply(session, cancelled)

    @handles(m.Reclaim)
    def reclaim(self, call: Context, msg: m.Reclaim) -> None:
        """Requeue the messages of disconnected clients before their grace periods or leases end."""
        only = call.queue(msg.queue) if msg.queue else None
        sessions = self._all_sessions
        present = {session_of(session.client) for session in sessions.values() if session.connection is not None}
        count = 0
        for queue, entry in self._in_flight():
            holder = sessions.get(entry.session)
            is_there = entry.session in present if holder is None else holder.connection is not None
            if not is_there and (only is None or queue is only):
                self._leases.end(self._holders.of(entry), queue, entry, Outcome.REQUEUE, lease_expired=True)
                count += 1
        call.audit("returned %d messages of lost clients to their queues", count)
        call.answer_once(msg.rid, m.Count(msg.rid, count))


def _new_row(worker: bytes) -> dict[str, Any]:
    return {"session": worker, "held": 0, "running": 0, "reader": False, "oldest": None}


def _note(row: dict[str, Any], at_ms: int, id: int) -> None:
    """Note a message if it is the oldest one of a worker."""
    row["oldest"] = min(row["oldest"] or (at_ms, id), (at_ms, id))


def _described(sessions: list[Session], name: str) -> dict[str, Any]:
    """Return the properties of a worker's connections; ``name`` is for a worker without sessions."""
    connected = [session for session in sessions if session.connection is not None]
    return {
        "name": sessions[0].name if sessions else name,
        "since_ms": min((session.since_ms for session in sessions), default=0),
        "connected": bool(connected),
        "connections": len(connected),
        "lost_at_ms": 0 if connected else max((session.lost_at_ms for session in sessions), default=0),
        "suspended": any(session.suspended for session in sessions),
        "consumers": [consumer.queue.name for session in sessions for consumer in _consumers(session)],
        "prefetch": _prefetch(sessions),
        "user": sessions[0].user.name if sessions else "",
    }


def _prefetch(sessions: list[Session]) -> int | None:
    """Return the maximum number of stored messages that a client holds; None without consumers, 0 without a limit."""
    channels = {
        consumer.channel: consumer.channel.prefetch
        for session in sessions
        for consumer in _consumers(session)
        if isinstance(consumer.queue, StoredQueue)
    }
    limits = channels.values()
    if not limits:
        return None
    return 0 if 0 in limits else sum(limits)


def _consumers(session: Session) -> list[Consumer]:
    return [consumer for channel in session.channels.values() for consumer in channel.consumers.values()]
