"""SettleMessages: messages ended by their ids, whoever holds them for a time; what waits, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import LeaseHeld, MessageNotFound, OpenDataError, PreconditionFailed, RequestError, StaleLease
from ..protocol import queue_messages as q
from ..protocol.messages import Outcome
from ..protocol.queue_messages import Ending
from ..storage.queue_buckets import Entry
from ..storage.records.keys import MAX_MESSAGE_ID
from . import leases, timed
from .entities import BrokerQueue, Session
from .reading import check_ms, check_quantity

if TYPE_CHECKING:
    from .handlers import Handlers

MAX_ITEMS = 1000
#: ids that were settled, and why others were not: id, code, text, values
Found = tuple[list[int], list[tuple[int, str, str, dict[str, Any]]]]

_OUTCOMES = {
    Ending.ARCHIVE: Outcome.ACK, Ending.REQUEUE: Outcome.REQUEUE, Ending.REJECT: Outcome.REJECT,
    Ending.RELEASE: Outcome.RELEASE,
}  # fmt: skip


def settle_messages(self: Handlers, msg: q.SettleMessages) -> None:
    if self.instance.background.repeat(self.session, msg.rid):
        return
    if msg.ending not in Ending.__members__.values():
        raise RequestError(f"a message can't be settled by {msg.ending}")
    check_quantity(len(msg.items), MAX_ITEMS)
    check_ms(msg.delay_ms, 0, "the delay")
    for id, _token in msg.items:
        if not 0 <= id < MAX_MESSAGE_ID:
            raise RequestError(f"message id {id} is not in 0 … {MAX_MESSAGE_ID - 1}", message_id=id)
    queue = self._queue(msg.queue)
    ids = [id for id, _token in msg.items]
    if queue.stored is not None and queue.messages.cold_buckets_of(ids):
        self.instance.background.run(self.session, msg.rid, _load_and_settle(self, msg, queue, ids), once=True)
    else:
        _settle(self, msg, queue)


async def _load_and_settle(self: Handlers, msg: q.SettleMessages, queue: BrokerQueue, ids: list[int]) -> None:
    """Those of a bucket are ended as soon as it is in memory, from where it may go again."""
    assert queue.stored is not None
    found: Found = [], []
    items, stored = dict(msg.items), queue.stored
    for number in stored.messages.cold_buckets_of(ids):
        if number in stored.messages.cold and not queue.deleting:
            await self.engine.loader.load_bucket(stored, number)
            here = [(id, items.pop(id)) for id in list(items) if stored.messages.find(id) is not None]
            _end_some(self, msg, self._queue(msg.queue), here, found)
    _end_some(self, msg, self._queue(msg.queue), list(items.items()), found)
    _answer(self, msg, found)


def _settle(self: Handlers, msg: q.SettleMessages, queue: BrokerQueue) -> None:
    found: Found = [], []
    _end_some(self, msg, queue, msg.items, found)
    _answer(self, msg, found)


def _end_some(self: Handlers, msg: q.SettleMessages, queue: BrokerQueue, items: list[q.Item], found: Found) -> None:
    done, refused = found
    for id, token in items:
        try:
            _end_one(self, queue, id, token, Ending(msg.ending), msg.delay_ms)
        except OpenDataError as exc:
            refused.append((id, exc.code, exc.text, exc.values))
        else:
            done.append(id)
    self.instance.wake(queue)
    self.instance.outbox.schedule()


def _answer(self: Handlers, msg: q.SettleMessages, found: Found) -> None:
    done, refused = found
    until = self.engine.clock.now_ms() + msg.delay_ms if msg.ending == Ending.SET_VT else 0
    self.instance.background.answer(self.session, q.SettledMessages(msg.rid, done, refused, until), 50 * len(msg.items))


def _end_one(self: Handlers, queue: BrokerQueue, id: int, token: int, ending: Ending, delay_ms: int) -> None:
    """End one message.

    Raises:
        OpenDataError: nothing was changed.
    """
    messages = queue.messages
    values = {"queue": queue.name, "message_id": id}
    entry = messages.in_flight.get(id)
    if entry is None:
        entry = messages.available.get(id)
        if entry is None:
            text = (
                f"queue {queue.name!r} has no message {id}, or none any more: it was settled, it expired, it was purged"
            )
            raise MessageNotFound(text, **values)
        if token:
            raise StaleLease(f"the lease of message {id} is over: it waits in queue {queue.name!r} again", **values)
        _end_waiting(self, queue, entry, ending, delay_ms)
        return
    if token and entry.claimed_at != token:
        raise StaleLease(f"the lease of message {id} is over: somebody else holds it now", **values)
    if not token and not timed.is_timed(entry.session):
        name = _holder(self, entry).name
        raise LeaseHeld(
            f"message {id} of queue {queue.name!r} is held by {name!r} over a connection: give its lease's token, or "
            "let the holder settle it",
            holder=name,
            **values,
        )
    _end_held(self, queue, entry, ending, delay_ms)


def _holder(self: Handlers, entry: Entry) -> Session:
    return self.instance.sessions.get(entry.session) or self.instance.timed.holder(entry)


def _end_waiting(self: Handlers, queue: BrokerQueue, entry: Entry, ending: Ending, delay_ms: int) -> None:
    """A message that nobody holds can be archived, deleted or delayed."""
    stored = queue.stored
    if ending == Ending.ARCHIVE:
        if stored is not None:
            self.engine.operations.archive(stored, (entry,), self.session.name)
        else:
            queue.messages.remove(entry)
            queue.counts.archived += 1
    elif ending == Ending.DELETE:
        if stored is not None:
            self.engine.operations.delete(stored, (entry,))
        else:
            queue.messages.remove(entry)
            queue.counts.purged += 1
    elif ending == Ending.SET_VT:
        if stored is not None:
            self.engine.operations.delay(stored, (entry,), delay_ms)
        else:
            now = self.engine.clock.now_ms()
            queue.messages.delay(entry, now + delay_ms, now)
    else:
        raise StaleLease(
            f"message {entry.id} of queue {queue.name!r} waits, nobody holds it: read it first",
            queue=queue.name,
            message_id=entry.id,
        )


def _end_held(self: Handlers, queue: BrokerQueue, entry: Entry, ending: Ending, delay_ms: int) -> None:
    instance, stored, holder = self.instance, queue.stored, _holder(self, entry)
    now = self.engine.clock.now_ms()
    if ending == Ending.SET_VT and delay_ms:
        if not timed.is_timed(entry.session):
            raise PreconditionFailed(
                f"message {entry.id} is held by {holder.name!r} over a connection, which has no time to extend",
                queue=queue.name,
                message_id=entry.id,
            )
        if stored is not None:
            self.engine.operations.extend(stored, (entry,), delay_ms)
        else:
            entry.lease_until = now + delay_ms
        instance.timed.note(queue.name, entry)
    elif ending == Ending.DELETE:
        leases.let_go(instance, holder, queue, entry)
        if stored is not None:
            self.engine.operations.delete(stored, (entry,))
        else:
            queue.messages.settle(entry)
            queue.counts.deleted += 1
    elif ending == Ending.SET_VT or (ending == Ending.RELEASE and delay_ms):
        leases.let_go(instance, holder, queue, entry)
        costs = ending == Ending.SET_VT
        if stored is None:
            queue.messages.put_back(entry, now, costs_attempt=costs, visible_at=now + delay_ms)
            queue.counts.came_back(costs_attempt=costs, lease_expired=False)
        elif costs:
            self.engine.operations.give_up(stored, (entry,), holder.name)
        else:
            self.engine.operations.release(stored, (entry,), holder.name, delay_ms)
    else:
        leases.end(instance, holder, queue, entry, _OUTCOMES[ending])


HANDLERS: dict[type, Callable[[Any, Any], None]] = {q.SettleMessages: settle_messages}
