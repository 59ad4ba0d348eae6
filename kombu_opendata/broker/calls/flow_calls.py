"""Calls about the flow control of a queue and its partitions."""

from __future__ import annotations

from ...errors import NotFound
from ...protocol import messages as m
from ...storage.clock import Clock
from ...storage.state.cold_summaries import PARTITION_BITS
from ...storage.state.partitions import Partition, bounded_key
from ...storage.state.task_state import RunningTasks
from ..delivery.queue_registry import Queues
from ..model.queue import BrokerQueue
from .dispatch import BrokerCalls, Context, check_range, handles
from .queue_client.claimed_messages import MAX_MS


class FlowCalls(BrokerCalls):
    """Calls that show and delay the partitions of queues."""

    _queues: Queues
    _running: RunningTasks
    _clock: Clock

    @handles(m.DelayKey)
    def delay_key(self, call: Context, msg: m.DelayKey) -> None:
        check_range("the delay in ms", msg.delay_ms, 0, MAX_MS)
        queue, until_ms = call.queue(msg.queue), 0
        partition = self._partition(queue, msg)
        flow = queue.flow if partition is None else partition.flow
        if msg.delay_ms:
            until_ms = max(flow.delayed_until_ms if flow is not None else 0, self._clock.now_ms() + msg.delay_ms)
        queue.delay_flow(-1 if partition is None else partition.number, until_ms)
        self._queues.wake(queue)
        call.reply(m.KeyDelayed(msg.rid, None if partition is None else partition.key, until_ms))

    def _partition(self, queue: BrokerQueue, msg: m.DelayKey) -> Partition | None:
        """Return the partition of a request; None for the whole queue."""
        partitions = queue.messages.partitions
        if partitions is None:
            return None
        if msg.id >= 0:
            entry, run = queue.messages.find(msg.id), self._running.find(queue.name, msg.id)
            number = entry.bucket >> PARTITION_BITS if entry is not None else run[1].partition if run else 0
            return partitions.get(number) if number else None
        if msg.key is None:
            return None
        partition = partitions.by_key.get(bounded_key(msg.key))
        if partition is None:
            text = f"queue {queue.name!r} has no partition with the key {msg.key[:80]!r}"
            raise NotFound(text, queue=queue.name)
        return partition
