"""Requests of the queue client from the arguments of its calls, for both clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import OpenDataError, RequestError
from ..protocol.envelope import header_text
from ..protocol.messages import queue_messages as q
from . import checks
from .checks import Seconds

MAX_QUANTITY = 1000
MAX_POLL_SECONDS = 3600


def read_request(queue: str, vt: Seconds, qty: int, poll: Seconds) -> q.Read:
    """Return a Read; raise RequestError for an argument that is not valid."""
    return q.Read(
        0,
        checks.name(queue, "the queue's name"),
        checks.whole(qty, "qty", 1, MAX_QUANTITY),
        checks.milliseconds(vt, "vt", low=0.001),
        checks.milliseconds(poll, "max_poll_seconds", high=MAX_POLL_SECONDS),
    )


def header_texts(where: Mapping[str, Any]) -> dict[str, str]:
    """Return header values as texts, as they are stored."""
    if not isinstance(where, Mapping):
        raise RequestError(f"where must be a filter, or a mapping of header names to values, not {where!r}")
    texts = {}
    for name, value in where.items():
        text = header_text(value)
        if text is None:
            raise RequestError(f"header {name!r} can be compared with a text, a number or a boolean, not {value!r}")
        texts[name] = text
    if not texts:
        raise RequestError("where has no headers: leave it out to read any message")
    return texts


def send_request(
    exchange: str,
    routing_key: str,
    messages: list[q.Outgoing],
    key: str,
    digest: bytes,
    key_seconds: Seconds,
    now_ms: int,
    *,
    to_queue: bool = False,
) -> q.Send:
    """Return a Send; raise RequestError for an argument that is not valid."""
    if to_queue:
        checks.name(routing_key, "the queue's name")
    for value, what in ((exchange, "the exchange"), (routing_key, "the routing key"), (key, "the idempotency key")):
        checks.text(value, what)
    ttl = checks.milliseconds(key_seconds, "the time of an idempotency key", low=0.001) if key else 0
    return q.Send(
        0, 0, exchange, routing_key, messages, now_ms, to_queue,
        key=key, digest=digest if key else b"", key_ttl_ms=ttl,
    )  # fmt: skip


def known_ids(answer: q.Sent) -> q.Sent:
    """Return the reply, if it has the messages' ids."""
    if not answer.ids:
        raise OpenDataError("the messages are stored, but their ids are unknown, because the broker was restarted")
    return answer


def age_ms(older_than: Seconds | None) -> int:
    """Return an age in ms; -1 means any age."""
    return -1 if older_than is None else checks.milliseconds(older_than, "older_than", high=checks.MAX_DELAY_SECONDS)


def session_of(id: str) -> bytes:
    """Return the session that a worker's id names; raise RequestError if it names none."""
    try:
        return bytes.fromhex(id)
    except (TypeError, ValueError) as exc:
        raise RequestError(f"a worker's id must be 32 hexadecimal digits, not {id!r}", session=str(id)) from exc
