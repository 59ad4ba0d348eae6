"""Queue whose messages are only in memory: not durable, auto-delete or exclusive."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from ...protocol.envelope import headers_in
from ...protocol.messages import Delivery, Outcome
from ...protocol.queue_arguments import QueueArguments
from ...protocol.task_reports import TaskReport
from ...storage.clock import Clock
from ...storage.engine_sizes import SIZES
from ...storage.operations.repeated_requests import Call
from ...storage.read import queue_pages
from ...storage.read.queue_pages import IN_FLIGHT, Row
from ...storage.records.definitions import QueueOverrides
from ...storage.routing.exchange import Exchange
from ...storage.routing.queue_filters import have_same_filter
from ...storage.routing.topology import Topology
from ...storage.state.flow_limits import FlowLimits, FlowRules, limited
from ...storage.state.queue_buckets import DeadlineRules, QueueEntry
from ...storage.state.queue_counters import QueueCounts
from ...storage.state.queue_state import QueueState
from ...storage.state.settled_list import LISTS
from .queue import DELETED, BrokerQueue, Located, QueueProperties
from .sessions import Session, SessionChannel


class Surroundings(NamedTuple):
    """Components that the transient queues of an instance use."""

    clock: Clock
    topology: Topology
    readers: dict[bytes, str]  # the names of sessions with timed leases
    #: called with a message that may become a dead letter, and the reason
    dead_letter: Callable[[TransientQueue, QueueEntry, str], None]
    drop: Callable[[TransientQueue], int]  # deletes a queue immediately, and returns the number of its messages


class TransientQueue(BrokerQueue):
    """Queue that needs no commits and does not survive a restart. All its messages are in memory."""

    kind = "transient"

    def __init__(self, name: str, properties: QueueProperties, arguments: QueueArguments, around: Surroundings) -> None:
        limits, now = DeadlineRules.of(properties.arguments), around.clock.now_ms()
        messages = QueueState(name, durable=False, counts_bytes=limits.counts_bytes)
        super().__init__(properties, arguments, limits, messages, QueueCounts(now), now)
        self._around = around
        self._clock = around.clock
        self._running: dict[tuple[int, int], bytes] = {}
        self.flow = limited(None, FlowRules.of(properties.arguments), now)

    def override(self, overrides: QueueOverrides, arguments: QueueArguments) -> None:
        effective, topology = overrides.over(self.properties.arguments), self._around.topology
        if not have_same_filter(self.effective, effective):
            topology.filters.add(self.name, effective)
            topology.changed()
        self.limits = DeadlineRules.of(effective)
        self.messages.count_bytes(self.limits.counts_bytes)
        self._take_over(overrides, arguments)
        self.flow = limited(self.flow, FlowRules.of(effective), self._clock.now_ms())

    def put(self, id: int, envelope: bytes, priority: int, visible: int, ttl: int) -> None:
        """Add a new message, which other queues may also have."""
        now = self._clock.now_ms()
        visible = max(visible, now)
        deadline = now + ttl if ttl >= 0 else 0
        if self.limits.message_ttl_ms >= 0:
            deadline = self.limits.deadline(deadline, visible, now)
        entry = self.messages.add(0, id, priority, visible, deadline, now, len(envelope))
        entry.envelope, entry.received_at = envelope, now
        self.counts.published += 1

    # ------------------------------------------------------------------ delivering
    def next_entry(self, now: int) -> tuple[QueueEntry | None, bool]:
        messages = self.messages
        while True:
            entry = messages.peek(now)
            if entry is None or not entry.deadline or entry.deadline > now or entry.id in messages.fresh:
                return entry, False
            self.remove((entry,), "expired")

    def lease(
        self, entry: QueueEntry, session: Session, channel: SessionChannel, tag: str, no_ack: bool, now: int
    ) -> Delivery:
        self.messages.claim(entry, session.id, max(now, entry.visible_at), 0)
        self._use_token(entry)
        counts = self.counts
        counts.delivered += 1
        counts.redelivered += entry.returned
        if no_ack:
            self.messages.settle(entry)
            counts.acked += 1
        else:
            key = (self.name, entry.id)
            session.leases[key] = entry
            channel.held += 1
            session.lease_channels[key] = channel
        redelivered, envelope = entry.returned or entry.attempts > 1, entry.envelope or b""
        return Delivery(
            channel.number, tag, self.name, entry.id, entry.claimed_at, entry.attempts, envelope, redelivered
        )

    def _use_token(self, entry: QueueEntry) -> None:
        if self.flow is not None:
            self.flow.take(1, entry.claimed_at)

    @property
    def running(self) -> int:
        return len(self._running)

    # ------------------------------------------------------------------ leases
    def claim(self, entry: QueueEntry, holder: Session, lease_ms: int) -> bytes | None:
        at = max(self._clock.now_ms(), entry.visible_at)
        self.messages.claim(entry, holder.id, at, at + lease_ms)
        self._use_token(entry)
        self._around.readers[holder.id] = holder.name
        self.counts.delivered += 1
        self.counts.redelivered += entry.returned
        return entry.envelope

    def ack(self, entries: Collection[QueueEntry]) -> None:
        for entry in entries:
            self.messages.settle(entry)
        self.counts.acked += len(entries)

    def end(
        self,
        entry: QueueEntry,
        outcome: int,
        holder: str,
        *,
        report: TaskReport | None = None,
        delay_ms: int = -1,
        lease_expired: bool = False,
    ) -> None:
        messages, counts = self.messages, self.counts
        if outcome in (Outcome.REQUEUE, Outcome.RELEASE):
            now, costs = self._clock.now_ms(), outcome == Outcome.REQUEUE
            visible_at = 0
            if delay_ms >= 0:
                visible_at = now + delay_ms
            elif costs:
                visible_at = self.limits.retry_at(now, entry.attempts)
            messages.put_back(entry, now, costs_attempt=costs, visible_at=visible_at)
            counts.came_back(costs_attempt=costs, lease_expired=lease_expired)
            return
        if outcome == Outcome.ACK:
            self.ack((entry,))
            return
        if outcome == Outcome.START:
            self._running[entry.id, entry.claimed_at] = entry.session
            if len(self._running) > SIZES.running_tasks:  # its sessions report no outcomes
                del self._running[next(iter(self._running))]
        messages.settle(entry)
        if outcome == Outcome.START:
            counts.acked += 1
        elif outcome == DELETED:
            counts.deleted += 1
        else:
            counts.rejected += 1
            self._around.dead_letter(self, entry, "rejected")

    def finish(self, id: int, token: int, session: Session) -> bool:
        """End a task that was started under this lease; return False if it does not run or has another session."""
        starter = self._running.get((id, token))
        if starter is None or not (starter == session.id or session.rights.read[self.name]):
            return False
        del self._running[id, token]
        return True

    def extend(self, entry: QueueEntry, lease_ms: int) -> None:
        entry.lease_until = self._clock.now_ms() + lease_ms

    # ------------------------------------------------------------------ ready and delayed messages
    def remove(self, entries: Collection[QueueEntry], reason: str) -> None:
        for entry in entries:
            self.messages.remove(entry)
            self.counts.removed(1, reason)
            self._around.dead_letter(self, entry, reason)

    def archive(self, entry: QueueEntry, operator: str) -> None:
        self.messages.remove(entry)
        self.counts.archived += 1

    def discard(self, entry: QueueEntry) -> None:
        self.messages.remove(entry)
        self.counts.purged += 1

    def delay(self, entry: QueueEntry, delay_ms: int) -> None:
        now = self._clock.now_ms()
        self.messages.delay(entry, now + delay_ms, now)

    def delay_flow(self, partition: int, until_ms: int) -> None:
        self.flow = self.flow or FlowLimits()
        self.flow.delayed_until_ms = until_ms

    async def purge(self, call: Call) -> int:
        entries = list(self.messages.available.values())
        for entry in entries:
            self.discard(entry)
        return len(entries)

    def drop(self) -> int:
        return self._around.drop(self)

    # ------------------------------------------------------------------ reading without claiming
    async def fetch(self, id: int) -> bytes | None:
        entry = self.messages.find(id)
        return entry.envelope if entry is not None else None

    async def peek(self, id: int) -> tuple[int, bytes] | None:
        envelope = await self.fetch(id)
        return (0, envelope) if envelope is not None else None

    async def page(self, states: tuple[str, ...], after: int, limit: int) -> tuple[list[Row], int]:
        messages, now = self.messages, self._clock.now_ms()
        entries = messages.in_flight if IN_FLIGHT in states else messages.available
        rows = (queue_pages.loaded_row(messages, id, now) for id in sorted(entries) if id > after)
        matches = [row for row in rows if row is not None and row.state in states]
        return matches[:limit], matches[limit - 1].id if len(matches) > limit else -1

    async def locate(self, id: int, envelope: bytes | None, received_at_ms: int, reads: int) -> Located:
        row = queue_pages.loaded_row(self.messages, id, self._clock.now_ms())
        return Located(row, envelope if row is None else await self.fetch(id), reads)

    async def headers(self, rows: Sequence[tuple[int, int]]) -> list[Mapping[str, str] | None]:
        return [headers_in(await self.fetch(id), 255 - priority) for id, priority in rows]

    async def settled(self) -> dict[str, int]:
        return dict.fromkeys(LISTS, 0)

    def binds_in(self, exchange: Exchange) -> Topology:
        return self._around.topology
