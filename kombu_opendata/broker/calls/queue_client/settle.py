"""Settlement of messages by their ids: ready messages, and those with timed leases. Also the holders of messages."""

from __future__ import annotations

from collections.abc import Mapping

from ....errors import LeaseHeld, MessageNotFound, OpenDataError, PreconditionFailed, RequestError, StaleLease
from ....protocol import messages as m
from ....protocol.messages import Ending, Outcome, StateRow
from ....storage.clock import Clock
from ....storage.read.queue_pages import RUNNING, Row
from ....storage.records.keys import MAX_MESSAGE_ID
from ....storage.state.queue_buckets import QueueEntry
from ....storage.state.settled_list import LISTS
from ...delivery.lease_expiry import TimedLeases, is_timed, session_of
from ...delivery.lease_tokens import LeaseTable
from ...delivery.outbox import Outbox
from ...delivery.queue_registry import Queues
from ...model.queue import DELETED, BrokerQueue
from ...model.sessions import Session
from ..dispatch import BrokerCalls, Context, check_range, handles
from .claimed_messages import MAX_MS

MAX_ITEMS = 1000
_OUTCOMES: dict[Ending, int] = {
    Ending.ARCHIVE: Outcome.ACK, Ending.REQUEUE: Outcome.REQUEUE, Ending.REJECT: Outcome.REJECT,
    Ending.RELEASE: Outcome.RELEASE, Ending.DELETE: DELETED, Ending.SET_VT: Outcome.REQUEUE,
}  # fmt: skip


class Holders:
    """Holders of one instance's messages."""

    def __init__(self, sessions: Mapping[bytes, Session], timed: TimedLeases) -> None:
        self._sessions, self._timed = sessions, timed

    def of(self, entry: QueueEntry) -> Session:
        """Return the holder of a message, as a session."""
        return self._sessions.get(entry.session) or self._timed.holder(entry)

    def name(self, holder: bytes) -> str:
        """Return the name of a lease's session; empty if it is not known."""
        session = self._sessions.get(holder)
        return session.name if session is not None else self._timed.name_of(holder)

    def worker(self, holder: bytes) -> bytes:
        """Return the id of the worker to which a lease's session belongs.

        The client of a session from before a restart is unknown; such a session counts as a separate worker.
        """
        session = self._sessions.get(holder)
        if session is not None:
            return session_of(session.client)
        return holder if is_timed(holder) else session_of(holder)

    def row(self, row: Row) -> StateRow:
        """Return a row for the client, with Kombu's priority and the holder's name."""
        holder = self.name(row.session) if row.session else ""
        priority = 0 if row.state in LISTS or row.state == RUNNING else 255 - row.priority
        return (
            row.id, row.state, priority, row.visible_at_ms, row.attempts, row.token, row.lease_until_ms, holder,
            row.settled_at_ms,
        )  # fmt: skip


