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
from . import timed
from .model.queue import DELETED, BrokerQueue
from .model.sessions import Session
from .reading import check_ms, check_quantity

if TYPE_CHECKING:
    from .handlers import Handlers

MAX_ITEMS = 1000
#: ids that were settled, and why others were not: id, code, text, values
Found = tuple[list[int], list[tuple[int, str, str, dict[str, Any]]]]

_OUTCOMES: dict[Ending, int] = {
    Ending.ARCHIVE: Outcome.ACK, Ending.REQUEUE: Outcome.REQUEUE, Ending.REJECT: Outcome.REJECT,
    Ending.RELEASE: Outcome.RELEASE, Ending.DELETE: DELETED, Ending.SET_VT: Outcome.REQUEUE,
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
    if queue.messages.cold_buckets_of(ids):
        self.instance.background.run(self.session, msg.rid, _load_and_settle(self, msg, queue, ids), once=True)
    else:
        _settle(self, msg, queue)


async def _load_and_settle(self: Handlers, msg: q.SettleMessages, queue: BrokerQueue, ids: list[int]) -> None:
    """Those of a bucket are ended as soon as it is in memory, from where it may go again."""
    found: Found = [], []
    items, messages = dict(msg.items), queue.messages
    for number in messages.cold_buckets_of(ids):
        if number in messages.cold and not queue.deleting:
            await queue.load_bucket(number)
            here = [(id, items.pop(id)) for id in list(items) if messages.find(id) is not None]
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
    self.instance.queues.wake(queue)
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
    if ending == Ending.ARCHIVE:
        queue.archive(entry, self.session.name)
    elif ending == Ending.DELETE:
        queue.discard(entry)
    elif ending == Ending.SET_VT:
        queue.delay(entry, delay_ms)
    else:
        raise StaleLease(
            f"message {entry.id} of queue {queue.name!r} waits, nobody holds it: read it first",
            queue=queue.name,
            message_id=entry.id,
        )


def _end_held(self: Handlers, queue: BrokerQueue, entry: Entry, ending: Ending, delay_ms: int) -> None:
    instance, holder = self.instance, _holder(self, entry)
    if ending == Ending.SET_VT and delay_ms:
        if not timed.is_timed(entry.session):
            raise PreconditionFailed(
                f"message {entry.id} is held by {holder.name!r} over a connection, which has no time to extend",
                queue=queue.name,
                message_id=entry.id,
            )
        queue.extend(entry, delay_ms)
        instance.timed.note(queue.name, entry)
    else:
        delayed = ending == Ending.SET_VT or (ending == Ending.RELEASE and delay_ms)
        instance.leases.end(holder, queue, entry, _OUTCOMES[ending], delay_ms=delay_ms if delayed else -1)


HANDLERS: dict[type, Callable[[Any, Any], None]] = {q.SettleMessages: settle_messages}
