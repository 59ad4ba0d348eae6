"""Send: messages of the queue client, all or none in one commit, once for an idempotency key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import KeyReused, RequestError, Unroutable
from ..protocol import messages as m
from ..protocol import queue_messages as q
from ..storage.records import idempotency, metadata
from ..storage.records.idempotency import DIGEST_BYTES, Sending
from .entities import BrokerQueue

if TYPE_CHECKING:
    from .handlers import Handlers

MAX_MESSAGES = 10_000
MAX_KEY_BYTES = 255
#: thirty days
MAX_KEY_TTL_MS = 30 * 86_400_000

Routed = list[tuple[m.Publish, list[BrokerQueue]]]


def send(self: Handlers, msg: q.Send) -> None:
    """Store them, or say again what was stored."""
    calls = self.instance.calls
    if calls.repeat(self.session, msg.rid):
        return
    _check(msg)
    name = idempotency.name_of(msg.exchange, msg.routing_key, msg.key) if msg.key else b""
    if name and not self.engine.idempotency.find(name)[0]:
        calls.spawn(self.session, msg.rid, _look_and_send(self, msg, name), once=True)
    else:
        _send(self, msg, name)


async def _look_and_send(self: Handlers, msg: q.Send, name: bytes) -> None:
    await self.engine.idempotency.load(name)
    _send(self, msg, name)


def _check(msg: q.Send) -> None:
    if not 0 < len(msg.messages) <= MAX_MESSAGES:
        raise RequestError(
            f"a batch has 1 to {MAX_MESSAGES} messages, not {len(msg.messages)}: send several", limit=MAX_MESSAGES
        )
    if not msg.key:
        return
    size = len(msg.key.encode("utf-8", "surrogatepass"))
    if size > MAX_KEY_BYTES:
        raise RequestError(f"the idempotency key has {size} bytes, the limit is {MAX_KEY_BYTES}", limit=MAX_KEY_BYTES)
    if not 0 < msg.key_ttl_ms <= MAX_KEY_TTL_MS:
        raise RequestError(
            f"an idempotency key is remembered for 1 to {MAX_KEY_TTL_MS} ms, not {msg.key_ttl_ms}",
            limit=MAX_KEY_TTL_MS,
        )
    if len(msg.digest) != DIGEST_BYTES:
        raise RequestError(f"the digest of what is sent has {DIGEST_BYTES} bytes, not {len(msg.digest)}")


def _send(self: Handlers, msg: q.Send, name: bytes) -> None:
    sent = self.engine.idempotency.find(name)[1] if name else None
    if sent is not None:
        _answer_again(self, msg, sent)
        return
    before = self.engine.published(self.session.id, msg.seq)
    if before is not None:  # the broker that answered it is gone
        last, latest = before.last_message_id, before.last_sequence == msg.seq
        ids = list(range(last - len(msg.messages) + 1, last + 1)) if latest else []
        self.instance.calls.answer(self.session, q.Sent(msg.rid, ids, [], True))
        return
    routed = _route(self, msg)
    _check_room(self, routed)
    ids = _store(self, routed)
    names = [[queue.name for queue in targets] for _publish, targets in routed]
    if all(each == names[0] for each in names):
        del names[1:]
    if name and any(id >= 0 for id in ids):
        expires_at = self.engine.clock.now_ms() + msg.key_ttl_ms
        destinations = tuple(tuple(each) for each in names)
        self.engine.idempotency.remember(name, Sending(tuple(ids), expires_at, msg.digest, destinations))
    self.instance.calls.answer(self.session, q.Sent(msg.rid, ids, names), 40 * len(ids))


def _answer_again(self: Handlers, msg: q.Send, sent: Sending) -> None:
    if sent.digest != msg.digest:
        raise KeyReused(
            f"the idempotency key {msg.key!r} was used for another message, {sent.ids[0]}: nothing was stored; take a "
            "new key for a new message",
            key=msg.key,
            ids=list(sent.ids[:100]),
        )
    answer = q.Sent(msg.rid, list(sent.ids), [list(names) for names in sent.queues], True)
    self.instance.calls.answer(self.session, answer, 40 * len(sent.ids))


def _route(self: Handlers, msg: q.Send) -> Routed:
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
        if not targets and msg.mandatory:
            raise Unroutable(
                f"no queue takes messages for exchange {msg.exchange!r} with routing key {msg.routing_key!r}",
                exchange=msg.exchange,
                routing_key=msg.routing_key,
            )
        if numbered or not any(queue.stored is not None for queue in targets):
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
    """
    self.engine.check_room(sum(len(publish.envelope) for publish, targets in routed if targets))
    if len(routed) == 1:
        return  # the store of one message looks itself
    coming: dict[BrokerQueue, list[int]] = {}
    for publish, targets in routed:
        for queue in targets:
            if queue.is_bounded:
                coming.setdefault(queue, []).append(len(publish.envelope))
    for queue, sizes in coming.items():
        self.instance.upkeep.check_room(queue, sum(sizes), len(sizes))


def _store(self: Handlers, routed: Routed) -> list[int]:
    return [self.store(publish, targets) if targets else -1 for publish, targets in routed]


HANDLERS: dict[type, Callable[[Any, Any], None]] = {q.Send: send}
