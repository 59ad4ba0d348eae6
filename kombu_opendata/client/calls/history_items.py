"""Pages of history and counts, from the broker's answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from ...protocol.envelope import UNREADABLE, decode
from ...protocol.history_messages import AttemptInfo, AttemptPage, Counts, MessageInfo, MessagePage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some items of a list. ``next`` and ``prev`` are the cursors of the next and the previous page, or None."""

    items: tuple[T, ...]
    next: str | None
    prev: str | None


@dataclass(frozen=True, slots=True)
class Bucket:
    """The count of one period."""

    start_ms: int
    count: int


def raw_body(envelope: bytes) -> bytes:
    """The bytes of the body in an envelope; all bytes if they are not an envelope."""
    try:
        body = decode(envelope)[0]
    except UNREADABLE:
        return envelope
    return body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body)


def messages_of(page: MessagePage) -> Page[MessageInfo]:
    """The page in an answer."""
    return Page(page.items, page.next, page.prev)


def attempts_of(page: AttemptPage, body_of: Callable[[bytes], Any] = raw_body) -> Page[AttemptInfo]:
    """The page in an answer; ``body_of`` turns an envelope into a body."""

    def opened(attempt: AttemptInfo) -> AttemptInfo:
        event = attempt.event
        if event is None or event.body is None:
            return attempt
        return replace(attempt, event=replace(event, body=body_of(event.body)))

    return Page(tuple(map(opened, page.items)), page.next, page.prev)


def buckets_of(counts: Counts) -> tuple[Bucket, ...]:
    """The counts in an answer."""
    starts = range(counts.start_ms, counts.start_ms + len(counts.counts) * counts.bucket_ms, counts.bucket_ms)
    return tuple(Bucket(start, count) for start, count in zip(starts, counts.counts, strict=True))
