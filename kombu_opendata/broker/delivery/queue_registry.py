"""Queues of an instance: creation, look-up by name, wake-up for a delivery, deletion."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...errors import LimitExceeded, RequestError
from ...protocol.log_position import NOW
from ...protocol.messages import Cancelled, Undeclared
from ...protocol.queue_arguments import QueueArguments
from ...storage.clock import Clock
from ...storage.maintain.background_router import replay_cursor
from ...storage.operations.definitions import Definitions
from ...storage.operations.repeated_requests import Call, Idempotency
from ...storage.records.kinds import FIRST_TRANSIENT_ID
from ...storage.records.routing_cursor import Cursor
from ...storage.routing.exchange import Exchange
from ...storage.routing.queue_filters import filter_of
from ...storage.routing.topology import Topology
from ...storage.state.store_state import Queue, QueueSettings
from ..model.argument_checks import parse_stored
from ..model.queue import BrokerQueue, QueueProperties
from ..model.sessions import ConsumedQueue, Consumer, Session, SessionChannel
from ..model.stored_queue import Storage, StoredQueue
from ..model.transient_queue import Surroundings, TransientQueue
from .outbox import Outbox
from .rate_limited_log import Notices

#: limit for the total steps of the filters of a user's queues, about 10 ms; a filter usually has five steps
MAX_FILTER_STEPS = 100_000


class Queues(dict[str, BrokerQueue]):
    """Queues of an instance by name.

    Attributes:
        waiting: queues that may have messages to deliver in this turn.
        refilled: channels that have capacity again, and that queues may wait for.
        with_getters: queues that have or recently had getters.
        lock: held while a queue is purged or deleted, which delays definitions.
        watchers: called with each deleted queue, so that the metrics still include its counters.
    """

    def __init__(
        self,
        topology: Topology,
        definitions: Definitions,
        idempotency: Idempotency,
        sessions: Mapping[bytes, Session],
        outbox: Outbox,
        clock: Clock,
        notices: Notices,
    ) -> None:
        super().__init__()
        self.waiting: dict[ConsumedQueue, None] = {}  # this and the next two in order, as in the outbox
        self.refilled: dict[SessionChannel, None] = {}
        self.with_getters: dict[ConsumedQueue, None] = {}
        self.lock = asyncio.Lock()
        self.watchers: list[Callable[[BrokerQueue], None]] = []
        self._next_transient_id = FIRST_TRANSIENT_ID
        self._topology = topology
        self._definitions = definitions
        self._idempotency = idempotency
        self._sessions = sessions
        self._outbox = outbox
        self._clock = clock
        self._notices = notices

    def existing(self, names: Iterable[str]) -> list[BrokerQueue]:
        """Return the queues with these names that exist and are not being deleted."""
        return [queue for queue in map(self.get, names) if queue is not None and not queue.deleting]

    def check_filter(self, user: str, name: str, arguments: Mapping[str, Any]) -> None:
        """Raise LimitExceeded if the filters of a user's queues, with this queue, may take too long to evaluate."""
        queue_filter, filters = filter_of(arguments), self._topology.filters
        if queue_filter is None:
            return
        other_steps = (
            rule.selector.steps
            for queue, rule in filters.items()
            if queue != name and queue in self and self[queue].creator == user
        )
        if queue_filter.selector.steps + sum(other_steps) > MAX_FILTER_STEPS:
            raise LimitExceeded(
                f"queue {name!r}: the filters of all queues of user {user!r} would take too long for one message: use "
                "fewer filters, or simpler ones",
                limit="filters",
                value=MAX_FILTER_STEPS,
                whose=f"user {user!r}",
            )

    def transient_id(self) -> int:
        """Return an id for a message that is not stored."""
        self._next_transient_id += 1
        return self._next_transient_id

    # ------------------------------------------------------------------ waking
    def wake(self, queue: ConsumedQueue) -> None:
        """Check in this turn whether the queue has messages to deliver."""
        if queue.consumers or queue.getters:
            self.waiting[queue] = None
            if queue.getters:
                self.with_getters[queue] = None
            self._outbox.schedule()

    def wake_by_name(self, name: str) -> None:
        """Wake the queue of this name, if it exists."""
        queue = self.get(name)
        if queue is not None:
            self.wake(queue)

    def wake_session(self, session: Session) -> None:
        """Wake the queues of a session that can take deliveries again."""
        for channel in session.channels.values():
            self.wake_channel(channel)

    def wake_channel(self, channel: SessionChannel) -> None:
        """Wake the queues of a channel whose consumers have credit again."""
        for consumer in channel.consumers.values():
            self.wake(consumer.queue)

    def refill(self, channel: SessionChannel) -> None:
        """Record that a full channel has capacity again: only queues that waited for it may have messages for it."""
        self.refilled[channel] = None
        self._outbox.schedule()

    # ------------------------------------------------------------------ deleting
    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer; its leases stay. An auto-delete queue is deleted with its last consumer."""
        queue = consumer.queue
        channel = consumer.channel
        channel.consumers.pop(consumer.tag, None)
        if consumer in queue.consumers:
            queue.consumers.remove(consumer)
        if not any(other.channel is channel for other in queue.consumers):
            channel.starved.pop(queue, None)
        if queue.active == consumer.key:
            queue.active = None
            self.wake(queue)
        queue.used_at_ms = self._clock.now_ms()
        if not queue.consumers and queue.auto_delete and not self._has_lost_consumer(queue):
            queue.drop()

    def _has_lost_consumer(self, queue: ConsumedQueue) -> bool:
        """Return True if a session without a connection, which may reconnect, consumes from a queue."""
        lost_sessions = (session for session in self._sessions.values() if session.connection is None)
        channels = (channel for session in lost_sessions for channel in session.channels.values())
        return any(consumer.queue is queue for channel in channels for consumer in channel.consumers.values())

    async def delete(self, queue: BrokerQueue, call: Call | None = None) -> int:
        """Delete a queue of either kind, under the lock; return the number of its messages.

        A repeated ``call`` continues an interrupted deletion.
        """
        queue.deleting = True
        count = queue.drop()
        if count is not None:
            return count
        self._forget_users(queue)
        bound = [
            exchange.name
            for exchange in self._topology.exchanges.values()
            if exchange.auto_delete and any(queue.name in queues for queues in exchange.bindings.values())
        ]
        try:
            count = await queue.delete(call)
        finally:
            if queue.deleting:  # even if the commit failed, because a later one contains the deletion
                for exchange in bound:
                    self.drop_unused_exchange(exchange)
                self._gone(queue)
        if call is None:  # not a client's call, which the audit log would record
            text = "queue %r was deleted, with %d messages"
            self._notices.say(logging.INFO, "queue deleted", text, queue.name, count, queue=queue.name)
        return count

    def drop_transient(self, queue: TransientQueue) -> int:
        """Delete a transient queue; return the number of its messages."""
        count = len(queue.messages)
        for exchange, _key, _identity in self._topology.remove_queue(queue.name):
            self.drop_unused_exchange(exchange)
        queue.deleting = True
        self._gone(queue)
        for session in self._sessions.values():
            for key in [key for key in session.leases if key[0] == queue.name]:
                del session.leases[key]
        self._forget_users(queue)
        if queue.has_stored_sends:
            self._idempotency.drop_queue(queue.name)
        return count

    def undeclare(self, gone: Undeclared) -> None:
        """Report a deletion to the sessions that declared the object, so that they do not declare it again."""
        for session in self._sessions.values():
            if session.declared is not None and session.declared.forget(gone) and session.connection is not None:
                self._outbox.reply(session, gone)

    def _gone(self, queue: BrokerQueue) -> None:
        self.pop(queue.name, None)
        if queue.owner is not None:
            queue.owner.owned.discard(queue)
        self.undeclare(Undeclared(queue.name))
        self.with_getters.pop(queue, None)
        for watcher in self.watchers:
            watcher(queue)

    def _forget_users(self, queue: BrokerQueue) -> None:
        """Cancel the consumers of a queue that is being deleted, answer its getters, and return credit."""
        for consumer in queue.consumers:
            consumer.channel.consumers.pop(consumer.tag, None)
            consumer.channel.starved.pop(queue, None)
            self._outbox.reply(consumer.session, Cancelled(consumer.channel.number, consumer.tag, "queue deleted"))
        queue.consumers.clear()
        for getter in queue.getters:
            getter.end()
        queue.getters.clear()
        if queue.timer is not None:
            queue.timer.cancel()
        for session in self._sessions.values():
            for key in [key for key in session.lease_channels if key[0] == queue.name]:
                channel = session.lease_channels.pop(key)
                channel.held -= 1
                self.wake_channel(channel)

    def drop_unused_exchange(self, name: str) -> None:
        """Delete an auto-delete exchange that has no bindings."""
        exchange = self._topology.exchanges.get(name)
        if exchange is not None and exchange.auto_delete and not exchange.bindings:
            self.delete_exchange(exchange)

    def delete_exchange(self, exchange: Exchange) -> None:
        """Delete an exchange of either kind with its bindings."""
        if exchange.durable:
            self._definitions.delete_exchange(exchange.name)
        else:
            self._topology.remove_exchange(exchange.name)
        self.undeclare(Undeclared(exchange=exchange.name))


class QueueMaker:
    """Factory for the queues of one instance; ``fill`` starts the replay of a queue that begins in the past."""

    def __init__(self, storage: Storage, around: Surroundings, fill: Callable[[Queue, Cursor], None]) -> None:
        self._storage = storage
        self._around = around
        self._fill = fill

    def declare(self, name: str, properties: QueueProperties, arguments: QueueArguments) -> BrokerQueue:
        """Create a stored or transient queue, as its properties require; raise RequestError for an invalid start."""
        storage, start = self._storage, arguments.start
        cursor = replay_cursor(start, NOW, next_id=storage.state.next_id, now_ms=storage.clock.now_ms())
        if properties.stored:
            stored = storage.definitions.declare_queue(name, QueueSettings.of(arguments, properties.arguments))
            if start != NOW:
                self._fill(stored, cursor)  # in the same commit
            return StoredQueue(stored, properties, arguments, storage)
        if not cursor.is_done:
            raise RequestError(
                f"queue {name!r}: only a stored queue can begin in the past", argument="x-start", queue=name
            )
        storage.state.topology.add_queue(name, properties.arguments)
        return TransientQueue(name, properties, arguments, self._around)

    def recover(self, stored: Queue) -> StoredQueue:
        """Create a queue from the store."""
        properties = QueueProperties(True, False, False, stored.declared.arguments)
        arguments = parse_stored(stored.name, stored.options.arguments)
        queue = StoredQueue(stored, properties, arguments, self._storage)
        if arguments.single_active_consumer:  # a consumer that holds messages has precedence over other consumers
            queue.previous_holders = frozenset(entry.session for entry in stored.messages.in_flight.values())
        return queue
