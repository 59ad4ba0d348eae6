"""Send: stores all messages of a batch in one commit, or none, and only once for an idempotency key."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from msgspec.structs import replace

from ....errors import NotFound, OpenDataError, RequestError, RetryLater, Unroutable
from ....protocol import messages as m
from ....protocol.unique_key import UniqueKey
from ....storage.clock import TimeSlice
from ....storage.commit.commits import Commits
from ....storage.operations.message_operations import Operations
from ....storage.records import metadata
from ....storage.records.idempotency import Sending
from ...delivery.queue_policies import QueuePolicies
from ...model.queue import BrokerQueue
from ...model.sessions import Session
from ...model.stored_queue import stored_in
from ..dispatch import BrokerCalls, Context, check_range, handles
from ..publish import PublishCalls
from .send_idempotency import SentKeys, check_keys, key_name, key_reused, names_of, repetitions

MAX_MESSAGES = 10_000
#: limit for the bytes of a session's batches that are checked at the same time, unless it is a single batch
MAX_CHECKING_BYTES = 64 << 20

#: messages of a batch that are checked and routed in one turn of the event loop
_CHECKED_AT_ONCE = 16
_ATTEMPTS = 10

Routed = list[tuple[m.Publish, list[BrokerQueue]]]


@dataclass(slots=True)
class Checked:
    """Messages of a batch that were checked, by the id() of their tuples."""

    publishes: dict[int, m.Publish] = field(default_factory=dict)  # each message as a publish
    #: the names of the queues that each message is routed to, if routing is slow
    routes: dict[int, tuple[str, ...]] = field(default_factory=dict)


class SendCalls(BrokerCalls):
    """Calls that store messages, or repeat the reply of an earlier send."""

    _publishing: PublishCalls
    _keys: SentKeys
    _operations: Operations
    _commits: Commits
    _upkeep: QueuePolicies
    _checking_bytes: Counter[bytes] = field(default_factory=Counter)  # by session

    @handles(m.Send)
    def send(self, call: Context, msg: m.Send) -> None:
        if msg.unique is not None:
            call.run(msg.rid, self._send_unique(call.session, msg, msg.unique), once=True)
            return
        check_range("the number of messages of a batch", len(msg.messages), 1, MAX_MESSAGES)
        check_keys(msg)
        names = [key_name(msg, key) for key in msg.keys or [msg.key]]
        if not self._takes_long(msg) and all(self._keys.is_known(msg, name) for name in names):
            self._send(call, msg, names, Checked())
        else:
            size = sum(len(envelope) for envelope, *_rest in msg.messages)
            checking = self._checking_bytes[call.session.id]
            is_stored = self._operations.published(call.session.id, msg.seq) is not None  # and its answer was lost
            if checking and checking + size > MAX_CHECKING_BYTES and not is_stored:
                text = f"batches with {checking:,} bytes of this client are being checked: wait for their answers"
                raise RetryLater(text)
            self._checking_bytes[call.session.id] += size
            call.run(msg.rid, self._load_and_send(call, msg, names, size), once=True)

    async def _send_unique(self, session: Session, msg: m.Send, unique: UniqueKey) -> m.Sent:
        if msg.key or msg.keys or len(msg.messages) != 1:
            raise RequestError("a unique key is for one message, without an idempotency key")
        ((publish, targets),) = self._route(msg, self._must_take(msg), session, Checked())
        async with self._commits.written((publish.envelope,)):
            confirm = await self._publishing.publish_unique(session, publish, unique)
        is_new = confirm.holder is None
        names = [queue.name for queue in targets if is_new and session.rights.may_see(queue.name)]
        id = -1 if is_new and not confirm.queues else confirm.message_id
        return m.Sent(msg.rid, [id] if confirm.queues >= 0 else [], [names], not is_new)

    def _takes_long(self, msg: m.Send) -> bool:
        """Return True if the messages are checked in slices, or a thread writes the largest ones."""
        limit = self._commits.own_bytes
        return len(msg.messages) > _CHECKED_AT_ONCE or any(len(message[0]) >= limit for message in msg.messages)

    async def _load_and_send(self, call: Context, msg: m.Send, names: list[bytes], size: int) -> None:
        session = call.session.id
        try:
            async with AsyncExitStack() as stack:
                stack.enter_context(self._keys.held(msg, names))
                while True:
                    await self._keys.load(msg, names)
                    is_new = any(self._keys.find(msg, name) is None for name in names)
                    if not is_new or not self._takes_long(msg):
                        checked = Checked()
                        break
                    checked = await self._check(call, msg)
                    envelopes = [publish.envelope for publish in checked.publishes.values()]
                    await stack.enter_async_context(self._commits.written(envelopes))
                    if all(self._keys.is_known(msg, name) for name in names):  # none has expired
                        break
                self._send(call, msg, names, checked)
        finally:
            self._checking_bytes[session] -= size
            if not self._checking_bytes[session]:
                del self._checking_bytes[session]

    async def _check(self, call: Context, msg: m.Send) -> Checked:
        """Check the messages, and route them if that is slow, in slices of a millisecond.

        Raise the error of an invalid message. Raise RetryLater if queues or bindings changed during each of several
        attempts to route all messages.
        """
        publishing, pace, checked = self._publishing, TimeSlice(), Checked()
        for message in reversed(msg.messages):
            checked.publishes[id(message)] = self._checked(msg, message, call.session)
            if pace.is_over:
                await pace.rest()
        for _ in range(_ATTEMPTS):
            version = publishing.routing_version
            checked.routes.clear()
            for place, publish in checked.publishes.items() if version else ():
                checked.routes[place] = publishing.route(publish)
                if pace.is_over:
                    await pace.rest()
            if publishing.routing_version == version:
                return checked
        raise RetryLater("queues or bindings changed while the batch was routed: nothing was stored; send it again")

    def _checked(self, msg: m.Send, message: m.Outgoing, session: Session) -> m.Publish:
        """Return a message as a publish that can be stored."""
        envelope, headers, priority, visible_at, ttl_ms = message
        publish = m.Publish(
            0,
            msg.seq,
            msg.exchange,
            msg.routing_key,
            envelope,
            headers,
            priority,
            msg.created_at_ms,
            visible_at,
            ttl_ms,
        )
        self._publishing.check(publish, session)
        if len(msg.messages) > 1:
            metadata.encode(0, 0, 0, 0, 0, publish.headers)  # refuse the batch before a message is stored
        return publish

    def _send(self, call: Context, msg: m.Send, names: list[bytes], checked: Checked) -> None:
        send_batch = self._send_new if msg.keys else self._send_all
        answer = send_batch(call, msg, names, checked)
        may_see = call.session.rights.may_see
        answer.queues = [list(filter(may_see, queues)) for queues in answer.queues]
        call.answer_once(msg.rid, answer, 40 * len(answer.ids))

    def _send_all(self, call: Context, msg: m.Send, names: list[bytes], checked: Checked) -> m.Sent:
        name = names[0]
        previous = self._keys.find(msg, name)
        if previous is not None:
            if previous.digest != msg.digest:
                raise key_reused(msg.key, previous.ids)
            return m.Sent(msg.rid, list(previous.ids), [list(names) for names in previous.queues], True)
        before = self._operations.published(call.session.id, msg.seq)
        if before is not None:  # stored before a restart
            last_id = before.last_message_id if before.last_sequence == msg.seq else -1
            return self._sent_before(msg, call.session, last_id, checked)
        routed = self._route(msg, self._must_take(msg), call.session, checked)
        ids, targets = self._store(call, routed), [targets for _publish, targets in routed]
        queues = names_of(targets)
        sending = Sending(tuple(ids), self._keys.expires_at_ms(msg), msg.digest, tuple(map(tuple, queues)))
        self._keys.remember(msg, name, sending, targets)
        return m.Sent(msg.rid, ids, queues)

    def _sent_before(self, msg: m.Send, session: Session, last_id: int, checked: Checked) -> m.Sent:
        """Return the stored messages with their current routes; none if the id of the last message is unknown."""
        if last_id < 0:
            return m.Sent(msg.rid, [], [])
        try:
            routed = self._route(msg, None, session, checked)
        except OpenDataError:  # its exchange was deleted
            routed = []
        ids, id = [], last_id
        for _publish, targets in reversed(routed):
            is_stored = bool(stored_in(targets))
            ids.append(id if is_stored else -1)
            id -= is_stored
        return m.Sent(msg.rid, ids[::-1], names_of([targets for _publish, targets in routed]))

    def _send_new(self, call: Context, msg: m.Send, names: list[bytes], checked: Checked) -> m.Sent:
        """Store the messages with new keys, and return the ids of all."""
        sendings = [self._keys.find(msg, name) for name in names]
        same = repetitions(msg, names, sendings)
        before = self._operations.published(call.session.id, msg.seq)
        if before is not None:  # stored before a restart: the new keys were those with the last message's expiry time
            last_id = before.last_message_id if before.last_sequence == msg.seq else -1
            times = {sending.expires_at_ms for sending in sendings if sending is not None and sending.ids[0] == last_id}
            ids = [-1 if sending is None else sending.ids[0] for sending in sendings]
            new = [
                sending is not None and sending.expires_at_ms in times and at not in same
                for at, sending in enumerate(sendings)
            ]
            return m.Sent(msg.rid, ids, [], not any(new), new) if -1 not in ids else m.Sent(msg.rid, [], [])
        new_indexes = [at for at, sending in enumerate(sendings) if sending is None and at not in same]
        unsent = replace(msg, messages=[msg.messages[at] for at in new_indexes])
        routed = self._route(unsent, self._must_take(msg), call.session, checked)
        stored = dict(zip(new_indexes, self._store(call, routed), strict=True))
        expires_at = self._keys.expires_at_ms(msg)
        for (at, id), (_publish, targets) in zip(stored.items(), routed, strict=True):
            queues = (tuple(queue.name for queue in targets),)
            self._keys.remember(msg, names[at], Sending((id,), expires_at, msg.digests[at], queues), [targets])
        ids = [stored[same.get(at, at)] if sending is None else sending.ids[0] for at, sending in enumerate(sendings)]
        return m.Sent(msg.rid, ids, [], not stored, [at in stored for at in range(len(ids))])

    def _must_take(self, msg: m.Send) -> BrokerQueue | None:
        """Return the queue that must receive each message, None if any queue may; raise NotFound if it is missing."""
        if not msg.to_queue:
            return None
        queue = self._keys.queue_of(msg)
        if queue is None:
            raise NotFound(f"no queue {msg.routing_key!r}: create it first", queue=msg.routing_key)
        return queue

    def _route(self, msg: m.Send, must_take: BrokerQueue | None, session: Session, checked: Checked) -> Routed:
        """Route messages, and check those that are not in ``checked``.

        Only the last message that is stored gets the publish number of the batch.
        """
        routed: Routed = []
        numbered = False
        for message in reversed(msg.messages):
            publish = checked.publishes.get(id(message)) or self._checked(msg, message, session)
            targets = self._publishing.targets(publish, checked.routes.get(id(message)))
            if must_take is not None and must_take not in targets:
                text = f"queue {must_take.name!r} does not take the message: its filter does not match it"
                raise Unroutable(text, queue=must_take.name)
            if numbered or not stored_in(targets):
                publish.seq = 0
            else:
                numbered = True
            routed.append((publish, targets))
        routed.reverse()
        return routed

    def _store(self, call: Context, routed: Routed) -> list[int]:
        """Store all messages or raise as :meth:`_check_room`; return their ids, -1 for a message without a queue."""
        self._check_room(routed, call.session)
        store, session = self._publishing.store, call.session
        write = self._commits.write_large  # all before the first is stored: the disk may be full
        places = [write(publish.envelope) if stored_in(targets) else None for publish, targets in routed]
        return [
            store(publish, targets, session, place) if targets else -1
            for (publish, targets), place in zip(routed, places, strict=True)
        ]

    def _check_room(self, routed: Routed, session: Session) -> None:
        """Check that every queue has room for its messages; raise QueueFull, QueuePaused, StoreFull or RequestError."""
        commits = self._commits
        commits.check_room(sum(commits.journal_bytes(publish.envelope) for publish, targets in routed if targets))
        if len(routed) == 1:
            return  # the storage of a single message has its own check
        coming: dict[BrokerQueue, list[int]] = {}
        for publish, targets in routed:
            for queue in targets:
                if queue.is_guarded:
                    coming.setdefault(queue, []).append(len(publish.envelope))
        for queue, sizes in coming.items():
            queue.check_open()
            limit = queue.arguments.max_length
            if queue.arguments.rejects and 0 <= limit < len(sizes):
                what = f"queue {queue.name!r}" if session.rights.may_see(queue.name) else "one of their queues"
                raise RequestError(
                    f"{len(sizes)} messages are more than {what} ever takes, whose maximum is {limit}: "
                    "nothing was stored; send fewer at a time",
                    limit=limit,
                )
            self._upkeep.check_room(queue, sum(sizes), len(sizes))
