"""Send: messages of the queue client, all or none in one commit, once for an idempotency key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..errors import KeyReused, NotFound, OpenDataError, RequestError, Unroutable
from ..protocol import messages as m
from ..protocol import queue_messages as q
from ..storage.idempotency import MAX_KEY_TTL_MS
from ..storage.records import idempotency, metadata
from ..storage.records.idempotency import DIGEST_BYTES, Sending
from .model.queue import BrokerQueue
from .model.queue_kinds import by_kind

if TYPE_CHECKING:
    from .handlers import Handlers

MAX_MESSAGES = 10_000
MAX_KEY_BYTES = 255

Routed = list[tuple[m.Publish, list[BrokerQueue]]]


def send(self: Handlers, msg: q.Send) -> None:
    """Store them, or say again what was stored."""
    if self.instance.background.repeat(self.session, msg.rid):
        return
    _check(msg)
    named = _named(self, msg)
    if msg.keys:
        _send_each_once(self, msg, named)
        return
    name = _name(msg, msg.key)
    if name and not _find(self, msg, named, name)[0]:
        self.instance.background.run(self.session, msg.rid, _look_and_send(self, msg, name), once=True)
    else:
        _send(self, msg, named, name)


async def _look_and_send(self: Handlers, msg: q.Send, name: bytes) -> None:
    await self.engine.idempotency.load(name, "" if msg.exchange else msg.routing_key)
    _send(self, msg, _named(self, msg), name)


def _name(msg: q.Send, key: str) -> bytes:
    """What a key of this send is remembered by; empty for none."""
    return idempotency.name_of(msg.exchange, msg.routing_key, key) if key else b""


def _named(self: Handlers, msg: q.Send) -> BrokerQueue | None:
    """The queue that the sender names, if there is one."""
    queue = None if msg.exchange else self.instance.queues.get(msg.routing_key)
    return None if queue is None or queue.deleting else queue


def _find(self: Handlers, msg: q.Send, named: BrokerQueue | None, name: bytes) -> tuple[bool, Sending | None]:
    """Whether it is known what was sent under the key, and what was."""
    sent = named.sends.get(name) if named is not None else None
    if sent is not None and sent.expires_at_ms > self.engine.clock.now_ms():
        return True, sent
    return self.engine.idempotency.find(name, "" if msg.exchange else msg.routing_key)


def _check(msg: q.Send) -> None:
    if not 0 < len(msg.messages) <= MAX_MESSAGES:
        raise RequestError(
            f"a batch has 1 to {MAX_MESSAGES} messages, not {len(msg.messages)}: send several", limit=MAX_MESSAGES
        )
    if not msg.key and not msg.keys:
        return
    if msg.keys and (msg.key or not len(msg.keys) == len(msg.digests) == len(msg.messages)):
        raise RequestError("a batch has one idempotency key, or one for each message with its digest")
    for key, digest in zip(msg.keys or [msg.key], msg.digests if msg.keys else [msg.digest], strict=True):
        size = len(key.encode("utf-8", "surrogatepass"))
        if size > MAX_KEY_BYTES:
            raise RequestError(
                f"the idempotency key has {size} bytes, the limit is {MAX_KEY_BYTES}", limit=MAX_KEY_BYTES
            )
        if len(digest) != DIGEST_BYTES:
            raise RequestError(f"the digest of what is sent has {DIGEST_BYTES} bytes, not {len(digest)}")
    if not 0 < msg.key_ttl_ms <= MAX_KEY_TTL_MS:
        raise RequestError(
            f"an idempotency key is remembered for 1 to {MAX_KEY_TTL_MS} ms, not {msg.key_ttl_ms}",
            limit=MAX_KEY_TTL_MS,
        )


def _send(self: Handlers, msg: q.Send, named: BrokerQueue | None, name: bytes) -> None:
    sent = _find(self, msg, named, name)[1] if name else None
    if sent is not None:
        _answer_again(self, msg, sent)
        return
    before = self.engine.operations.published(self.session.id, msg.seq)
    if before is not None:  # the broker that answered it is gone
        last_id = before.last_message_id if before.last_sequence == msg.seq else -1
        self.instance.background.answer(self.session, _answer_after_restart(self, msg, last_id))
        return
    _check_exists(msg, named)
    routed = _route(self, msg, named if msg.to_queue else None)
    ids = _store(self, routed)
    names = _names(routed)
    if name:
        expires_at = self.engine.clock.now_ms() + msg.key_ttl_ms
        _remember(self, named, name, Sending(tuple(ids), expires_at, msg.digest, tuple(map(tuple, names))), routed)
    self.instance.background.answer(self.session, q.Sent(msg.rid, ids, names), 40 * len(ids))


def _remember(self: Handlers, named: BrokerQueue | None, name: bytes, sending: Sending, routed: Routed) -> None:
    """Keep what was sent under a key, in the store if any of it is."""
    if max(sending.ids) < 0:
        return
    if any(by_kind(targets)[0] for _publish, targets in routed):
        self.engine.idempotency.remember(name, sending)
        if named is not None:
            named.has_stored_sends = True
    elif named is not None:
        named.note_send(name, sending)
    else:
        self.engine.idempotency.remember_in_memory(name, sending)


def _check_exists(msg: q.Send, named: BrokerQueue | None) -> None:
    """Refuse, by :class:`NotFound`, what is for a queue that does not exist."""
    if msg.to_queue and named is None:
        raise NotFound(f"no queue {msg.routing_key!r}: create it first", queue=msg.routing_key)


def _answer_after_restart(self: Handlers, msg: q.Send, last_id: int) -> q.Sent:
    """What was stored, as it would be routed now; nothing, if the id of the last one is not known."""
    if last_id < 0:
        return q.Sent(msg.rid, [], [])
    try:
        routed = _route(self, msg, None)
    except OpenDataError:  # what it was sent to has gone
        routed = []
    ids, id = [], last_id
    for _publish, targets in reversed(routed):
        is_stored = bool(by_kind(targets)[0])
        ids.append(id if is_stored else -1)
        id -= is_stored
    return q.Sent(msg.rid, ids[::-1], _names(routed))


def _names(routed: Routed) -> list[list[str]]:
    """The queues of each message; one entry where they are the same for all."""
    names = [[queue.name for queue in targets] for _publish, targets in routed]
    return names[:1] if all(each == names[0] for each in names) else names


def _answer_again(self: Handlers, msg: q.Send, sent: Sending) -> None:
    if sent.digest != msg.digest:
        raise _key_reused(msg.key, sent.ids)
    answer = q.Sent(msg.rid, list(sent.ids), [list(names) for names in sent.queues], True)
    self.instance.background.answer(self.session, answer, 40 * len(sent.ids))


def _key_reused(key: str, ids: tuple[int, ...]) -> KeyReused:
    """The error for another message under a key."""
    other = f", {ids[0]}" if ids else " of this batch"
    return KeyReused(
        f"the idempotency key {key!r} was used for another message{other}: nothing was stored; take a new key for a "
        "new message",
        key=key,
        ids=list(ids[:100]),
    )


def _route(self: Handlers, msg: q.Send, must_take: BrokerQueue | None) -> Routed:
    """Each message, checked, and its queues. The last one that is stored has the batch's number."""
    routed: Routed = []
    numbered = False
    for envelope, headers, priority, visible_at, ttl_ms in reversed(msg.messages):
        publish = m.Publish(
            0, msg.seq, msg.exchange, msg.routing_key, envelope, headers, priority, msg.created_at_ms, visible_at,
            ttl_ms,
        )  # fmt: skip
        self.check_publish(publish)
        if len(msg.messages) > 1:
            metadata.encode(0, 0, 0, 0, 0, headers)  # refuse the batch before any of it is stored
        targets = self.targets(publish)
        if must_take is not None and must_take not in targets:
            text = f"queue {must_take.name!r} does not take the message: its filter lets it not pass"
            raise Unroutable(text, queue=must_take.name)
        if numbered or not by_kind(targets)[0]:
            publish.seq = 0
        else:
            numbered = True
        routed.append((publish, targets))
    routed.reverse()
    return routed


