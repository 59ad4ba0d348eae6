"""Workers, that is sessions, as the queue client sees them: who is there, what they hold; control of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import NotFound, RequestError
from ..protocol import messages as m
from ..protocol import queue_messages as q
from ..protocol.messages import Outcome
from ..storage.looking import row_in_flight
from . import leases, timed
from .entities import BrokerQueue, Session
from .looking import MAX_PAGE, wire_row
from .reading import Reader, check_quantity

if TYPE_CHECKING:
    from ..storage.queue_buckets import Entry
    from .handlers import Handlers


def list_workers(self: Handlers, msg: q.ListWorkers) -> None:
    instance = self.instance
    found = [
        {
            "session": session.id,
            "name": session.name,
            "since_ms": session.since_ms,
            "connected": session.connection is not None,
            "lost_at_ms": session.lost_at_ms if session.connection is None else 0,
            "suspended": session.suspended,
            "held": len(leases.held_by(instance, session)),
            "consumers": [consumer.queue.name for consumer in _consumers(session)],
            "reader": False,
        }
        for session in instance.sessions.values()
    ]
    known = {worker["session"] for worker in found}
    for id in _absent(self):
        if id not in known:
            found.append(_absent_worker(self, id))
    instance.reply(self.session, q.Workers(msg.rid, found))


def _absent(self: Handlers) -> list[bytes]:
    """Sessions that hold something and have no connection: readers, and those of before a restart."""
    held = {entry.session for queue in self.instance.queues.values() for entry in queue.messages.in_flight.values()}
    return sorted(held - self.instance.sessions.keys())


def _absent_worker(self: Handlers, id: bytes) -> dict[str, Any]:
    return {
        "session": id,
        "name": self.instance.timed.name_of(id),
        "since_ms": 0,
        "connected": False,
        "lost_at_ms": 0,
        "suspended": False,
        "held": len(_held(self, id)),
        "consumers": [],
        "reader": timed.is_timed(id),
    }


def _consumers(session: Session) -> list[Any]:
    return [consumer for channel in session.channels.values() for consumer in channel.consumers.values()]


def _held(self: Handlers, id: bytes) -> list[tuple[BrokerQueue, Entry]]:
    """What a session holds, in queues of either kind."""
    queues = self.instance.queues.values()
    return [
        (queue, entry)
        for queue in queues if not queue.deleting
        for entry in list(queue.messages.in_flight.values()) if entry.session == id
    ]  # fmt: skip


def worker_messages(self: Handlers, msg: q.WorkerMessages) -> None:
    check_quantity(msg.limit, MAX_PAGE)
    held = _held(self, msg.session)[: msg.limit]
    rows = [(queue.name, wire_row(self.instance, row_in_flight(entry))) for queue, entry in held]
    self.instance.reply(self.session, q.HeldMessages(msg.rid, rows))


def control_worker(self: Handlers, msg: q.ControlWorker) -> None:
    if self.instance.calls.repeat(self.session, msg.rid):
        return
    action = _ACTIONS.get(msg.action)
    if action is None:
        raise RequestError(f"a worker can be told to {', '.join(_ACTIONS)}, not to {msg.action!r}")
    session = self.instance.sessions.get(msg.session)
    if session is None and msg.action != "release":
        raise NotFound(f"no worker {msg.session.hex()} is connected: list them first", session=msg.session.hex())
    self.instance.calls.answer(self.session, m.Count(msg.rid, action(self, msg.session, session)))


def _suspend(self: Handlers, _id: bytes, session: Session | None) -> int:
    assert session is not None
    session.suspended = True
    for queue in self.instance.queues.values():
        for getter in [each for each in queue.getters if isinstance(each, Reader) and each.session is session]:
            getter.stop(self.instance, queue)
    return len(_consumers(session))


def _resume(self: Handlers, _id: bytes, session: Session | None) -> int:
    assert session is not None
    session.suspended = False
    self.instance.wake_session(session)
    return len(_consumers(session))


def _shutdown(self: Handlers, _id: bytes, session: Session | None) -> int:
    """Cancel its consumers, as if their queues were gone; what it holds it may still settle."""
    assert session is not None
    consumers = _consumers(session)
    for consumer in consumers:
        self.instance.remove_consumer(consumer)
        cancelled = m.Cancelled(consumer.channel.number, consumer.tag, f"shut down by {self.session.name}")
        self.instance.reply(session, cancelled)
    return len(consumers)


def _release(self: Handlers, id: bytes, session: Session | None) -> int:
    held = _held(self, id)
    holder = session or Session(id, self.instance.timed.name_of(id))
    for queue, entry in held:
        leases.end(self.instance, holder, queue, entry, Outcome.RELEASE)
    return len(held)


_ACTIONS = {"suspend": _suspend, "resume": _resume, "shutdown": _shutdown, "release": _release}


def reclaim(self: Handlers, msg: q.Reclaim) -> None:
    """What sessions hold that are gone, without waiting for their grace or for the end of a stored lease."""
    if self.instance.calls.repeat(self.session, msg.rid):
        return
    only = self._queue(msg.queue) if msg.queue else None
    gone = [id for id in _absent(self) if not timed.is_timed(id)]
    gone += [session.id for session in self.instance.sessions.values() if session.connection is None]
    count = 0
    for id in gone:
        holder = self.instance.sessions.get(id) or Session(id, self.instance.timed.name_of(id))
        for queue, entry in _held(self, id):
            if only is None or queue is only:
                leases.end(self.instance, holder, queue, entry, Outcome.REQUEUE, lease_expired=True)
                count += 1
    self.instance.timed.expire()
    self.instance.calls.answer(self.session, m.Count(msg.rid, count))


def ping(self: Handlers, msg: q.Ping) -> None:
    self.engine.needs_sync = True
    self.instance.reply(self.session, m.Ok(msg.rid))


HANDLERS: dict[type, Callable[[Any, Any], None]] = {
    q.ListWorkers: list_workers, q.WorkerMessages: worker_messages, q.ControlWorker: control_worker,
    q.Reclaim: reclaim, q.Ping: ping,
}  # fmt: skip
