"""Delivery: hands the messages of queues to their consumers and getters, as far as there is credit."""

from __future__ import annotations

import asyncio
from collections import deque

from ..storage.clock import Clock
from .model.sessions import ConsumedQueue
from .outbox import Outbox
from .queues import Queues
from .traffic import Traffic

#: deliveries of one queue in one turn, so that others get their turn
_DELIVERIES_PER_TURN = 1000
_MAX_DELAY_MS = 3_600_000


class Delivery:
    """The deliveries of one instance."""

    __slots__ = ("_clock", "_loop", "_outbox", "_queues", "_traffic")

    def __init__(self, queues: Queues, outbox: Outbox, clock: Clock, traffic: Traffic) -> None:
        self._queues = queues
        self._outbox = outbox
        self._clock = clock
        self._traffic = traffic
        self._loop = asyncio.get_running_loop()

    def deliver_all(self) -> None:
        """Deliver from all queues that were woken."""
        queues = self._queues
        waiting, queues.waiting = queues.waiting, set()
        for queue in waiting:
            if not queue.deleting:
                self.deliver(queue)

    def deliver(self, queue: ConsumedQueue) -> None:
        """Deliver from one queue."""
        now = self._clock.now_ms()
        for _ in range(_DELIVERIES_PER_TURN):
            if not queue.getters:
                consumer = queue.next_consumer()
                if consumer is None:
                    return
            entry, loading = queue.next_entry(now)
            if entry is None:
                if not loading:
                    self._nothing_to_deliver(queue)
                return
            if queue.getters:
                if queue.getters[0].take(queue, entry):
                    queue.getters.popleft()
            else:
                assert consumer is not None
                session = consumer.session
                if consumer.channel.credit is not None:
                    consumer.channel.credit -= 1
                session.deliveries.append(queue.lease(entry, session, consumer.channel, consumer.tag, consumer.no_ack))
                self._outbox.talking.add(session)
            self._traffic.delivered += 1
        self._queues.wake(queue)

    def _nothing_to_deliver(self, queue: ConsumedQueue) -> None:
        """Tell who waits, and come back when the next delayed message becomes visible."""
        if queue.getters:
            queue.getters = deque(getter for getter in queue.getters if not getter.nothing())
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None
        visible_at = queue.messages.next_visible_at()
        if visible_at is not None and (queue.consumers or queue.getters):
            delay_ms = min(max(visible_at - self._clock.now_ms(), 1), _MAX_DELAY_MS)
            queue.timer = self._loop.call_later(delay_ms / 1000, self._queues.wake, queue)
