"""Effects of publishes (message ids, new messages, idempotency keys) and of sessions, and the time of a commit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from ..records import metadata
from ..records.idempotency import Sending, UniqueHold
from ..records.payload import MAX_INLINE_BYTES, NewMessage, encode_uri
from ..records.payload_places import EnvelopePlace
from ..records.session_records import NO_PUBLISH, Producer, Removal
from ..state.cold_summaries import PARTITION_BITS
from ..state.history_log import Headers
from ..state.store_state import StoreState
from . import Effect


def add_message(
    state: StoreState,
    id: int,
    places: list[tuple[str, int]],
    priority: int,
    visible: int,
    deadline: int,
    now: int,
    *,
    large: bool,
    size: int = 0,
    headers: Headers = None,
) -> None:
    """Add one message to its queues. It expires at its ``deadline`` or at the queue's, whichever is sooner."""
    if state.history is not None:
        state.history.published(id, places, headers)
    for name, bucket in places:
        queue = state.queues[name]
        expires_at = deadline
        if queue.limits.message_ttl_ms >= 0:
            expires_at = queue.limits.deadline(deadline, visible, now)
        queue.messages.add(bucket, id, priority, visible, expires_at, now, size).received_at = now
        queue.counts.published += 1
    if large or len(places) > 1:
        state.dirty.routes[id] = len(places)


def partition_buckets(places: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the places in buckets of partitions from 1 on; the last bucket of the others is always loaded."""
    return [place for place in places if place[1] >> PARTITION_BITS]


class ReserveIdsEffect(Effect, tag=1):
    """The message ids below ``base + size`` may be used."""

    base: int
    size: int

    def apply(self, state: StoreState) -> None:
        state.next_id = max(state.next_id, self.base)
        state.block_end = self.base + self.size
        state.dirty.block = (self.base, self.size)


class PublishEffect(Effect, tag=2):
    """A message was added to queues, with its envelope; ``priority`` is the stored one, lower first.

    ``queues`` is the number of queues that received it, transient ones included, for the reply to the session's publish
    ``seq``.
    """

    id: int
    created_at_ms: int
    received_at_ms: int
    visible_at_ms: int
    deadline_ms: int
    retention_seconds: int
    headers: dict[str, str]
    envelope: bytes
    priority: int
    places: list[tuple[str, int]]
    session: bytes
    seq: int
    queues: int
    place: ClassVar[EnvelopePlace | None] = None

    def active_buckets(self) -> Iterable[tuple[str, int]]:
        return partition_buckets(self.places)

    def apply(self, state: StoreState) -> None:
        id, received, place = self.id, self.received_at_ms, self.place
        size = len(self.envelope)
        if place is not None:
            size = place.length
            state.segments.add(place.path, place.stored_bytes)
        add_message(
            state,
            id,
            self.places,
            self.priority,
            self.visible_at_ms,
            self.deadline_ms,
            received,
            large=size > MAX_INLINE_BYTES or place is not None,
            size=size,
            headers=self.headers,
        )
        if id >= state.next_id:
            state.next_id = id + 1
        session = self.session
        if session:
            producers = state.producers
            last = producers.get(session, NO_PUBLISH)
            if self.seq == last.last_sequence + 1 and not last.holes:
                producers[session] = Producer(self.seq, id, self.queues, received)
            else:
                producers[session] = last.after(self.seq, id, self.queues, received)
            state.dirty.producers.add(session)

    def new_messages(self) -> Iterable[NewMessage]:
        value = metadata.encode(
            self.id, self.created_at_ms, self.received_at_ms, self.visible_at_ms, self.retention_seconds, self.headers
        )
        uri = b"" if self.place is None else encode_uri(self.place.segment_uri)
        return (NewMessage(self.id, value, uri, self.envelope),)


class PublishLargeEffect(PublishEffect, tag=96):
    """A message was added to queues, whose envelope is in a payload segment; ``envelope`` is empty."""

    place: EnvelopePlace  # type: ignore[misc]  # a field of this form


class DeadLetterSentEffect(Effect, tag=40):
    """A dead letter was published in the same commit, or had no destination."""

    queue: str
    id: int

    def apply(self, state: StoreState) -> None:
        place = (self.queue, self.id)
        letter = state.dead_letters.pop(place)
        state.dirty.dead_letters.add(place)
        if letter.last_use:
            state.dirty.garbage.append(self.id)


class SentWithKeyEffect(Effect, tag=43):
    """Messages were published under an idempotency key; ``name`` is its hash, ``queues`` those of each message."""

    name: bytes
    ids: tuple[int, ...]
    expires_at_ms: int
    digest: bytes
    queues: tuple[tuple[str, ...], ...]
    hold: ClassVar[UniqueHold | None] = None

    def apply(self, state: StoreState) -> None:
        sending = Sending(self.ids, self.expires_at_ms, self.digest, self.queues, self.hold)
        state.idempotency.remember(self.name, sending)


class SentUniqueEffect(SentWithKeyEffect, tag=43):
    """A message was published that holds a unique key."""

    hold: UniqueHold | None = None  # type: ignore[misc]  # a field of the longer form


class NameSessionEffect(Effect, tag=15):
    """The consumer name of a session was set."""

    session: bytes
    name: str
    owner: ClassVar[str] = ""

    @staticmethod
    def of(session: bytes, name: str, owner: str) -> NameSessionEffect:
        """Build the shortest form of this effect."""
        return NameOwnedSessionEffect(session, name, owner) if owner else NameSessionEffect(session, name)

    def apply(self, state: StoreState) -> None:
        state.session_names[self.session] = self.name
        state.session_owners[self.session] = self.owner
        state.dirty.sessions.add(self.session)


class NameOwnedSessionEffect(NameSessionEffect, tag=15):
    """As :class:`NameSessionEffect`, with the name of the session's user."""

    owner: str = ""  # type: ignore[misc]  # a field of the longer form


class ForgetSessionEffect(Effect, tag=16):
    """A session ended without leases: it can no longer repeat its publishes or calls."""

    session: bytes

    def apply(self, state: StoreState) -> None:
        session = self.session
        state.session_names.pop(session, None)
        state.session_owners.pop(session, None)
        if state.producers.pop(session, None) is not None:
            state.dirty.producers.add(session)
        if state.removals.pop(session, None) is not None:
            state.dirty.removals.add(session)
        state.dirty.sessions.add(session)


class TimeEffect(Effect, tag=17):
    """The last effect of each commit: its time is the latest in this and all earlier commits."""

    at_ms: int

    def apply(self, state: StoreState) -> None:
        state.time(self.at_ms)


class SyncedTimeEffect(TimeEffect, tag=17):
    """The time of a commit, and the number of journal records before it that were not synced when it was written."""

    unsynced: int = -1


class NoteRemovalEffect(Effect, tag=18):
    """The number of messages that a session's call has removed from a queue, moved or copied so far."""

    session: bytes
    call: int
    messages: int
    at_ms: int
    is_over: bool

    def apply(self, state: StoreState) -> None:
        state.removals[self.session] = Removal(self.call, self.messages, self.at_ms, self.is_over)
        state.dirty.removals.add(self.session)
