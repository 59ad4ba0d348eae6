"""Queue whose messages are stored: each change is an operation of the storage engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ...protocol.envelope import headers_in
from ...protocol.messages import Delivery, Outcome
from ...protocol.queue_arguments import QueueArguments
from ...protocol.task_reports import TaskReport
from ...storage.clock import Clock
from ...storage.maintain.retention import Collector
from ...storage.messages.payloads import Payloads
from ...storage.operations.definitions import Definitions
from ...storage.operations.message_operations import Operations
from ...storage.operations.queue_loader import QueueLoader
from ...storage.operations.repartitioner import Repartitioner
from ...storage.operations.repeated_requests import Call
from ...storage.operations.task_runs import TaskRuns
from ...storage.read import queue_pages
from ...storage.read.queue_pages import IN_FLIGHT, QueuePages, Row
from ...storage.records.definitions import NO_OVERRIDES, QueueOverrides
from ...storage.routing.exchange import Exchange
from ...storage.routing.topology import Topology
from ...storage.state.queue_buckets import QueueEntry
from ...storage.state.settled_list import LISTS, list_name
from ...storage.state.store_state import Queue, StoreState
from .queue import DELETED, BrokerQueue, Located, QueueProperties
from .sessions import Session, SessionChannel

#: plain numbers, compared for each message
_ACK, _START = int(Outcome.ACK), int(Outcome.START)


class Storage(NamedTuple):
    """Components of the storage engine that stored queues use."""

    operations: Operations
    definitions: Definitions
    loader: QueueLoader
    repartitioner: Repartitioner
    payloads: Payloads
    pages: QueuePages
    collector: Collector
    task_runs: TaskRuns
    state: StoreState
    clock: Clock
    wake: Callable[[str], None]


class StoredQueue(BrokerQueue):
    """Durable queue; ``stored`` is its state in the store."""

    kind = "stored"

    def __init__(self, stored: Queue, properties: QueueProperties, arguments: QueueArguments, storage: Storage) -> None:
        self.stored: Queue = stored
        super().__init__(properties, arguments, stored.limits, stored.messages, stored.counts, storage.clock.now_ms())
        self.flow = stored.flow
        self._storage = storage
        self._operations = storage.operations
        self._loader = storage.loader
        self._payloads = storage.payloads
        self._pages = storage.pages
        self._wake = storage.wake
        self._cold_received: dict[int, int] = {}  # of the oldest and the newest message, if they are not in memory
        if stored.overrides != NO_OVERRIDES:
            self._take_over(stored.overrides, arguments)
        self.repartition()

    def override(self, overrides: QueueOverrides, arguments: QueueArguments) -> None:
        self._storage.definitions.override_queue(self.name, overrides)
        self.limits, self.flow = self.stored.limits, self.stored.flow
        self._take_over(overrides, arguments)
        self.repartition()

    def repartition(self) -> None:
        self._storage.repartitioner.start(self.stored, self._wake)

    def state(self) -> Queue:
        return self.stored

    # ------------------------------------------------------------------ delivering
    def next_entry(self, now: int) -> tuple[QueueEntry | None, bool]:
        messages, payloads = self.messages, self._payloads
        if messages.partitions is not None:
            entry, is_loading = self._loader.next_entry(self.stored, now, self._wake)
            if messages.partitions.misplaced:
                self.repartition()
                is_loading = entry is None
            return entry, is_loading
        cold = messages.cold
        if cold and self.stored.at_hand <= self._loader.load_below:
            return self._loader.next_entry(self.stored, now, self._wake)
        entry = messages.peek(now)
        if entry is None or entry.deadline or (cold and cold.wanted(now, entry) is not None):
            return self._loader.next_entry(self.stored, now, self._wake)
        if entry.id not in payloads.pending and payloads.find(entry.id) is None:
            return self._loader.next_entry(self.stored, now, self._wake)
        self.stored.at_hand -= 1
        return entry, False

    def lease(
        self, entry: QueueEntry, session: Session, channel: SessionChannel, tag: str, no_ack: bool, now: int
    ) -> Delivery:
        envelope = self._payloads.pending.get(entry.id) or self._payloads.find(entry.id) or b""
        self._operations.claim(self.stored, (entry,), session.id, at=now)
        if no_ack:
            self._operations.ack(self.stored, (entry,))
        else:
            channel.held += 1
            session.lease_channels[(self.name, entry.id)] = channel
        redelivered = entry.returned or entry.attempts > 1
        return Delivery(
            channel.number, tag, self.name, entry.id, entry.claimed_at, entry.attempts, envelope, redelivered
        )

    @property
    def running(self) -> int:
        return self._storage.state.running.by_queue.get(self.name, 0)

    # ------------------------------------------------------------------ leases
    def claim(self, entry: QueueEntry, holder: Session, lease_ms: int) -> bytes | None:
        self._operations.name_session(holder.id, holder.name)
        self._operations.claim(self.stored, (entry,), holder.id, lease_ms)
        return self._payloads.find(entry.id)

    def ack(self, entries: Collection[QueueEntry]) -> None:
        self._operations.ack(self.stored, entries)

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
        stored, operations = self.stored, self._operations
        if outcome == _ACK:
            if report is None:
                operations.ack(stored, (entry,))
            else:
                self._storage.task_runs.ack(stored, entry, report)
            return
        if report is not None:
            self._storage.task_runs.note(stored, entry, report)
        if outcome == _START:
            self._storage.task_runs.start(stored, (entry,))
        elif outcome == Outcome.REJECT:
            operations.fail(stored, (entry,), holder, "rejected")
        elif outcome == DELETED:
            operations.delete(stored, (entry,))
        elif delay_ms < 0:
            costs = outcome == Outcome.REQUEUE
            operations.put_back(stored, (entry,), holder, costs_attempt=costs, lease_expired=lease_expired)
        elif outcome == Outcome.REQUEUE:
            operations.put_back(stored, (entry,), holder, costs_attempt=True, at_once=True)
        else:
            operations.release(stored, (entry,), holder, delay_ms)

    def extend(self, entry: QueueEntry, lease_ms: int) -> None:
        self._operations.extend(self.stored, (entry,), lease_ms)

    # ------------------------------------------------------------------ ready and delayed messages
    def remove(self, entries: Collection[QueueEntry], reason: str) -> None:
        self._operations.remove(self.stored, entries, reason)

    def archive(self, entry: QueueEntry, operator: str) -> None:
        self._operations.archive(self.stored, (entry,), operator)

    def discard(self, entry: QueueEntry) -> None:
        self._operations.delete(self.stored, (entry,))

    def delay(self, entry: QueueEntry, delay_ms: int) -> None:
        self._operations.delay(self.stored, (entry,), delay_ms)

    def delay_flow(self, partition: int, until_ms: int) -> None:
        self._operations.delay_flow(self.stored, partition, until_ms)
        self.flow = self.stored.flow

    async def purge(self, call: Call) -> int:
        return await self._storage.definitions.purge(self.stored, call)

    def drop(self) -> None:
        """Do nothing: the queue is stored."""

    async def delete(self, call: Call | None) -> int:
        try:
            return await self._storage.definitions.delete_queue(self.stored, call)
        finally:
            # after a failure, its remaining messages may be used, or deleted by another attempt
            self.deleting = self._storage.state.queues.get(self.name) is not self.stored

    # ------------------------------------------------------------------ cold buckets
    async def load_bucket(self, number: int) -> None:
        await self._loader.load_bucket(self.stored, number)

    async def drop_oldest(self) -> None:
        await self._storage.collector.drop_oldest(self.stored, self.is_too_long)

    async def expire(self, now: int) -> None:
        await self._storage.collector.expire(self.stored, now)

    # ------------------------------------------------------------------ reading without claiming
    async def fetch(self, id: int) -> bytes | None:
        await self._loader.find_entries(self.stored, [id])
        return await self._payloads.read(id)

    async def peek(self, id: int) -> tuple[int, bytes] | None:
        envelope = await self._payloads.read(id)
        about = await self._pages.metadata_of(id)
        if envelope is None:
            return None
        return about.received_at_ms if about is not None else self._storage.clock.now_ms(), envelope

    async def page(self, states: tuple[str, ...], after: int, limit: int) -> tuple[list[Row], int]:
        if states == (IN_FLIGHT,):
            return queue_pages.in_flight(self.stored, after, limit)
        if states[0] in LISTS:
            return await self._pages.settled_rows(self.stored, list_name(states[0]), after, limit)
        return await self._pages.waiting(self.stored, after, limit, states)

    async def locate(self, id: int, envelope: bytes | None, received_at_ms: int, reads: int) -> Located:
        if envelope is None:
            return Located(None, None, reads)
        row, reads = await self._pages.state_of(self.stored, id, received_at_ms, reads)
        tasks, entry = self._storage.state.running, self.stored.messages.in_flight.get(id)
        if entry is not None:
            since = tasks.late_since_ms(entry.session, (self.name, id, entry.claimed_at))
            row = queue_pages.row_in_flight(entry, since)
        elif row is None or row.state == "done":
            running = tasks.find(self.name, id)
            row = row if running is None else queue_pages.row_running(*running)
        return Located(row, envelope, reads)

    async def headers(self, rows: Sequence[tuple[int, int]]) -> list[Mapping[str, str] | None]:
        payloads = self._payloads
        known = await self._pages.metadata([id for id, _priority in rows])
        return [
            about.headers if (about := known.get(id)) is not None else headers_in(payloads.find(id), 255 - priority)
            for id, priority in rows
        ]

    async def settled(self) -> dict[str, int]:
        return {which: await self._pages.count_settled(self.stored, which) for which in LISTS}

    def settled_version(self) -> int:
        stored = self.stored
        return hash((stored.done.version, stored.failed.version, stored.archived_failed.version))

    async def age_seconds(self, id: int, now: int) -> float | None:
        entry = self.messages.find(id)
        received = entry.received_at if entry is not None else self._cold_received.get(id, 0)
        if not received:
            about = await self._pages.metadata_of(id)
            if about is None:
                return 0.0
            received = about.received_at_ms
            if entry is not None:
                entry.received_at = received
            else:
                self._cold_received = {**dict(list(self._cold_received.items())[-1:]), id: received}
        return max(now - received, 0) / 1000

    def binds_in(self, exchange: Exchange) -> Definitions | Topology:
        return self._storage.definitions if exchange.durable else self._storage.state.topology


def stored_in(queues: Iterable[BrokerQueue]) -> list[Queue]:
    """Return the states of the stored queues, for the single operation that puts a message into all of them."""
    return [queue.stored for queue in queues if queue.stored is not None]