def _check_room(self: Handlers, routed: Routed) -> None:
    """All or none: every queue must have room for all it gets.

    Raises:
        QueueFull, StoreFull: nothing was stored.
        RequestError: nor will it ever be.
    """
    self.engine.commits.check_room(sum(len(publish.envelope) for publish, targets in routed if targets))
    if len(routed) == 1:
        return  # the store of one message looks itself
    coming: dict[BrokerQueue, list[int]] = {}
    for publish, targets in routed:
        for queue in targets:
            if queue.is_bounded:
                coming.setdefault(queue, []).append(len(publish.envelope))
    for queue, sizes in coming.items():
        limit = queue.arguments.max_length
        if queue.arguments.rejects and 0 <= limit < len(sizes):
            raise RequestError(
                f"{len(sizes)} messages are more than queue {queue.name!r} ever takes, whose maximum is {limit}: "
                "nothing was stored; send fewer at a time",
                queue=queue.name,
                limit=limit,
            )
        self.instance.upkeep.check_room(queue, sum(sizes), len(sizes))


def _store(self: Handlers, routed: Routed) -> list[int]:
    """Store all of it; the ids, -1 for a message that no queue took.

    Raises:
        QueueFull, StoreFull, RequestError: there is no room; nothing was stored.
    """
    _check_room(self, routed)
    return [self.store(publish, targets) if targets else -1 for publish, targets in routed]


