"""One instance (a virtual host): its engine, its sessions, its queues, and the loop of commit and delivery.

Handlers change state and put replies and deliveries into the sessions' outboxes. A tick, at most one per turn of the
event loop, then delivers what can be delivered, commits, and sends the outboxes. So nothing is shown before it is
durable, and everything that came in together is one commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from ..errors import OpenDataError, StoreError, StoreFull
from ..protocol.messages import Cancelled
from ..storage.engine import Engine
from ..storage.records.kinds import FIRST_TRANSIENT_ID
from ..storage.removals import Call
from ..storage.state import DEFAULT_LEASE_SECONDS, Queue
from . import leases
from .background import Background
from .dead_letters import DeadLetters, Store
from .maintenance import Maintenance
from .model.queue import BrokerQueue
from .model.queue_kinds import QueueMaker
from .model.sessions import ConsumedQueue, Consumer, Session
from .model.stored_queue import Storage
from .model.transient_queue import Surroundings, TransientQueue
from .notices import Notices
from .outbox import Outbox, send
from .pace import Pace, encoded
from .queue_figures import Rates
from .replay import Replays
from .results import ResultService
from .settings import BrokerSettings
from .staging import StagingService
from .timed import TimedLeases
from .upkeep import Upkeep

log = logging.getLogger(__name__)

#: deliveries of one queue in one tick, so that others get their turn
_DELIVERIES_PER_TICK = 1000
_RETRY_SECONDS = 0.1
_MAX_WARNED = 10_000
#: how often leases are prolonged in the store: three times within the default one, once within the shortest
_RENEW_SECONDS = DEFAULT_LEASE_SECONDS / 3


class Instance:
    """A virtual host of the broker.

    Attributes:
        outbox: what clients are to be told after the next commit.
        background: calls that are under way.
        on_queue_gone: called when a queue is deleted; set by whoever sums what queues counted.
    """

    def __init__(self, name: str, engine: Engine, settings: BrokerSettings) -> None:
        self.name = name
        self.engine = engine
        self.on_queue_gone: Callable[[BrokerQueue], None] | None = None
        self.sessions: dict[bytes, Session] = {}
        self.queues: dict[str, BrokerQueue] = {}
        self.opened_at_ms = engine.clock.now_ms()
        self.admin_lock = asyncio.Lock()
        self.loop = asyncio.get_running_loop()
        self._next_transient_id = FIRST_TRANSIENT_ID
        self._waiting: set[ConsumedQueue] = set()
        self.outbox = Outbox(self.loop, self._turn)
        self.background = Background(self.loop, self.outbox, self.sessions)
        self._committer: asyncio.Task[None] | None = None
        self.failed: asyncio.Future[None] = self.loop.create_future()
        self.published = 0
        self.delivered = 0
        self.results = ResultService(self)
        self.upkeep = Upkeep(self)
        self.replays = Replays(self)
        self.notices = Notices(log, self.loop.time, instance=name)
        self.stops: dict[tuple[bytes, int], asyncio.Event] = {}  # of reads with a condition, by session and number
        self.timed = TimedLeases(self)
        self.staging = StagingService(self, settings.max_message_bytes)
        self.maintenance = Maintenance(
            self,
            grace_ms=settings.session_grace_ms,
            interval_seconds=settings.engine.retention_interval_seconds,
        )
        self._warned: set[str] = set()
        engine.loader.on_loaded = self._on_loaded
        self.dead_letters = DeadLetters(self)
        clock, topology = engine.clock, engine.state.topology
        add_dead_letter, readers = self.dead_letters.add_transient, self.timed.transient_readers
        storage = Storage(
            engine.operations, engine.loader, engine.payloads, engine.pages, engine.removals, engine.collector,
            topology, clock,
        )  # fmt: skip
        self.maker = QueueMaker(storage, Surroundings(clock, topology, readers, add_dead_letter, self.drop_transient))
        self.queues.update((queue.name, self.maker.recover(queue)) for queue in engine.state.queues.values())
        self.timed.load()
        self.rates = Rates(self)
        self._works: set[asyncio.Task[None]] = set()
        self._renewed_at = self.loop.time()
        self._is_stalled = False

    # ------------------------------------------------------------------ life
    def start(self, store: Store) -> None:
        """Begin what goes on in the background. ``store`` puts dead letters into queues."""
        self._work(self.engine.run_maintenance())
        self._work(self.engine.history.run())
        self._work(self.dead_letters.run(store))
        self._work(self.replays.run())
        self._work(self.staging.run())

    def _work(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._works.add(task)
        task.add_done_callback(self._work_ended)

    def _work_ended(self, task: asyncio.Task[None]) -> None:
        self._works.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            self.fail(exc)

    def tick(self) -> None:
        """Called twice a second: the work that time brings."""
        self.maintenance.tick()
        self.upkeep.tick()
        self.rates.tick()
        self._watch_store()
        self.notices.tick()
        if self.loop.time() - self._renewed_at > _RENEW_SECONDS:
            self._renewed_at = self.loop.time()
            leases.renew_all(self)

    def _watch_store(self) -> None:
        """Say once that the store stopped taking writes, and once that it does again."""
        extra = {"instance": self.name}
        stalled = self.engine.stalled_seconds
        if stalled and not self._is_stalled:
            text = "instance %s: the store has taken no writes for %.0f s (disk full?); waiting"
            log.error(text, self.name, stalled, extra=extra)
        elif not stalled and self._is_stalled:
            log.info("instance %s: the store takes writes again", self.name, extra=extra)
        self._is_stalled = bool(stalled)
        count, slowest = self.engine.figures.take_slow()
        if count:
            text = "instance %s: %d commits were slow, the slowest took %.2f s"
            self.notices.say(logging.WARNING, "slow commits", text, self.name, count, slowest)

    async def end_calls(self) -> None:
        """Stop long calls and commit what was done.

        Raises:
            OpenDataError: the commit failed.
        """
        await self.maintenance.close()
        await self.background.close()
        if not self.failed.done():
            await self.engine.commits.commit()

    async def stop(self) -> None:
        """Stop what goes on in the background."""
        self.upkeep.stop()
        self.timed.stop()
        for task in self._works:
            task.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)

    def report(self) -> dict[str, Any]:
        """What the status call says, but for the queues."""
        return {
            **self.engine.report(),
            "sessions": len(self.sessions),
            "published": self.published,
            "delivered": self.delivered,
            "dead_letters": self.dead_letters.report(),
            "staging": self.staging.report(),
            "transient_queues": len(self.queues) - len(self.engine.state.queues),
            "maintenance": self.maintenance.report(),
        }

    async def queue_figures(self) -> dict[str, Any]:
        """The encoded figures of all stored queues, by name."""
        found = {}
        async for stored in Pace().over(list(self.engine.state.queues.values())):
            messages, queue = stored.messages, self.queues.get(stored.name)
            figures: dict[str, Any] = {
                "available": len(messages),
                "in_flight": len(messages.in_flight),
                "loaded_buckets": len(messages.buckets),
                "cold_buckets": len(messages.cold),
                "consumers": len(queue.consumers) if queue is not None else 0,
            }
            replay = self.replays.report(stored.name)
            if replay is not None:
                figures["replay"] = replay
            found[stored.name] = encoded(figures)
        return found

    # ------------------------------------------------------------------ waking up
    def wake(self, queue: ConsumedQueue) -> None:
        """The queue may have something to deliver."""
        if queue.consumers or queue.getters:
            self._waiting.add(queue)
            self.outbox.schedule()

    def wake_session(self, session: Session) -> None:
        """The session can take deliveries again."""
        for channel in session.channels.values():
            for consumer in channel.consumers.values():
                self._waiting.add(consumer.queue)
        self.outbox.schedule()

    def warn(self, warnings: list[str]) -> None:
        """Log each warning about a declaration once."""
        for text in warnings:
            if text not in self._warned and len(self._warned) < _MAX_WARNED:
                self._warned.add(text)
                log.warning("%s", text)

    def _on_loaded(self, stored: Queue) -> None:
        queue = self.queues.get(stored.name)
        if queue is not None:
            self.wake(queue)

    # ------------------------------------------------------------------ the turn
    def _turn(self) -> None:
        """Deliver, commit, send. An unforeseen error ends the broker: only what is durable is right."""
        try:
            self._deliver_and_commit()
        except Exception as exc:
            log.exception("instance %s failed", self.name)
            self.fail(exc)

    def _deliver_and_commit(self) -> None:
        outbox, engine = self.outbox, self.engine
        if engine.commits.failure is not None:
            self.fail(engine.commits.failure)
            return
        waiting, self._waiting = self._waiting, set()
        for queue in waiting:
            if not queue.deleting:
                self.deliver(queue)
        self.upkeep.end_turn()
        if engine.journal is None:
            outbox.collect()
            if self._committer is None and not (outbox.is_empty and not engine.commits.effects):
                self._committer = self.loop.create_task(self._commit_store())
                self._committer.add_done_callback(self._store_committed)
            return
        try:
            engine.commits.commit_journal()
        except StoreFull:
            self.loop.call_later(_RETRY_SECONDS, outbox.schedule)
            return
        outbox.collect()
        send(outbox.take())

    async def _commit_store(self) -> None:
        """Without a journal: commit until nothing waits."""
        while self.engine.commits.effects or not self.outbox.is_empty:
            parcels = self.outbox.take()
            if self.engine.commits.is_dirty:
                await self.engine.commits.checkpoint()
            else:
                await self.engine.commits.checkpoint_ended()  # one that somebody else began may have what is to be told
            send(parcels)

    def _store_committed(self, task: asyncio.Task[None]) -> None:
        self._committer = None
        if not task.cancelled():
            exc = task.exception()
            if exc is not None:
                self.fail(exc)
            elif self.engine.commits.effects or not self.outbox.is_empty:
                self.outbox.schedule()

    def fail(self, exc: BaseException) -> None:
        """The engine can't go on: memory is ahead of the store. The broker must stop and start again."""
        self.engine.commits.failure = (
            exc if isinstance(exc, OpenDataError) else StoreError(f"the broker failed: {exc!r}")
        )
        if not self.failed.done():
            self.failed.set_exception(exc)

    # ------------------------------------------------------------------ delivering
    def deliver(self, queue: ConsumedQueue) -> None:
        """Hand the queue's messages to its waiting gets and consumers, as far as there is credit."""
        now = self.engine.clock.now_ms()
        for _ in range(_DELIVERIES_PER_TICK):
            if not queue.getters:
                consumer = queue.next_consumer()
                if consumer is None:
                    return
            entry, loading = queue.next_entry(now)
            if entry is None:
                self._nothing_to_deliver(queue, loading)
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
                self.outbox.talking.add(session)
            self.delivered += 1
        self.wake(queue)

    def _nothing_to_deliver(self, queue: ConsumedQueue, loading: bool) -> None:
        if loading:
            return
        if queue.getters:
            waiting = [getter for getter in queue.getters if not getter.nothing()]
            queue.getters = deque(waiting)
        self._set_timer(queue)

    def _set_timer(self, queue: ConsumedQueue) -> None:
        """Come back when the next delayed message becomes visible."""
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None
        visible_at = queue.messages.next_visible_at()
        if visible_at is not None and (queue.consumers or queue.getters):
            delay = min(max(visible_at - self.engine.clock.now_ms(), 1), 3_600_000) / 1000
            queue.timer = self.loop.call_later(delay, self.wake, queue)

    # ------------------------------------------------------------------ queues
    def transient_id(self) -> int:
        """An id for a message that is not stored."""
        self._next_transient_id += 1
        return self._next_transient_id

    def remove_consumer(self, consumer: Consumer) -> None:
        """Forget a consumer; what it holds stays leased. An auto-delete queue goes with its last consumer."""
        queue = consumer.queue
        consumer.channel.consumers.pop(consumer.tag, None)
        if consumer in queue.consumers:
            queue.consumers.remove(consumer)
        if queue.active == consumer.key:
            queue.active = None
            self.wake(queue)
        queue.used_at_ms = self.engine.clock.now_ms()
        if not queue.consumers and queue.auto_delete:
            queue.drop()

    async def delete_queue(self, queue: BrokerQueue, call: Call | None = None) -> int:
        """Delete a queue of either kind, under the admin lock; returns how many messages were waiting.

        ``call`` as for :meth:`Engine.purge`.
        """
        queue.deleting = True
        count = queue.drop()
        if count is not None:
            return count
        self.forget_users(queue)
        count = await queue.delete(call)
        self.queues.pop(queue.name, None)
        if self.on_queue_gone is not None:
            self.on_queue_gone(queue)
        self.notices.say(
            logging.INFO, "queue deleted", "queue %r was deleted, with %d messages", queue.name, count, queue=queue.name
        )
        return count

    def drop_transient(self, queue: TransientQueue) -> int:
        """Delete a transient queue; returns how many messages were waiting."""
        count = len(queue.messages)
        topology = self.engine.state.topology
        for exchange, _key, _identity in topology.remove_queue(queue.name):
            self.drop_unused_exchange(exchange)
        self.queues.pop(queue.name, None)
        queue.deleting = True
        if self.on_queue_gone is not None:
            self.on_queue_gone(queue)
        for key, session in self._transient_leases(queue):
            del session.leases[key]
        self.forget_users(queue)
        if queue.has_stored_sends:
            self.engine.idempotency.drop_queue(queue.name)
        return count

    def forget_users(self, queue: BrokerQueue) -> None:
        """The queue is going: consumers are told, waiting reads get none, and what is held takes nobody's credit."""
        for consumer in queue.consumers:
            consumer.channel.consumers.pop(consumer.tag, None)
            self.outbox.reply(consumer.session, Cancelled(consumer.channel.number, consumer.tag, "queue deleted"))
        queue.consumers.clear()
        for getter in queue.getters:
            getter.end()
        queue.getters.clear()
        if queue.timer is not None:
            queue.timer.cancel()
        for session in self.sessions.values():
            for key in [key for key in session.lease_channels if key[0] == queue.name]:
                channel = session.lease_channels.pop(key)
                channel.held -= 1
                for consumer in channel.consumers.values():
                    self.wake(consumer.queue)

    def drop_unused_exchange(self, name: str) -> None:
        """An auto-delete exchange goes with its last binding."""
        exchange = self.engine.state.topology.exchanges.get(name)
        if exchange is not None and exchange.auto_delete and not exchange.bindings:
            if exchange.durable:
                self.engine.operations.delete_exchange(name)
            else:
                self.engine.state.topology.remove_exchange(name)

    def _transient_leases(self, queue: BrokerQueue) -> list[tuple[tuple[str, int], Session]]:
        return [(key, session) for session in self.sessions.values() for key in session.leases if key[0] == queue.name]
