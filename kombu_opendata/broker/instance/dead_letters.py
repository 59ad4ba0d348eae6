"""Dead letters: rejected, expired and dropped messages, which go to the dead-letter exchange of their queue.

One commit removes a message of a stored queue from its queue and makes it a dead letter (operations ``fail`` and
``remove``); another commit publishes and deletes the dead letter. So it is published exactly once, also after a crash.
Dead letters of transient queues wait in memory.

For a task that expires in a queue without such an exchange, the broker stores the result REVOKED, as a worker does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import islice

from ...errors import CorruptRecord, NotFound, OpenDataError, QueueFull, StoreError, StoreFull
from ...protocol import revocation
from ...protocol.envelope import open_envelope
from ...protocol.messages import Publish
from ...protocol.revocation import Revocation
from ...storage.clock import Clock, TimeSlice
from ...storage.messages.payloads import Payloads
from ...storage.operations.message_operations import Operations
from ...storage.operations.task_results import ResultStore
from ...storage.records.dead_letter import REVOKED, DeadLetter
from ...storage.records.results import INTERIM, NO_INDEX, READY, Result
from ...storage.state.queue_buckets import QueueEntry
from ...storage.state.result_state import ChordState
from ...storage.state.store_state import StoreState, dead_letters_to
from ..delivery.instance_core import Core
from ..delivery.queue_policies import QueuePolicies
from ..delivery.rate_limited_log import WarnOnce
from ..delivery.result_watches import MAX_NAME_BYTES, MAX_TTL_MS
from ..model.queue import BrokerQueue
from . import x_death_headers

log = logging.getLogger(__name__)

#: puts a message into queues; returns its id
Store = Callable[[Publish, list[BrokerQueue]], int]

#: maximum number of dead letters that are published in one turn
_BATCH = 256
#: maximum number of dead letters of transient queues that may wait, e.g. while the disk is full
_MAX_TRANSIENT = 10_000
_RETRY_SECONDS = 0.5


def _revocation_of(envelope: bytes) -> Revocation | None:
    """Return the result to store when a message expires; None if its envelope describes no valid result."""
    fields = open_envelope(envelope)
    candidate = None if fields is None else revocation.read(fields[3], fields[4])
    if candidate is None or not 0 <= candidate.ttl_ms <= MAX_TTL_MS or not -1 <= candidate.place < NO_INDEX:
        return None
    sizes = [len(candidate.name), len(candidate.task_id.encode()), *([len(candidate.chord)] if candidate.chord else [])]
    return candidate if all(0 < size <= MAX_NAME_BYTES for size in sizes) else None


class Revocations:
    """Storage of the results of expired tasks, with notifications of their watchers."""

    def __init__(
        self,
        results: ResultStore,
        chords: Mapping[bytes, ChordState],
        clock: Clock,
        changed: Callable[[bytes, Result], None],
    ) -> None:
        self._results = results
        self._chords = chords
        self._clock = clock
        self._changed = changed

    async def load(self, envelope: bytes) -> None:
        expired = _revocation_of(envelope)
        if expired is not None:
            try:
                await self._results.get(expired.name)
            except CorruptRecord as exc:
                log.error("the result of an expired task can't be read: %s", exc)

    def store(self, envelope: bytes) -> None:
        """Store the result of an expired task, unless it has one, and count it in its chord; or raise StoreFull."""
        expired = _revocation_of(envelope)
        if expired is None:
            return
        now_ms = self._clock.now_ms()
        now = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat()
        value = revocation.value(expired.task_id, now)
        current = self._results.find(expired.name)[1]
        name = expired.name if current is None or current.kind == INTERIM else b""
        chord = self._chords.get(expired.chord)
        chord_ttl_ms = 0
        if chord is not None and chord.expires_at_ms:
            chord_ttl_ms = max(1, chord.expires_at_ms - now_ms)
        stored = self._results.store(
            name,
            READY,
            value,
            expired.ttl_ms,
            group=expired.chord if chord is not None else b"",
            index=expired.place if expired.place >= 0 else NO_INDEX,
            member=expired.task_id.encode(),
            chord_ttl_ms=chord_ttl_ms,
        )
        if stored and name:
            self._changed(name, Result(READY, 0, value))
        if chord is not None and chord.is_complete and chord.sender is None:
            self._fail_chord(expired, chord.body.decode(errors="replace"), now)

    def _fail_chord(self, expired: Revocation, body: str, now: str) -> None:
        """Fail a chord that an expired task completed, because no worker sends the chord's callback."""
        if body:
            name = expired.name.removesuffix(expired.task_id.encode()) + body.encode()
            value = revocation.failed_chord(body, expired.task_id, now)
            if self._results.store(name, READY, value, expired.ttl_ms):
                self._changed(name, Result(READY, 0, value))
        self._results.close_chord(expired.chord)