# ---------------------------------------------------------------------- each message with a key of its own
def _send_each_once(self: Handlers, msg: q.Send, named: BrokerQueue | None) -> None:
    names = [_name(msg, key) for key in msg.keys]
    if _unknown(self, msg, named, names):
        self.instance.background.run(self.session, msg.rid, _look_and_send_each(self, msg, names), once=True)
    else:
        _send_new(self, msg, named, names)


def _unknown(self: Handlers, msg: q.Send, named: BrokerQueue | None, names: list[bytes]) -> list[bytes]:
    """The keys of which only the store knows what was sent under them."""
    return [name for name in names if name and not _find(self, msg, named, name)[0]]


async def _look_and_send_each(self: Handlers, msg: q.Send, names: list[bytes]) -> None:
    while unknown := _unknown(self, msg, _named(self, msg), names):  # others may push some out of the cache
        await self.engine.idempotency.load_many(unknown, "" if msg.exchange else msg.routing_key)
    _send_new(self, msg, _named(self, msg), names)


def _send_new(self: Handlers, msg: q.Send, named: BrokerQueue | None, names: list[bytes]) -> None:
    """Store the messages whose keys are new, and say what the others are."""
    found = [_find(self, msg, named, name)[1] if name else None for name in names]
    same = _repetitions(msg, names, found)
    before = self.engine.operations.published(self.session.id, msg.seq)
    if before is not None:  # the broker that answered it is gone: what has the same time as its last message was new
        last_id = before.last_message_id if before.last_sequence == msg.seq else -1
        times = {sent.expires_at_ms for sent in found if sent is not None and sent.ids[0] == last_id}
        ids = [-1 if sent is None else sent.ids[0] for sent in found]
        new = [sent is not None and sent.expires_at_ms in times and at not in same for at, sent in enumerate(found)]
        answer = q.Sent(msg.rid, ids, [], not any(new), new) if -1 not in ids else q.Sent(msg.rid, [], [])
        self.instance.background.answer(self.session, answer, 40 * len(ids))
        return
    _check_exists(msg, named)
    fresh = [at for at, sent in enumerate(found) if sent is None and at not in same]
    routed = _route(self, replace(msg, messages=[msg.messages[at] for at in fresh]), named if msg.to_queue else None)
    stored = dict(zip(fresh, _store(self, routed), strict=True))
    expires_at = self.engine.clock.now_ms() + msg.key_ttl_ms
    for (at, id), one in zip(stored.items(), routed, strict=True):
        if names[at]:
            queues = (tuple(queue.name for queue in one[1]),)
            _remember(self, named, names[at], Sending((id,), expires_at, msg.digests[at], queues), [one])
    ids = [stored[same.get(at, at)] if sent is None else sent.ids[0] for at, sent in enumerate(found)]
    new = [at in stored for at in range(len(ids))]
    self.instance.background.answer(self.session, q.Sent(msg.rid, ids, [], not stored, new), 40 * len(ids))


def _repetitions(msg: q.Send, names: list[bytes], found: list[Sending | None]) -> dict[int, int]:
    """The places in the batch whose key an earlier one has, and where that is.

    Raises:
        KeyReused: a key stands for two messages; nothing was stored.
    """
    first: dict[bytes, int] = {}
    same: dict[int, int] = {}
    for at, (name, sent) in enumerate(zip(names, found, strict=True)):
        if sent is not None and sent.digest != msg.digests[at]:
            raise _key_reused(msg.keys[at], sent.ids)
        if name and first.setdefault(name, at) != at:
            same[at] = first[name]
            if msg.digests[at] != msg.digests[same[at]]:
                raise _key_reused(msg.keys[at], ())
    return same


HANDLERS: dict[type, Callable[[Any, Any], None]] = {q.Send: send}
