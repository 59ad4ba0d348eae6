"""Workers as the queue client sees them: who is there, what they hold; control of them.

A worker is a client: all its connections, and what it reads for a time. Its id is the session of its timed leases,
which no connection can have, so knowing a worker's id is no way into its session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import NotFound, RequestError
from ..protocol import messages as m
from ..protocol import queue_messages as q
from ..protocol.messages import Outcome
from ..storage.looking import row_in_flight
from . import timed
from .looking import MAX_PAGE, wire_row
from .model.queue import BrokerQueue
from .model.sessions import Session
from .pace import Pace
from .reading import Reader, check_quantity

if TYPE_CHECKING:
    from ..storage.queue_buckets import Entry
    from .handlers import Handlers
    from .instance import Instance


def _worker_of(instance: Instance, holder: bytes) -> bytes:
    """The worker that a lease's session belongs to. Of a session from before a restart the client is not known."""
    session = instance.sessions.get(holder)
    if session is not None:
        return timed.session_of(session.client)
    return holder if timed.is_timed(holder) else timed.session_of(holder)


def _in_flight(self: Handlers) -> list[tuple[BrokerQueue, Entry]]:
    """What is held, in queues of either kind."""
    queues = self.instance.queues.values()
    return [
        (queue, entry)
        for queue in queues if not queue.deleting
        for entry in list(queue.messages.in_flight.values())
    ]  # fmt: skip


def _held(self: Handlers, worker: bytes) -> list[tuple[BrokerQueue, Entry]]:
    """What a worker holds."""
    return [(queue, entry) for queue, entry in _in_flight(self) if _worker_of(self.instance, entry.session) == worker]


def _sessions(instance: Instance) -> dict[bytes, list[Session]]:
    """The sessions of each worker."""
    found: dict[bytes, list[Session]] = {}
    for session in instance.sessions.values():
        found.setdefault(timed.session_of(session.client), []).append(session)
    return found


def _holder(instance: Instance, entry: Entry) -> Session:
    return instance.sessions.get(entry.session) or instance.timed.holder(entry)


# ---------------------------------------------------------------------- looking
def list_workers(self: Handlers, msg: q.ListWorkers) -> None:
    self.instance.background.run(self.session, msg.rid, _list_workers(self, msg))


async def _list_workers(self: Handlers, msg: q.ListWorkers) -> None:
    instance = self.instance
    holders: Counter[bytes] = Counter()
    pace = Pace()
    async for queue in pace.over(list(instance.queues.values())):
        if queue.messages.in_flight and not queue.deleting:
            async for entry in pace.over(list(queue.messages.in_flight.values())):
                holders[entry.session] += 1
    sessions = _sessions(instance)
    held: Counter[bytes] = Counter()
    names: dict[bytes, str] = {}
    readers = set()
    for holder, count in holders.items():
        worker = _worker_of(instance, holder)
        held[worker] += count
        names[worker] = names.get(worker) or instance.timed.name_of(holder)
        if timed.is_timed(holder):
            readers.add(worker)
    found = [
        _row(sessions.get(id, []), {"session": id, "held": held[id], "reader": id in readers}, names.get(id, ""))
        for id in (*sessions, *sorted(held.keys() - sessions.keys()))
    ]
    instance.outbox.reply(self.session, q.Workers(msg.rid, found))


def _row(sessions: list[Session], known: dict[str, Any], name: str) -> dict[str, Any]:
    """A worker; ``name`` is of one that has no session any more, but holds something."""
    connected = [session for session in sessions if session.connection is not None]
    lost_at_ms = max((session.lost_at_ms for session in sessions), default=0)
    return {
        **known,
        "name": sessions[0].name if sessions else name,
        "since_ms": min((session.since_ms for session in sessions), default=0),
        "connected": bool(connected),
        "connections": len(connected),
        "lost_at_ms": 0 if connected else lost_at_ms,
        "suspended": any(session.suspended for session in sessions),
        "consumers": [consumer.queue.name for session in sessions for consumer in _consumers(session)],
    }