class DeadLetters:
    """Dead letters of one instance."""

    def __init__(
        self,
        core: Core,
        state: StoreState,
        payloads: Payloads,
        operations: Operations,
        policies: QueuePolicies,
        revocations: Revocations,
    ) -> None:
        self._stored = state.dead_letters
        self._topology = state.topology
        self._payloads = payloads
        self._operations = operations
        self._clock = core.clock
        self._queues = core.queues
        self._policies = policies
        self._revocations = revocations
        self._outbox = core.outbox
        self._warn = WarnOnce(log).warn
        self._transient: deque[tuple[str, DeadLetter, bytes]] = deque()
        self._wanted = operations.dead_letters_added
        self.published = 0  # dead letters that were put into a queue
        self.unroutable = 0  # dead letters that no queue received, for example because the exchange does not exist
        #: number of times that a dead letter was not routed to a queue because it had been there before, and no
        #: consumer had rejected it since
        self.cycles = 0
        #: dead letters that could not be read from the store, were refused by a queue, or exceeded the limit in memory
        self.lost = 0
        if self._stored:
            self._wanted.set()

    def report(self) -> dict[str, int]:
        return {
            "waiting": len(self._stored) + len(self._transient), "published": self.published,
            "unroutable": self.unroutable, "cycles": self.cycles, "lost": self.lost,
        }  # fmt: skip

    def add_transient(self, queue: BrokerQueue, entry: QueueEntry, reason: str) -> None:
        """Make a message of a transient queue a dead letter, if the queue has a dead-letter exchange."""
        to = dead_letters_to(queue.effective)
        if entry.envelope is None:
            return
        if to is None:
            if reason == "expired":
                try:
                    self._revocations.store(entry.envelope)
                except StoreFull as exc:
                    self._warn("results of tasks that expired in transient queues are lost: %s", exc)
            return
        if len(self._transient) >= _MAX_TRANSIENT:
            self.lost += 1
            self._warn("dead letters of transient queues are lost: more than %d wait to be published", _MAX_TRANSIENT)
            return
        letter = DeadLetter(reason, self._clock.now_ms(), entry.priority, *to, True)
        self._transient.append((queue.name, letter, entry.envelope))
        queue.counts.dead_lettered += 1
        self._wanted.set()

    async def run(self, store: Store) -> None:
        """Publish dead letters until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._transient or self._stored:
                try:
                    await self._load()
                    self._publish_some(store)
                except StoreFull:
                    await asyncio.sleep(_RETRY_SECONDS)
                except StoreError as exc:
                    self._warn("dead letters can't be read: %s; trying again", exc)
                    await asyncio.sleep(_RETRY_SECONDS)
                self._outbox.schedule()
                await asyncio.sleep(0)

    async def _load(self) -> None:
        """Load the payloads of the oldest letters into memory."""
        places = list(islice(self._stored, _BATCH))
        errors = await self._payloads.load([id for _queue, id in places])
        for queue, id in places:
            if id in errors and (queue, id) in self._stored:
                self.lost += 1
                log.error("a dead letter of queue %r is lost: %s", queue, errors[id])
                self._operations.dead_letter_sent(queue, id)
        revoked = [place for place in places if place in self._stored and self._stored[place].reason == REVOKED]
        await asyncio.gather(*(self._revocations.load(self._payloads.find(id) or b"") for _queue, id in revoked))

    def _publish_some(self, store: Store) -> None:
        """Publish the letters in memory. There is no await, so a letter and its publish are in one commit."""
        pace = TimeSlice()
        for _ in range(min(_BATCH, len(self._transient))):
            if pace.is_over:
                return
            self._publish(store, *self._transient[0])
            self._transient.popleft()
        for (queue, id), letter in list(islice(self._stored.items(), _BATCH)):
            if pace.is_over:
                return
            envelope = self._payloads.find(id)
            if envelope is None:
                return  # not loaded yet, or evicted again
            if letter.reason == REVOKED:
                self._revocations.store(envelope)
            else:
                self._publish(store, queue, letter, envelope)
            self._operations.dead_letter_sent(queue, id)

    def _publish(self, store: Store, queue: str, letter: DeadLetter, envelope: bytes) -> None:
        """Publish a dead letter, or raise StoreFull or StoreError: try again."""
        copy = x_death_headers.make_copy(envelope, queue, letter)
        targets = [q for q in self._targets(queue, letter, copy) if self._has_room(q, queue, len(copy.envelope))]
        if not targets:
            return
        now = self._clock.now_ms()
        key, priority = copy.routing_key, 255 - letter.priority
        names = [target.name for target in targets] if letter.reason == "rejected" else []
        delay_ms = x_death_headers.return_delay_ms(names, copy.deaths)
        visible_at_ms = now + delay_ms if delay_ms else 0
        message = Publish(0, 0, letter.exchange, key, copy.envelope, copy.metadata, priority, now, visible_at_ms)
        try:
            store(message, targets)
        except (StoreFull, StoreError):
            raise
        except OpenDataError as exc:
            self.lost += 1
            self._warn("dead letters of queue %r are lost: %s", queue, exc)
        else:
            self.published += 1

    def _targets(self, queue: str, letter: DeadLetter, copy: x_death_headers.Copy) -> list[BrokerQueue]:
        """Return the queues that accept a dead letter; count and log a dead letter without a queue."""
        try:
            names = self._topology.route(
                letter.exchange, copy.routing_key, lambda: copy.headers, copy.metadata, copy.before
            )
        except NotFound:
            names = ()
            self._warn("dead letters of queue %r go nowhere: there is no exchange %r", queue, letter.exchange)
        queues = self._queues.existing(names)
        if not queues:
            self.unroutable += 1
            text = "dead letters of queue %r are dropped: no queue takes them from exchange %r with routing key %r"
            self._warn(text, queue, letter.exchange, copy.routing_key)
            return queues
        if letter.reason == "rejected":
            return queues
        cycling = [target for target in queues if x_death_headers.is_cycle(target.name, copy.deaths)]
        for target in cycling:
            self.cycles += 1
            text = "dead letters of queue %r are dropped: they were in %r before, and no consumer rejected them since"
            self._warn(text, queue, target.name)
        return [target for target in queues if target not in cycling]

    def _has_room(self, target: BrokerQueue, queue: str, size: int) -> bool:
        """Return True if a queue has room for another message; otherwise count and log the refused dead letter."""
        try:
            self._policies.check_room(target, size)
        except QueueFull:
            self.lost += 1
            self._warn("dead letters of queue %r are lost: queue %r is full and refuses them", queue, target.name)
            return False
        return True
