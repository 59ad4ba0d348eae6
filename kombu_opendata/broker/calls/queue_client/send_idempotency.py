"""Idempotency keys, and the sends that used them, in the store or in memory."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from ....errors import KeyReused, RequestError
from ....protocol.messages import Send
from ....storage.clock import Clock
from ....storage.operations.repeated_requests import MAX_KEY_TTL_MS, Idempotency
from ....storage.records.idempotency import DIGEST_BYTES, Sending, name_of
from ...model.queue import BrokerQueue
from ...model.stored_queue import stored_in
from ..dispatch import check_range

MAX_KEY_BYTES = 255


class SentKeys:
    """Idempotency keys of one instance. A key is identified by its name, which is empty if there is no key."""

    def __init__(self, queues: Mapping[str, BrokerQueue], idempotency: Idempotency, clock: Clock) -> None:
        self._queues, self._idempotency, self._clock = queues, idempotency, clock

    def queue_of(self, msg: Send) -> BrokerQueue | None:
        """Return the queue that the sender named; None if it does not exist."""
        queue = None if msg.exchange else self._queues.get(msg.routing_key)
        return None if queue is None or queue.deleting else queue

    def find(self, msg: Send, name: bytes) -> Sending | None:
        """Return the send that used a key; only valid if :meth:`is_known`."""
        return self._find(msg, name)[1] if name else None

    def is_known(self, msg: Send, name: bytes) -> bool:
        """Return True if :meth:`find` works without reading the store."""
        return not name or self._find(msg, name)[0]

    def _find(self, msg: Send, name: bytes) -> tuple[bool, Sending | None]:
        queue = self.queue_of(msg)
        sending = queue.sends.get(name) if queue is not None else None
        if sending is not None and sending.expires_at_ms > self._clock.now_ms():
            return True, sending
        return self._idempotency.find(name, _addressee(msg))

    def held(self, msg: Send, names: list[bytes]) -> AbstractContextManager[None]:
        """Let the cache keep the keys of a send, while :meth:`load` reads those that are unknown."""
        return self._idempotency.held(names, _addressee(msg))

    async def load(self, msg: Send, names: list[bytes]) -> None:
        """Load keys from the store, until all of them are known."""
        while unknown := [name for name in names if not self.is_known(msg, name)]:
            await self._idempotency.load(unknown, _addressee(msg))  # those in memory may have expired during the read

    def expires_at_ms(self, msg: Send) -> int:
        """Return the expiry time of the keys of a send, which is the same for all."""
        return self._clock.now_ms() + msg.key_ttl_ms

    def remember(self, msg: Send, name: bytes, sending: Sending, targets: list[list[BrokerQueue]]) -> None:
        """Record a send with a key to these queues, in the store if one of the queues is stored."""
        if not name or max(sending.ids) < 0:
            return
        queue = self.queue_of(msg)
        if any(stored_in(queues) for queues in targets):
            self._idempotency.remember(name, sending)
            if queue is not None:
                queue.has_stored_sends = True
        elif queue is not None:
            queue.note_send(name, sending)
        else:
            self._idempotency.remember_in_memory(name, sending)


def key_name(msg: Send, key: str) -> bytes:
    return name_of(msg.exchange, msg.routing_key, key) if key else b""


def names_of(targets: list[list[BrokerQueue]]) -> list[list[str]]:
    """Return the queues of each message; one entry if they are the same for all."""
    names = [[queue.name for queue in each] for each in targets]
    return names[:1] if all(each == names[0] for each in names) else names


def _addressee(msg: Send) -> str:
    """Return the name of the queue that the sender named; empty if none."""
    return "" if msg.exchange else msg.routing_key


def check_keys(msg: Send) -> None:
    """Check keys, digests and their time to live; raise RequestError if one of them is not valid."""
    if not msg.key and not msg.keys:
        return
    if msg.keys and (msg.key or not len(msg.keys) == len(msg.digests) == len(msg.messages)):
        raise RequestError("a batch has one idempotency key, or one for each message with its digest")
    for key, digest in zip(msg.keys or [msg.key], msg.digests if msg.keys else [msg.digest], strict=True):
        check_range(
            "the size of an idempotency key in bytes", len(key.encode("utf-8", "surrogatepass")), 0, MAX_KEY_BYTES
        )
        check_range("the size of a digest in bytes", len(digest), DIGEST_BYTES, DIGEST_BYTES)
    check_range("the time to live of an idempotency key in ms", msg.key_ttl_ms, 1, MAX_KEY_TTL_MS)


def repetitions(msg: Send, names: list[bytes], sendings: list[Sending | None]) -> dict[int, int]:
    """Return the index of the first message with the same key, for each message in the batch that repeats a key.

    Raise KeyReused if a key was used for a message with other content.
    """
    first: dict[bytes, int] = {}
    same: dict[int, int] = {}
    for at, (name, sending) in enumerate(zip(names, sendings, strict=True)):
        if sending is not None and sending.digest != msg.digests[at]:
            raise key_reused(msg.keys[at], sending.ids)
        if name and first.setdefault(name, at) != at:
            same[at] = first[name]
            if msg.digests[at] != msg.digests[same[at]]:
                raise key_reused(msg.keys[at], ())
    return same


def key_reused(key: str, ids: tuple[int, ...]) -> KeyReused:
    suffix = f", {ids[0]}" if ids else " of this batch"
    text = (
        f"the idempotency key {key!r} was used for another message{suffix}: nothing was stored; take a new key for a "
        "new message"
    )
    return KeyReused(text, key=key, ids=list(ids[:100]))
