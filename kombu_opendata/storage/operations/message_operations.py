"""The operations on messages of durable queues: publish, claim, settle, … Each changes memory and records an effect.

No client may see a change before :class:`~kombu_opendata.storage.commit.commits.Commits` has committed it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence

from ...errors import InvalidMessage
from ...protocol.queue_arguments import UNLIMITED_ATTEMPTS
from ..clock import Clock
from ..commit.commits import Commits
from ..effects.definitions import ClosePartitionsEffect, OpenPartitionEffect
from ..effects.deliveries import (
    AckEffect,
    ArchiveEffect,
    ClaimAgainEffect,
    ClaimEffect,
    DelayEffect,
    DelayFlowEffect,
    DeleteEffect,
    ExtendEffect,
    FailEffect,
    GiveUpEffect,
    RemoveEffect,
    RenewEffect,
    ReturnEffect,
    ReturnLaterEffect,
)
from ..effects.publishes import (
    DeadLetterSentEffect,
    ForgetSessionEffect,
    NameSessionEffect,
    PublishEffect,
    PublishLargeEffect,
    ReserveIdsEffect,
)
from ..messages.payloads import Payloads
from ..records import metadata
from ..records.dead_letter import REVOKED
from ..records.payload import encode_uri
from ..records.payload_places import EnvelopePlace
from ..records.session_records import Producer
from ..state.partitions import Partition, Partitions
from ..state.queue_buckets import MAX_DEADLINE_MS, TTL_HEADER, QueueEntry, is_exact, retention_of
from ..state.store_state import Queue, StoreState

#: message ids of one SeqBlock, as in OpenData-Log
BLOCK_IDS = 4096


class Operations:
    """The operations on the queues of one instance.

    Attributes:
        expired: the number of messages removed past their deadline, since startup.
        dead_letters_added: set when dead letters were added; their publisher clears it.
    """

    def __init__(self, state: StoreState, payloads: Payloads, clock: Clock, commits: Commits) -> None:
        self._state = state
        self._payloads = payloads
        self._clock = clock
        self._commits = commits
        self._effects = commits.effects
        self.expired = 0
        self.dead_letters_added = asyncio.Event()

    # ------------------------------------------------------------------ publishing
    def allocate_id(self) -> int:
        """Return a new message id, whose block is stored in the same commit or an earlier one."""
        state = self._state
        id = state.next_id
        if id >= state.block_end:
            self._commits.apply(ReserveIdsEffect(id, BLOCK_IDS))
        state.next_id = id + 1
        return id

    def allocate_ids(self, count: int) -> int:
        """Return the first of ``count`` consecutive new message ids, as :meth:`allocate_id`."""
        state = self._state
        first = state.next_id
        if first + count > state.block_end:
            self._commits.apply(ReserveIdsEffect(first, count + BLOCK_IDS))
        return first

    def published(self, session: bytes, seq: int) -> Producer | None:
        """Return the session's last publish, if its publish ``seq`` was applied before."""
        last = self._state.producers.get(session)
        return last if last is not None and seq <= last.last_sequence and last.has(seq) else None

    def publish(
        self,
        queues: list[Queue],
        envelope: bytes,
        headers: dict[str, str],
        *,
        priority: int,
        created_at: int,
        visible_at: int,
        ttl_ms: int,
        session: bytes,
        seq: int,
        total: int,
        place: EnvelopePlace | None = None,
    ) -> int:
        """Store one message in these queues; return its id.

        Args:
            priority: the stored one, lower first.
            ttl_ms: the time for which it may be delivered, -1 for no limit.
            total: the number of queues that receive it, transient ones included.
            place: of the envelope, if :meth:`.Commits.write_large` was called before.

        Raises:
            InvalidMessage: the headers are too large for a metadata record; nothing was changed.
            StoreFull, StoreError: a payload segment can't be written; nothing was changed.
        """
        if not 0 <= priority <= 255:
            raise InvalidMessage(f"priority {priority} is not within 0–255", priority=priority)
        id = self.allocate_id()
        now = self._clock.now_ms()
        deadline = retention = 0
        if ttl_ms >= 0:
            deadline = min(now + ttl_ms, MAX_DEADLINE_MS)
            retention = retention_of(ttl_ms)
            if not is_exact(ttl_ms):
                headers = {**headers, TTL_HEADER: str(ttl_ms)}
        visible_at = visible_at if visible_at > now else now
        value = metadata.encode(id, created_at, now, visible_at, retention, headers)
        commits = self._commits
        if place is None and len(envelope) >= commits.large_bytes:
            place = commits.write_large(envelope)
        inline, places = b"" if place else envelope, [(queue.name, self.place(queue, headers)) for queue in queues]
        values = (
            id, created_at, now, visible_at, deadline, retention, headers, inline, priority, places, session, seq, total
        )  # fmt: skip
        effect = PublishEffect(*values) if place is None else PublishLargeEffect(*values, place)
        effect.apply(self._state)
        self._effects.append(effect)
        commits.needs_sync = True
        if place is None:
            commits.new_bytes += len(envelope)
            commits.stage(id, value, envelope)
        else:
            commits.new_bytes += len(value)
            commits.stage_large(id, value, encode_uri(place.segment_uri), envelope)
        return id

    def place(self, queue: Queue, headers: Mapping[str, str]) -> int:
        """Return the bucket for a new message; opens the message's partition."""
        messages = queue.messages
        partitions = messages.partitions
        if partitions is None:
            return messages.tail if messages.tail_used < messages.bucket_entries else messages.place()
        if not partitions.rules.by:
            return messages.place()
        key = partitions.rules.key_of(headers)
        partition = partitions.by_key.get(key)
        if partition is None:
            self.close_partitions(queue.name, partitions)
            partition = self.open_partition(queue.name, partitions, key)
        return messages.place_in(partition)

    def close_partitions(self, queue: str, partitions: Partitions) -> None:
        """Delete the empty partitions of a queue, if they are many."""
        if len(partitions.empty) > partitions.many_empty:
            numbers = partitions.closable(self._clock.now_ms())
            if numbers:
                self._commits.apply(ClosePartitionsEffect(queue, numbers))

    def open_partition(self, queue: str, partitions: Partitions, key: str) -> Partition:
        """Return the partition of a queue with a key; a new one if there is none."""
        if key not in partitions.by_key:
            self._commits.apply(OpenPartitionEffect(queue, partitions.free_number(), partitions.rules.by, key))
        return partitions.by_key[key]

    # ------------------------------------------------------------------ consuming
    def claim(
        self,
        queue: Queue,
        entries: Sequence[QueueEntry],
        session: bytes,
        lease_ms: int = 0,
        at: int | None = None,
        *,
        is_due: bool = True,
    ) -> None:
        """Lease these available messages to a session, for the queue's lease or ``lease_ms``, from ``at`` or now.

        Args:
            is_due: False for messages that may be delayed, which this session does not deliver.
        """
        # A message that returned within this millisecond is claimed in the next one: the token is the claim's time. The
        # clock does not go back behind a claim, so one of a delayed message must not have the time of its delivery.
        at = self._clock.now_ms() if at is None else at
        pairs: list[int] = []
        redelivered = 0
        for entry in entries:
            pairs += entry.id, entry.bucket
            if entry.visible_at > at and is_due:
                at = entry.visible_at
            if entry.attempts or entry.returned:
                redelivered += 1
        until = at + (lease_ms or 1000 * queue.options.lease_seconds)
        effect = (
            ClaimAgainEffect(queue.name, session, at, until, pairs, redelivered)
            if redelivered
            else ClaimEffect(queue.name, session, at, until, pairs)
        )
        effect.apply(self._state)
        self._effects.append(effect)

    def ack(self, queue: Queue, entries: Iterable[QueueEntry], runs: Sequence[int] = ()) -> None:
        """Move messages from in flight to done; ``runs`` is as in :class:`.AckEffect`."""
        at = self._clock.now_ms()
        pairs: list[int] = []
        for entry in entries:
            self._payloads.drop(entry.id)
            pairs += entry.id, entry.bucket
        effect = AckEffect(queue.name, at, pairs, list(runs))
        effect.apply(self._state)
        last = self._effects[-1] if self._effects else None
        if type(last) is AckEffect and last.at_ms == at and last.queue == queue.name and (not last.runs) == (not runs):
            last.pairs += pairs
            last.runs += runs
        else:
            self._effects.append(effect)

    def fail(
        self,
        queue: Queue,
        entries: Iterable[QueueEntry],
        consumer: str,
        reason: str = "rejected",
        *,
        lease_expired: bool = False,
    ) -> None:
        """Move messages from in flight to failed.

        With a reason they also become dead letters, if the queue has a dead-letter exchange.
        """
        at = self._clock.now_ms()
        given_up = reason == "delivery_limit"
        reason = reason if queue.dead_letters_to is not None else ""
        pairs = _pairs(entries)
        if given_up:
            self._commits.apply(GiveUpEffect(queue.name, at, pairs, consumer, reason, given_up, lease_expired))
        else:
            self._commits.apply(FailEffect(queue.name, at, pairs, consumer, reason))
        if reason:
            self.dead_letters_added.set()

    def put_back(
        self,
        queue: Queue,
        entries: Iterable[QueueEntry],
        consumer: str,
        *,
        costs_attempt: bool,
        at_once: bool = False,
        lease_expired: bool = False,
    ) -> None:
        """Move messages from in flight to available, or to failed if this costs an attempt and none is left.

        Args:
            at_once: ignore the queue's delay between attempts.
            lease_expired: the lease expired; no consumer rejected or released the message.
        """
        at = self._clock.now_ms()
        returned: list[int] = []
        exhausted: list[QueueEntry] = []
        for entry in entries:
            if costs_attempt and UNLIMITED_ATTEMPTS > queue.options.max_attempts <= entry.attempts:
                exhausted.append(entry)
                continue
            if costs_attempt and queue.limits.retry_delay_ms and not at_once:
                visible_at = queue.limits.retry_at(at, entry.attempts)
                pair = [entry.id, entry.bucket]
                self._commits.apply(
                    ReturnEffect.of(queue.name, at, pair, costs_attempt, consumer, visible_at, lease_expired)
                )
            else:
                returned += entry.id, entry.bucket
        if returned:
            self._commits.apply(ReturnEffect.of(queue.name, at, returned, costs_attempt, consumer, 0, lease_expired))
        if exhausted:
            self.fail(queue, exhausted, consumer, "delivery_limit", lease_expired=lease_expired)

    def remove(self, queue: Queue, entries: Collection[QueueEntry], reason: str = "") -> int:
        """Delete available messages that expired or are dropped, replaced or purged; return their number.

        With a reason they become dead letters if the queue has a dead-letter exchange. Without one, messages that
        expired become dead letters for :mod:`kombu_opendata.protocol.revocation`, if any message has named a result to
        store when it expires; as do all that another message replaces.
        """
        at = self._clock.now_ms()
        why = reason
        if why == "replaced" or queue.dead_letters_to is None:
            reason = REVOKED if why in ("expired", "replaced") and self._state.results.has_revocable else ""
        pairs = _pairs(entries)
        if not reason:
            self._drop_payloads(entries)
        count = len(pairs) // 2
        if pairs:
            self._commits.apply(RemoveEffect.of(queue.name, pairs, reason, at, why))
            if reason:
                self.dead_letters_added.set()
        if why == "expired":
            self.expired += count
        return count

    def dead_letter_sent(self, queue: str, id: int) -> None:
        """Delete a dead letter, in the commit of its publish."""
        self._payloads.drop(id)
        self._commits.apply(DeadLetterSentEffect(queue, id))

    def renew_by_queue(self, session: bytes) -> None:
        """Renew all leases of a session, each for its queue's lease from now."""
        at = self._clock.now_ms()
        self._commits.apply(RenewEffect(session, at, at))

    # ------------------------------------------------------------------ by id, and leases of a given time
    def extend(self, queue: Queue, entries: Collection[QueueEntry], lease_ms: int) -> int:
        """Set leases to end in ``lease_ms`` unless they are renewed; return their end in ms since the epoch."""
        at = self._clock.now_ms()
        until = at + lease_ms
        self._commits.apply(ExtendEffect(queue.name, at, _pairs(entries), until))
        return until

    def delay(self, queue: Queue, entries: Collection[QueueEntry], delay_ms: int) -> None:
        """Make available messages visible in ``delay_ms``, sooner or later than before."""
        at = self._clock.now_ms()
        self._commits.apply(DelayEffect(queue.name, at, _pairs(entries), at + delay_ms))

    def delay_flow(self, queue: Queue, partition: int, until_ms: int) -> None:
        """Deliver nothing of a partition before a time; -1 is the queue, and a time of 0 removes a delay."""
        self._commits.apply(DelayFlowEffect(queue.name, partition, until_ms))

    def release(self, queue: Queue, entries: Collection[QueueEntry], consumer: str, delay_ms: int) -> None:
        """Move messages from in flight to available in ``delay_ms``, without counting an attempt."""
        at = self._clock.now_ms()
        self._commits.apply(ReturnLaterEffect(queue.name, at, _pairs(entries), False, consumer, at + delay_ms))

    def delete(self, queue: Queue, entries: Collection[QueueEntry]) -> None:
        """Delete messages that are available or in flight, without an entry in a settled list."""
        at = self._clock.now_ms()
        self._drop_payloads(entries)
        self._commits.apply(DeleteEffect(queue.name, at, _pairs(entries)))

    def archive(self, queue: Queue, entries: Collection[QueueEntry], operator: str) -> None:
        """Move messages from available to done, without a claim."""
        at = self._clock.now_ms()
        self._drop_payloads(entries)
        self._commits.apply(ArchiveEffect(queue.name, at, _pairs(entries), operator))

    # ------------------------------------------------------------------ sessions
    def name_session(self, session: bytes, name: str, owner: str = "") -> None:
        """Store the consumer name of a session, and the name of its user; empty if the broker has no users."""
        state = self._state
        if state.session_names.get(session) != name or state.session_owners.get(session, "") != owner:
            self._commits.apply(NameSessionEffect.of(session, name, owner))

    def forget_session(self, session: bytes) -> None:
        self._commits.apply(ForgetSessionEffect(session))

    def _drop_payloads(self, entries: Iterable[QueueEntry]) -> None:
        for entry in entries:
            self._payloads.drop(entry.id)


def _pairs(entries: Iterable[QueueEntry]) -> list[int]:
    """Return the flat list id, bucket, id, bucket, … of these messages."""
    return [part for entry in entries for part in (entry.id, entry.bucket)]
