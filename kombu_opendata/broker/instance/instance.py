"""One instance (a virtual host): composes its queues, sessions, turn and duties over one engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from ...storage.engine import Engine
from ...storage.state.store_state import DEFAULT_LEASE_SECONDS
from ..delivery.background import Background
from ..delivery.delivery import Delivery, Turn
from ..delivery.failure import Failure
from ..delivery.leases import Leases
from ..delivery.outbox import Outbox
from ..delivery.queue_upkeep import Upkeep
from ..delivery.queues import Queues
from ..delivery.rate_limited_log import Notices, WarnOnce
from ..delivery.rates import Rates
from ..delivery.result_watches import ResultWatches
from ..delivery.session_lifecycle import SessionLifecycle
from ..delivery.time_slices import Pace, encoded
from ..delivery.traffic import Traffic
from ..delivery.visibility_timeouts import TimedLeases
from ..model.queue_kinds import QueueMaker
from ..model.sessions import Session
from ..model.stored_queue import Storage
from ..model.transient_queue import Surroundings
from .dead_letters import DeadLetters, Store
from .maintenance import Maintenance
from .replay_cursors import Replays
from .revocations import Revocations
from .staged_plan import Planner
from .staged_router import StagingRouter
from .staging_service import StagingService

log = logging.getLogger(__name__)

#: how often leases are prolonged in the store: three times within the default one, once within the shortest
_RENEW_SECONDS = DEFAULT_LEASE_SECONDS / 3


class Instance:
    """A virtual host of the broker.

    Args:
        grace_ms: how long a session without a connection keeps its leases.

    Attributes:
        sessions: those of its clients, by id, also while they have no connection.
    """

    def __init__(self, name: str, engine: Engine, *, grace_ms: int, max_message_bytes: int) -> None:
        loop, clock, state = asyncio.get_running_loop(), engine.clock, engine.state
        self.name = name
        self.engine = engine
        self.sessions: dict[bytes, Session] = {}
        self.traffic = Traffic()
        self.failure = Failure(name, loop, engine.commits)
        self.notices = Notices(log, loop.time, instance=name)
        self.warnings = WarnOnce(log)
        self.outbox = Outbox(loop)
        self.background = Background(loop, self.outbox, self.sessions)
        self.queues = Queues(
            state.topology, engine.definitions, engine.idempotency, self.sessions, self.outbox, clock, self.notices
        )
        self.upkeep = self._turn(grace_ms)
        self.results = ResultWatches(self.sessions, self.outbox)
        self.leases = Leases(self.queues, state.leases, self.outbox)
        self.timed = TimedLeases(self.leases, self.queues, state.session_names, clock, self.outbox, self.failure)
        self.lifecycle = SessionLifecycle(
            self.sessions, self.leases, self.queues, state, engine.operations, clock, self.outbox,
            self.results.forget_session, grace_ms,
        )  # fmt: skip
        self.dead_letters = self._dead_letters()
        self.replays = Replays(
            engine.router, state.cursors, self.queues, self.upkeep, self.outbox, engine.commits, self.traffic
        )  # fmt: skip
        self.staging = self._staging(max_message_bytes)
        self.maintenance = Maintenance(
            name, engine, self.lifecycle, self.replays, self.staging, self.failure, self.notices,
            interval_seconds=engine.settings.retention_interval_seconds,
        )  # fmt: skip
        self.maker = self._recover_queues()
        self.rates = Rates(self.queues, clock)
        self.loop = loop
        self._works: set[asyncio.Task[None]] = set()
        self._renewed_at = loop.time()
        self._is_stalled = False

    # ------------------------------------------------------------------ composing
    def _turn(self, grace_ms: int) -> Upkeep:
        """The turn, which the outbox has run; returns the upkeep that is part of it."""
        engine, clock = self.engine, self.engine.clock
        delivery = Delivery(self.queues, self.outbox, clock, self.traffic)
        upkeep = Upkeep(
            self.queues, delivery.deliver, self.sessions, clock, self.outbox, self.failure,
            heirs_until_ms=clock.now_ms() + grace_ms,
        )  # fmt: skip
        has_journal = engine.journal is not None
        self.outbox.turn = Turn(
            self.outbox, delivery, upkeep, engine.commits, self.failure, has_journal=has_journal
        ).run  # fmt: skip
        return upkeep

    def _dead_letters(self) -> DeadLetters:
        engine, state = self.engine, self.engine.state
        revocations = Revocations(engine.results, state.results.chords, engine.clock, self.results.changed)
        return DeadLetters(
            state, engine.payloads, engine.operations, engine.clock, self.queues, self.upkeep, revocations, self.outbox
        )  # fmt: skip

    def _staging(self, max_message_bytes: int) -> StagingService:
        staging, commits, clock = self.engine.staging, self.engine.commits, self.engine.clock
        planner = Planner(self.engine.state.topology, staging, self.queues, self.upkeep, self.outbox)
        router = StagingRouter(
            planner, staging, commits, clock, self.outbox, self.failure, self.traffic, max_message_bytes
        )  # fmt: skip
        return StagingService(self.name, router, staging, commits, clock, max_message_bytes)

    def _recover_queues(self) -> QueueMaker:
        """Serve the queues that the store has; returns what makes new ones."""
        engine, topology, clock = self.engine, self.engine.state.topology, self.engine.clock
        storage = Storage(
            engine.operations, engine.definitions, engine.loader, engine.payloads, engine.pages, engine.removals,
            engine.collector, engine.state, clock,
        )  # fmt: skip
        around = Surroundings(
            clock, topology, self.timed.transient_readers, self.dead_letters.add_transient, self.queues.drop_transient
        )  # fmt: skip
        maker = QueueMaker(storage, around, self.replays.start)
        self.queues.update((queue.name, maker.recover(queue)) for queue in engine.state.queues.values())
        engine.loader.on_loaded = lambda queue: self.queues.wake_by_name(queue.name)
        self.timed.load()
        return maker

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
        task.add_done_callback(self._works.discard)
        task.add_done_callback(self.failure.watch)

    def tick(self) -> None:
        """Called twice a second: the work that time brings."""
        self.maintenance.tick()
        self.upkeep.tick()
        self.rates.tick()
        self._watch_store()
        self.notices.tick()
        if self.loop.time() - self._renewed_at > _RENEW_SECONDS:
            self._renewed_at = self.loop.time()
            self.lifecycle.renew_leases()

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
        if not self.failure.future.done():
            await self.engine.commits.commit()

    async def stop(self) -> None:
        """Stop what goes on in the background."""
        self.upkeep.stop()
        self.timed.stop()
        for task in self._works:
            task.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)

    # ------------------------------------------------------------------ status
    def report(self) -> dict[str, Any]:
        """What the status call says, but for the queues."""
        return {
            **self.engine.report(),
            "sessions": len(self.sessions),
            "published": self.traffic.published,
            "delivered": self.traffic.delivered,
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