def _consumers(session: Session) -> list[Any]:
    return [consumer for channel in session.channels.values() for consumer in channel.consumers.values()]


def worker_messages(self: Handlers, msg: q.WorkerMessages) -> None:
    check_quantity(msg.limit, MAX_PAGE)
    held = _held(self, msg.session)[: msg.limit]
    rows = [(queue.name, wire_row(self.instance, row_in_flight(entry))) for queue, entry in held]
    self.instance.outbox.reply(self.session, q.HeldMessages(msg.rid, rows))


# ---------------------------------------------------------------------- control
def control_worker(self: Handlers, msg: q.ControlWorker) -> None:
    if self.instance.background.repeat(self.session, msg.rid):
        return
    if msg.action == "release":
        count = _release(self, msg.session)
    elif msg.action in _ACTIONS:
        sessions = _sessions(self.instance).get(msg.session)
        if not sessions:
            raise NotFound(f"no worker {msg.session.hex()} is connected: list them first", session=msg.session.hex())
        count = sum(_ACTIONS[msg.action](self, session) for session in sessions)
    else:
        raise RequestError(f"a worker can be told to {', '.join((*_ACTIONS, 'release'))}, not to {msg.action!r}")
    self.instance.background.answer(self.session, m.Count(msg.rid, count))


def _suspend(self: Handlers, session: Session) -> int:
    session.suspended = True
    for (reader, _number), stop in self.instance.stops.items():
        if reader == session.id:
            stop.set()
    for queue in self.instance.queues.values():
        for getter in [each for each in queue.getters if isinstance(each, Reader) and each.session is session]:
            getter.stop()
    return len(_consumers(session))


def _resume(self: Handlers, session: Session) -> int:
    session.suspended = False
    self.instance.queues.wake_session(session)
    return len(_consumers(session))


def _shutdown(self: Handlers, session: Session) -> int:
    """Cancel its consumers, as if their queues were gone; what it holds it may still settle."""
    consumers = _consumers(session)
    for consumer in consumers:
        self.instance.queues.remove_consumer(consumer)
        cancelled = m.Cancelled(consumer.channel.number, consumer.tag, f"shut down by {self.session.name}")
        self.instance.outbox.reply(session, cancelled)
    return len(consumers)


_ACTIONS = {"suspend": _suspend, "resume": _resume, "shutdown": _shutdown}


def _release(self: Handlers, worker: bytes) -> int:
    held = _held(self, worker)
    for queue, entry in held:
        self.instance.leases.end(_holder(self.instance, entry), queue, entry, Outcome.RELEASE)
    return len(held)


def reclaim(self: Handlers, msg: q.Reclaim) -> None:
    """What is held by clients that are gone, without waiting for a grace, a stored lease or a read's time."""
    instance = self.instance
    if instance.background.repeat(self.session, msg.rid):
        return
    only = self._queue(msg.queue) if msg.queue else None
    sessions = instance.sessions
    present = {timed.session_of(each.client) for each in sessions.values() if each.connection is not None}
    count = 0
    for queue, entry in _in_flight(self):
        holder = sessions.get(entry.session)
        is_there = entry.session in present if holder is None else holder.connection is not None
        if not is_there and (only is None or queue is only):
            instance.leases.end(_holder(instance, entry), queue, entry, Outcome.REQUEUE, lease_expired=True)
            count += 1
    instance.background.answer(self.session, m.Count(msg.rid, count))


def ping(self: Handlers, msg: q.Ping) -> None:
    self.engine.commits.needs_sync = True
    self.instance.outbox.reply(self.session, m.Ok(msg.rid))


HANDLERS: dict[type, Callable[[Any, Any], None]] = {
    q.ListWorkers: list_workers, q.WorkerMessages: worker_messages, q.ControlWorker: control_worker,
    q.Reclaim: reclaim, q.Ping: ping,
}  # fmt: skip
