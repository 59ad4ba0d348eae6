"""What can be done to the durable queues. Each operation changes memory at once and notes its effects for the commit.

Nothing an operation did may be shown to anybody before :class:`~kombu_opendata.storage.commits.Commits` committed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..errors import InvalidMessage, RequestError
from .clock import Clock
from .commits import Commits
from .effects.definitions import Bind, DeclareExchange, DeclareQueue, DeleteExchange, DeleteQueue, Unbind
from .effects.deliveries import (
    Ack,
    Claim,
    ClaimAgain,
    Fail,
    GiveUp,
    Remove,
    RemoveFor,
    Renew,
    RenewByQueue,
    Return,
    ReturnExpired,
    ReturnLater,
)
from .effects.effect import Effect
from .effects.publishes import DeadLetterSent, Publish, ReserveIds
from .effects.sessions import ForgetSession, NameSession
from .limits import MAX_DEADLINE_MS, TTL_HEADER, is_exact, retention_of
from .payloads import Payloads
from .queue_buckets import Entry
from .records.dead_letter import REVOKED
from .records.producer import Producer
from .state import UNLIMITED_ATTEMPTS, Queue, QueueOptions, StoreState

#: message ids of one SeqBlock, as in OpenData-Log
BLOCK_IDS = 4096
#: of a queue's filter, whose text is in its config record
MAX_FILTER_BYTES = 0xFFFF


class Operations:
    """The operations on the queues of one instance.

    Attributes:
        expired: messages that were removed because they were past their deadline, since the start.
        on_dead_letters: is called when there are new dead letters.
    """

    def __init__(self, state: StoreState, payloads: Payloads, clock: Clock, commits: Commits) -> None:
        self.state = state
        self.payloads = payloads
        self.clock = clock
        self.commits = commits
        self.effects = commits.effects
        self.expired = 0
        self.on_dead_letters: Callable[[], None] = lambda: None

    # ------------------------------------------------------------------ publishing
    def allocate_id(self) -> int:
        """A message id that was never used. Its block is stored in the same commit or an earlier one."""
        state = self.state
        id = state.next_id
        if id >= state.block_end:
            self.commits.apply(ReserveIds(id, BLOCK_IDS))
        state.next_id = id + 1
        return id

    def allocate_ids(self, count: int) -> int:
        """The first of ``count`` consecutive message ids that were never used, as :meth:`allocate_id`."""
        state = self.state
        first = state.next_id
        if first + count > state.block_end:
            self.commits.apply(ReserveIds(first, count + BLOCK_IDS))
        return first

    def published(self, session: bytes, seq: int) -> Producer | None:
        """The session's last publish, if ``seq`` was applied before (that one, or one before it)."""
        last = self.state.producers.get(session)
        return last if last is not None and last.has(seq) else None

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
    ) -> int:
        """Store one message in these queues; returns its id.

        Args:
            priority: the stored one, lower first.
            ttl_ms: how long it may be delivered, -1 for ever.
            total: how many queues got it, the transient ones included.

        Raises:
            InvalidMessage: the headers don't fit a metadata record; nothing was changed.
        """
        if not 0 <= priority <= 255:
            raise InvalidMessage(f"priority {priority} is not within 0–255", priority=priority)
        now = self.clock.now_ms()
        id = self.allocate_id()
        deadline = min(now + ttl_ms, MAX_DEADLINE_MS) if ttl_ms >= 0 else 0
        retention = retention_of(ttl_ms)
        if not is_exact(ttl_ms):
            headers = {**headers, TTL_HEADER: str(ttl_ms)}
        visible_at = max(visible_at, now)
        effect = Publish(
            id, created_at, now, visible_at, deadline, retention, headers, envelope, priority, [], session, seq, total
        )
        value = effect.metadata()
        effect.places = [(queue.name, queue.messages.place()) for queue in queues]
        effect.apply(self.state)
        self.effects.append(effect)
        commits = self.commits
        commits.needs_sync = True
        commits.new_bytes += len(envelope)
        commits.stage(id, value, envelope)
        return id

    # ------------------------------------------------------------------ consuming
    def claim(self, queue: Queue, entries: Sequence[Entry], session: bytes, lease_ms: int = 0) -> None:
        """Lease these available messages to a session, for the queue's lease or so many ms."""
        # One that was returned within this millisecond is claimed as of the next: the token is the claim's time.
        at = self.clock.now_ms()
        pairs: list[int] = []
        redelivered = 0
        for entry in entries:
            pairs += entry.id, entry.bucket
            if entry.visible_at > at:
                at = entry.visible_at
            if entry.attempts or entry.returned:
                redelivered += 1
        until = at + (lease_ms or 1000 * queue.options.lease_seconds)
        effect = (
            ClaimAgain(queue.name, session, at, until, pairs, redelivered)
            if redelivered
            else Claim(queue.name, session, at, until, pairs)
        )
        effect.apply(self.state)
        self.effects.append(effect)

    def ack(self, queue: Queue, entries: Iterable[Entry]) -> None:
        """in flight → done."""
        at = self.clock.now_ms()
        pairs: list[int] = []
        for entry in entries:
            self.payloads.drop(entry.id)
            pairs += entry.id, entry.bucket
        effect = Ack(queue.name, at, pairs)
        effect.apply(self.state)
        last = self.effects[-1] if self.effects else None
        if type(last) is Ack and last.at_ms == at and last.queue == queue.name:
            last.pairs += pairs
        else:
            self.effects.append(effect)

    def fail(
        self,
        queue: Queue,
        entries: Iterable[Entry],
        consumer: str,
        reason: str = "rejected",
        *,
        lease_expired: bool = False,
    ) -> None:
        """in flight → failed. With a reason they are dead letters as well, if the queue has an exchange for them."""
        at = self.clock.now_ms()
        given_up = reason == "delivery_limit"
        reason = reason if queue.dead_letters_to is not None else ""
        pairs: list[int] = []
        for entry in entries:
            pairs += entry.id, entry.bucket
        if given_up:
            self.commits.apply(GiveUp(queue.name, at, pairs, consumer, reason, given_up, lease_expired))
        else:
            self.commits.apply(Fail(queue.name, at, pairs, consumer, reason))
        if reason:
            self.on_dead_letters()

    def put_back(
        self,
        queue: Queue,
        entries: Iterable[Entry],
        consumer: str,
        *,
        costs_attempt: bool,
        lease_expired: bool = False,
    ) -> None:
        """in flight → available; to failed when it costs an attempt and none is left.

        Args:
            lease_expired: the lease ended by itself; nobody rejected or released the message.
        """
        at = self.clock.now_ms()
        back: list[int] = []
        spent: list[Entry] = []
        for entry in entries:
            if costs_attempt and UNLIMITED_ATTEMPTS > queue.options.max_attempts <= entry.attempts:
                spent.append(entry)
                continue
            if costs_attempt and queue.limits.retry_delay_ms:
                visible_at = queue.limits.retry_at(at, entry.attempts)
                pair = [entry.id, entry.bucket]
                if lease_expired:
                    self.commits.apply(ReturnExpired(queue.name, at, pair, costs_attempt, consumer, visible_at, True))
                else:
                    self.commits.apply(ReturnLater(queue.name, at, pair, costs_attempt, consumer, visible_at))
                continue
            back += entry.id, entry.bucket
        if back and lease_expired:
            self.commits.apply(ReturnExpired(queue.name, at, back, costs_attempt, consumer, 0, True))
        elif back:
            self.commits.apply(Return(queue.name, at, back, costs_attempt, consumer))
        if spent:
            self.fail(queue, spent, consumer, "delivery_limit", lease_expired=lease_expired)

    def remove(self, queue: Queue, entries: Iterable[Entry], reason: str = "") -> int:
        """available → gone: expired, dropped or purged. Returns how many.

        With a reason they become dead letters, if the queue has an exchange for them, or if they expired and the
        results of their tasks may be due.
        """
        at = self.clock.now_ms()
        why = reason
        if queue.dead_letters_to is None:
            reason = REVOKED if why == "expired" and self.state.results.has_revocable else ""
        pairs: list[int] = []
        for entry in entries:
            if not reason:
                self.payloads.drop(entry.id)
            pairs += entry.id, entry.bucket
        count = len(pairs) // 2
        if pairs:
            if why == reason:
                self.commits.apply(Remove(queue.name, pairs, reason, at))
            else:
                self.commits.apply(RemoveFor(queue.name, pairs, reason, at, why))
            if reason:
                self.on_dead_letters()
        if why == "expired":
            self.expired += count
        return count

    def dead_letter_sent(self, queue: str, id: int) -> None:
        """Forget a dead letter, in one step with its publish: both are in the same commit."""
        self.payloads.drop(id)
        self.commits.apply(DeadLetterSent(queue, id))

    def renew(self, session: bytes, lease_ms: int) -> None:
        """Prolong all leases of a session by ``lease_ms`` from now."""
        self.commits.apply(Renew(session, self.clock.now_ms() + lease_ms))

    def renew_by_queue(self, session: bytes) -> None:
        """Prolong all leases of a session, each by its queue's lease from now."""
        at = self.clock.now_ms()
        self.commits.apply(RenewByQueue(session, at, at))

    # ------------------------------------------------------------------ definitions
    def _define(self, effect: Effect) -> None:
        self.commits.apply(effect)
        self.commits.needs_sync = True

    def declare_queue(self, name: str, options: QueueOptions) -> Queue:
        """Create a durable queue: its config and its empty active, done and failed records."""
        self._define(DeclareQueue(name, *options, self.clock.now_ms()))
        return self.state.queues[name]

    def drop_queue(self, name: str) -> None:
        self._define(DeleteQueue(name))

    def declare_exchange(self, name: str, type: str, auto_delete: bool, arguments: dict[str, Any]) -> None:
        self._define(DeclareExchange(name, type, True, auto_delete, arguments))

    def delete_exchange(self, name: str) -> None:
        self._define(DeleteExchange(name))

    def bind(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> None:
        """Bind a durable queue to a durable exchange.

        Raises:
            RequestError: the queue has so many bindings that its filter would not fit its record; nothing was changed.
        """
        size = self.state.topology.filter_size(queue, exchange, routing_key, arguments)
        if size > MAX_FILTER_BYTES:
            raise RequestError(
                f"queue {queue!r} has too many bindings: its filter would have {size} bytes, the limit is "
                f"{MAX_FILTER_BYTES}; use a topic pattern that covers several routing keys",
                queue=queue,
                limit=MAX_FILTER_BYTES,
            )
        self._define(Bind(queue, exchange, routing_key, arguments))

    def unbind(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> None:
        self._define(Unbind(queue, exchange, routing_key, arguments))

    def name_session(self, session: bytes, name: str) -> None:
        if self.state.session_names.get(session) != name:
            self.commits.apply(NameSession(session, name))

    def forget_session(self, session: bytes) -> None:
        self.commits.apply(ForgetSession(session))
