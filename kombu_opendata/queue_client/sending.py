"""Calls that send one message or many to a queue, or one to every queue that matches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import OpenDataError
from ..protocol import messages as m
from ..protocol.messages import Outgoing
from ..protocol.unique_key import HEADER, unique_key_of
from . import checks
from .base import Base
from .checks import Moment, Seconds
from .message_models import Published

#: seconds for which an idempotency key is remembered
KEY_SECONDS = 86_400.0


class MessageSending(Base):
    """Calls that store messages. Each returns when they are durable, and a lost connection stores nothing twice."""

    def send(
        self,
        queue: str,
        body: Any,
        headers: Mapping[str, Any] | None = None,
        *,
        delay: Seconds | None = None,
        at: Moment | None = None,
        priority: int = 0,
        ttl: Seconds | None = None,
        idempotency_key: str = "",
        key_seconds: Seconds = KEY_SECONDS,
        unique: str | Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> int:
        """Send a message to a queue and return its id.

        Args:
            body: bytes, text, or any JSON value.
            headers: filters can use those with scalar values.
            delay: seconds until the message can be read.
            at: alternatively, the time from which it can be read: a datetime, or seconds since the epoch.
            priority: 0 to 255; higher comes first.
            ttl: the message is removed if it is not read within this many seconds.
            idempotency_key: a second send to this queue with the same key and body stores nothing and returns the id of
                the first. The deletion of a queue deletes its keys. A queue in memory keeps only its newest 10,000.
            key_seconds: the time for which the key is remembered: by default a day, at most thirty days.
            unique: a key, or a map with ``key``, ``until`` and ``on_conflict``: another message that holds the key is
                returned or replaced, or UniqueViolation is raised; see docs/flow-control.md.
            properties: properties of AMQP for Kombu consumers, except those that are arguments here.

        Raises:
            Unroutable: the queue's filter, in the mode ``all``, does not match the message.
            KeyReused: the key was used with another body.
            MessageTooLarge, InvalidMessage, RequestError: the call is not valid; nothing was stored.
            QueueFull, QueuePaused, StoreFull: try again later; nothing was stored.
        """
        now = self._now_ms()
        due = checks.due_at_ms(delay, at, now)
        message, digest = checks.outgoing(
            body, headers, "", queue, priority=priority, due_ms=due, ttl=ttl, now_ms=now, properties=properties
        )
        return self._send("", queue, [message], key_seconds, key=idempotency_key, digest=digest, unique=unique).ids[0]

    def send_batch(
        self,
        queue: str,
        bodies: Iterable[Any],
        headers: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        *,
        delay: Seconds | None = None,
        at: Moment | None = None,
        priority: int = 0,
        ttl: Seconds | None = None,
        idempotency_key: str = "",
        key_seconds: Seconds = KEY_SECONDS,
    ) -> list[int]:
        """Send up to 10,000 messages in one commit, all or none; return their ids in order.

        Args:
            headers: one mapping for all messages, or one for each body.
            idempotency_key: a key for the whole batch.

        The other arguments and the errors are as in :meth:`send`. Without bodies, nothing is sent.
        """
        now = self._now_ms()
        due = checks.due_at_ms(delay, at, now)
        pairs = checks.outgoing_batch(bodies, headers, queue, priority=priority, due_ms=due, ttl=ttl, now_ms=now)
        if not pairs:
            return []
        digest = hashlib.blake2b(b"".join(part for _message, part in pairs), digest_size=checks.DIGEST_BYTES).digest()
        messages = [message for message, _part in pairs]
        return self._send("", queue, messages, key_seconds, key=idempotency_key, digest=digest).ids

    def send_each_once(
        self,
        queue: str,
        bodies: Iterable[Any],
        idempotency_keys: Iterable[str],
        headers: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        *,
        delay: Seconds | None = None,
        at: Moment | None = None,
        priority: int = 0,
        ttl: Seconds | None = None,
        key_seconds: Seconds = KEY_SECONDS,
    ) -> list[Published]:
        """Send up to 10,000 messages, each of them once: only those with new keys are stored, in one commit.

        Several clients may send the same messages at the same time, and a key may occur twice in a batch.

        Args:
            idempotency_keys: one for each body, as in :meth:`send`. An empty key means no key.

        The other arguments are as in :meth:`send_batch`. The result has the messages in order; ``new`` is True for
        those that this call stored.

        Raises:
            KeyReused: a key was used with another body, before or in this batch; nothing was stored.
            OpenDataError: some messages have no key, and the broker was killed before it could return their ids; all
                messages are stored.
        """
        now = self._now_ms()
        due = checks.due_at_ms(delay, at, now)
        pairs = checks.outgoing_batch(bodies, headers, queue, priority=priority, due_ms=due, ttl=ttl, now_ms=now)
        keys = checks.listed(idempotency_keys, "idempotency keys")
        checks.whole(len(keys), "the number of idempotency keys", len(pairs), len(pairs))
        if not pairs:
            return []
        messages, digests = [message for message, _digest in pairs], [digest for _message, digest in pairs]
        answer = self._send("", queue, messages, key_seconds, keys=keys, digests=digests)
        return [Published(id, (queue,), repeated=not new) for id, new in zip(answer.ids, answer.new, strict=True)]

    def publish(
        self,
        body: Any,
        headers: Mapping[str, Any] | None = None,
        *,
        exchange: str = "",
        routing_key: str = "",
        delay: Seconds | None = None,
        at: Moment | None = None,
        priority: int = 0,
        ttl: Seconds | None = None,
        idempotency_key: str = "",
        key_seconds: Seconds = KEY_SECONDS,
        unique: str | Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Published:
        """Send a message to every queue that matches by a binding, its name, or its filter. It is stored once.

        The arguments are as in :meth:`send`. An idempotency key applies to this exchange and routing key. The
        ``queues`` of the result are empty if no queue matches.
        """
        now = self._now_ms()
        due = checks.due_at_ms(delay, at, now)
        message, digest = checks.outgoing(
            body,
            headers,
            exchange,
            routing_key,
            priority=priority,
            due_ms=due,
            ttl=ttl,
            now_ms=now,
            properties=properties,
        )
        answer = self._send(
            exchange,
            routing_key,
            [message],
            key_seconds,
            key=idempotency_key,
            digest=digest,
            unique=unique,
            to_queue=False,
        )
        id = answer.ids[0] if answer.ids[0] >= 0 else None
        return Published(id, tuple(answer.queues[0] if answer.queues else ()), answer.repeated)

    def _send(
        self,
        exchange: str,
        routing_key: str,
        messages: list[Outgoing],
        key_seconds: Seconds,
        *,
        key: str = "",
        digest: bytes = b"",
        keys: Iterable[str] = (),
        digests: Iterable[bytes] = (),
        unique: str | Mapping[str, Any] | None = None,
        to_queue: bool = True,
    ) -> m.Sent:
        """Send messages, with one idempotency key or with one for each."""
        if to_queue:
            checks.name(routing_key, "the queue's name")
        checks.text(exchange, "the exchange")
        checks.text(routing_key, "the routing key")
        checks.text(key, "the idempotency key")
        key_list = [checks.text(each, "the idempotency key") for each in keys]
        ttl = checks.milliseconds(key_seconds, "the time of an idempotency key", low=0.001) if key or key_list else 0
        request = m.Send(
            0,
            0,
            exchange,
            routing_key,
            messages,
            self._now_ms(),
            to_queue,
            key=key,
            digest=digest if key else b"",
            key_ttl_ms=ttl,
            keys=key_list,
            digests=list(digests),
            unique=unique_key_of({HEADER: unique}),
        )
        answer = self.calls.send(request)
        if not answer.ids:
            raise OpenDataError("the messages are stored, but their ids are unknown, because the broker was restarted")
        return answer
