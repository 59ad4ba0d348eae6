"""Calls about the flow control of a queue and its partitions."""

from __future__ import annotations

from collections.abc import Callable
from heapq import nsmallest
from typing import Any

from ...errors import NotFound, RequestError
from ...protocol import messages as m
from ...protocol.messages.flow_messages import BACKLOG, IN_FLIGHT, KEY, OLDEST, ORDERS
from ...storage.clock import Clock, TimeSlice
from ...storage.operations.message_operations import Operations
from ...storage.state.cold_summaries import PARTITION_BITS
from ...storage.state.partitions import Partition, Partitions, bounded_key
from ...storage.state.task_state import RunningTasks
from ..delivery.queue_registry import Queues
from ..model.queue import BrokerQueue
from .dispatch import BrokerCalls, Context, check_range, handles
from .queue_client.claimed_messages import MAX_MS, MAX_PAGE

#: maximum offset of a page of partitions
_MAX_OFFSET = 1_000_000


class FlowCalls(BrokerCalls):
    """Calls that show and delay the partitions of queues."""

    _operations: Operations
    _queues: Queues
    _running: RunningTasks
    _clock: Clock

    @handles(m.DelayKey)
    async def delay_key(self, call: Context, msg: m.DelayKey) -> m.KeyDelayed:
        check_range("the delay in ms", msg.delay_ms, 0, MAX_MS)
        queue, until_ms = call.queue(msg.queue), 0
        partition = await self._partition(queue, msg)
        call.check_exists(queue)
        flow = queue.flow if partition is None else partition.flow
        if msg.delay_ms:
            until_ms = max(flow.delayed_until_ms if flow is not None else 0, self._clock.now_ms() + msg.delay_ms)
        queue.delay_flow(-1 if partition is None else partition.number, until_ms)
        self._queues.wake(queue)
        return m.KeyDelayed(msg.rid, None if partition is None else partition.key, until_ms)

    async def _partition(self, queue: BrokerQueue, msg: m.DelayKey) -> Partition | None:
        """Return the partition of a request; None for the whole queue."""
        partitions = queue.messages.partitions
        if partitions is None or (msg.id < 0 and msg.key is None) or not partitions.rules.by:
            return None
        if msg.id >= 0:
            entry, run = queue.messages.find(msg.id), self._running.find(queue.name, msg.id)
            if entry is None and run is None:  # not the whole queue: this would stop all other keys
                text = f"message {msg.id} of queue {queue.name!r} is not in flight: give a key"
                raise NotFound(text, queue=queue.name)
            number = entry.bucket >> PARTITION_BITS if entry is not None else run[1].partition if run else 0
            if number in partitions and partitions.fits(partitions[number]):
                return partitions[number]
            # it was delivered before an alteration of the expression
            (headers,) = await queue.headers([(msg.id, 0 if entry is None else entry.priority)])
            partitions = queue.messages.partitions
            if partitions is None or not partitions.rules.by:
                return None
            return partitions[self._operations.place(queue.state(), headers or {}) >> PARTITION_BITS]
        key = msg.key or ""
        partition = partitions.by_key.get(bounded_key(key))
        if partition is None:
            raise NotFound(f"queue {queue.name!r} has no partition with the key {key[:80]!r}", queue=queue.name)
        return partition

    @handles(m.ListPartitions)
    async def list_partitions(self, call: Context, msg: m.ListPartitions) -> m.PartitionPage:
        check_range("the number of partitions", msg.limit, 1, MAX_PAGE)
        check_range("the offset", msg.offset, 0, _MAX_OFFSET)
        if msg.order not in ORDERS:
            raise RequestError(f"partitions are ordered by {', '.join(ORDERS)}, not {msg.order[:80]!r}")
        queue, now = call.queue(msg.queue), self._clock.now_ms()
        reply = m.PartitionPage(msg.rid, [], 0, "")
        if queue.flow is not None:
            used = len(queue.messages.in_flight) + queue.running
            reply.limited_by, reply.opens_at_ms = queue.flow.reason(used, now)
        partitions = queue.messages.partitions
        if partitions is None:
            return reply
        reply.by, weights, found, order = partitions.rules.by, 0, [], _order(msg.order, partitions)
        async for partition in TimeSlice().over(list(partitions.values())):
            if partition.waiting:
                weights += partitions.rules.weight_of(partition.key)
            is_shown = partition.waiting or partition.in_flight or not partitions.limits.is_idle(partition, now)
            if is_shown and msg.search in partition.key:
                found.append((order(partition), partition.number, partition))
        reply.matching = len(found)
        for _place, _number, partition in nsmallest(msg.offset + msg.limit, found)[msg.offset :]:
            weight, oldest = partitions.rules.weight_of(partition.key), partitions.oldest_ready(partition)
            reason, opens_at_ms = self._reason(partitions, partition)
            reply.partitions.append(
                m.PartitionInfo(
                    partition.key,
                    partition.waiting,
                    partition.in_flight,
                    partition.running,
                    weight,
                    weight / weights if partition.waiting else 0.0,
                    reason,
                    opens_at_ms,
                    None if oldest is None else await queue.age_seconds(oldest, now),
                )
            )
        return reply

    def _reason(self, partitions: Partitions, partition: Partition) -> tuple[str, int]:
        if partitions.rules.by and not partitions.fits(partition):
            return "moving", 0
        return partitions.limits.reason(partition, self._clock.now_ms())


def _order(order: str, partitions: Partitions) -> Callable[[Partition], Any]:
    """Return the sort key of an order; partitions that are equal in it are ordered by key."""

    def oldest(partition: Partition) -> Any:
        id = partitions.oldest_ready(partition)
        return id is None, id or 0, partition.key

    return {
        BACKLOG: lambda partition: (-partition.waiting, partition.key),
        IN_FLIGHT: lambda partition: (-partition.in_flight - partition.running, partition.key),
        OLDEST: oldest,
        KEY: lambda partition: partition.key,
    }[order]