class SettleCalls(BrokerCalls):
    """Calls that settle messages by their ids."""

    _leases: LeaseTable
    _timed: TimedLeases
    _holders: Holders
    _queues: Queues
    _outbox: Outbox
    _clock: Clock

    @handles(m.SettleMessages)
    def settle_messages(self, call: Context, msg: m.SettleMessages) -> None:
        if msg.ending not in Ending.__members__.values():
            raise RequestError(f"a message can't be settled by {msg.ending}")
        check_range("the number of messages", len(msg.items), 1, MAX_ITEMS)
        check_range("the delay in ms", msg.delay_ms, 0, MAX_MS)
        for id, _token in msg.items:
            check_range("a message id", id, 0, MAX_MESSAGE_ID - 1)
        queue = call.queue(msg.queue)
        ids = [id for id, _token in msg.items]
        if queue.messages.cold_buckets_of(ids):
            call.run(msg.rid, self._load_and_settle(call, msg, queue, ids), once=True)
        else:
            answer = m.SettledMessages(msg.rid, [], [])
            self._end_some(call, msg, queue, msg.items, answer)
            self._answer(call, msg, answer)

    async def _load_and_settle(self, call: Context, msg: m.SettleMessages, queue: BrokerQueue, ids: list[int]) -> None:
        """Settle the messages of each cold bucket as soon as it is loaded, because it may be unloaded again."""
        answer = m.SettledMessages(msg.rid, [], [])
        items, messages = dict(msg.items), queue.messages
        for number in messages.cold_buckets_of(ids):
            if number in messages.cold and not queue.deleting:
                await queue.load_bucket(number)
                loaded = [(id, items.pop(id)) for id in list(items) if messages.find(id) is not None]
                self._end_some(call, msg, call.queue(msg.queue), loaded, answer)
        self._end_some(call, msg, call.queue(msg.queue), list(items.items()), answer)
        self._answer(call, msg, answer)

    def _end_some(
        self, call: Context, msg: m.SettleMessages, queue: BrokerQueue, items: list[m.Item], answer: m.SettledMessages
    ) -> None:
        """Settle messages as far as possible, and record the results in the reply."""
        for id, token in items:
            try:
                self._end_one(call, queue, id, token, Ending(msg.ending), msg.delay_ms)
            except OpenDataError as exc:
                answer.refused.append((id, exc.code, exc.text, exc.values))
            else:
                answer.done.append(id)
        self._queues.wake(queue)
        self._outbox.schedule()

    def _answer(self, call: Context, msg: m.SettleMessages, answer: m.SettledMessages) -> None:
        if msg.ending == Ending.SET_VT:
            answer.until_ms = self._clock.now_ms() + msg.delay_ms
        if not call.session.rights.read[msg.queue]:  # as an operator
            name, ids = Ending(msg.ending).name.lower(), ", ".join(map(str, answer.done[:10]))
            suffix = " …" if len(answer.done) > 10 else ""
            text = "settled %d messages of queue %r: %s of %s%s"
            call.audit(text, len(answer.done), msg.queue, name, ids, suffix, queue=msg.queue)
        call.answer_once(msg.rid, answer, 50 * len(msg.items))

    def _end_one(self, call: Context, queue: BrokerQueue, id: int, token: int, ending: Ending, delay_ms: int) -> None:
        """Settle one message, or raise OpenDataError."""
        messages = queue.messages
        values = {"queue": queue.name, "message_id": id}
        entry = messages.in_flight.get(id)
        if entry is None:
            entry = messages.available.get(id)
            if entry is None:
                text = f"queue {queue.name!r} has no message {id}: it may have been settled or purged, or it expired"
                raise MessageNotFound(text, **values)
            if token:
                raise StaleLease(f"the lease of message {id} is over: it waits in queue {queue.name!r} again", **values)
            self._end_waiting(call, queue, entry, ending, delay_ms)
            return
        if token and entry.claimed_at != token:
            raise StaleLease(f"the lease of message {id} is over: another consumer holds it now", **values)
        if not token and not is_timed(entry.session):
            name = self._holders.of(entry).name
            text = (
                f"message {id} of queue {queue.name!r} is held by {name!r} over a connection: give its lease's token, "
                "or let the holder settle it"
            )
            raise LeaseHeld(text, holder=name, **values)
        if ending != Ending.SET_VT:
            call.session.count(_OUTCOMES[ending])
        self._end_held(queue, entry, ending, delay_ms)

    def _end_waiting(self, call: Context, queue: BrokerQueue, entry: QueueEntry, ending: Ending, delay_ms: int) -> None:
        """Archive, delete or delay a message that is not in flight."""
        if ending == Ending.ARCHIVE:
            queue.archive(entry, call.session.name)
        elif ending == Ending.DELETE:
            queue.discard(entry)
        elif ending == Ending.SET_VT:
            queue.delay(entry, delay_ms)
        else:
            text = f"message {entry.id} of queue {queue.name!r} is ready and no consumer holds it: read it first"
            raise StaleLease(text, queue=queue.name, message_id=entry.id)

    def _end_held(self, queue: BrokerQueue, entry: QueueEntry, ending: Ending, delay_ms: int) -> None:
        holder = self._holders.of(entry)
        if ending == Ending.SET_VT and delay_ms:
            if not is_timed(entry.session):
                raise PreconditionFailed(
                    f"message {entry.id} is held by {holder.name!r} over a connection: its lease has no time to extend",
                    queue=queue.name,
                    message_id=entry.id,
                )
            queue.extend(entry, delay_ms)
            self._timed.note(queue.name, entry)
        else:
            delayed = ending == Ending.SET_VT or (ending == Ending.RELEASE and delay_ms)
            self._leases.end(holder, queue, entry, _OUTCOMES[ending], delay_ms=delay_ms if delayed else -1)
