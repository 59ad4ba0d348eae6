"""Calls about the flow control of a queue and its partitions."""

from __future__ import annotations

from ...protocol import messages as m
from ...storage.clock import Clock
from ..delivery.queue_registry import Queues
from .dispatch import BrokerCalls, Context, check_range, handles
from .queue_client.claimed_messages import MAX_MS


class FlowCalls(BrokerCalls):
    """Calls that show and delay the partitions of queues."""

    _queues: Queues
    _clock: Clock

    @handles(m.DelayKey)
    def delay_key(self, call: Context, msg: m.DelayKey) -> None:
        check_range("the delay in ms", msg.delay_ms, 0, MAX_MS)
        queue = call.queue(msg.queue)
        until_ms = 0
        if msg.delay_ms:
            delayed_until_ms = queue.flow.delayed_until_ms if queue.flow is not None else 0
            until_ms = max(delayed_until_ms, self._clock.now_ms() + msg.delay_ms)
        queue.delay_flow(until_ms)
        self._queues.wake(queue)
        call.reply(m.KeyDelayed(msg.rid, None, until_ms))
