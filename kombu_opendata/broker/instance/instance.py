"""Instance (virtual host): composition of its queues, sessions, delivery turn and maintenance over one engine."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ...errors import StoreSilent
from ...protocol.framing import encoded
from ...protocol.queue_arguments import DEFAULT_LEASE_SECONDS
from ...storage.clock import TimeSlice
from ...storage.engine import Engine
from ..access.audit import Audit
from ..delivery.active_lease import ActiveLease
from ..delivery.background import Background
from ..delivery.delivery_turn import Turn
from ..delivery.lease_expiry import LeaseExpiry, TimedLeases
from ..delivery.lease_tokens import LeaseTable
from ..delivery.publish_flow_control import LEAST_TURN_SECONDS, MOST_TURN_SECONDS, Flow, Reason
from ..delivery.queue_registry import QueueMaker
from ..delivery.rate_limited_log import Notices, WarnOnce
from ..delivery.result_watches import ResultWatches
from ..delivery.session_lifecycle import SessionLifecycle
from ..delivery.slow_turns import SlowTurns
from ..delivery.task_outcomes import TaskOutcomes
from ..metrics.metrics_memory import ClientRates, MetricsMemory
from ..model.sessions import Session
from ..model.stored_queue import Storage
from ..model.transient_queue import Surroundings
from .dead_letters import DeadLetters, Revocations, Store
from .maintenance import Maintenance
from .replay_scheduler import ReplayScheduler
from .staged_job_commits import StagingService
from .staged_job_control import JobControl
from .staged_job_runner import StagingRouter
from .staged_row_router import Planner

if TYPE_CHECKING:
    from ..metrics.message_spans import MessageSpans

log = logging.getLogger(__name__)

#: interval of the extension of leases in the store: three times within a default lease, once within the shortest
_RENEW_SECONDS = DEFAULT_LEASE_SECONDS / 3
#: how long a stopping broker waits for its last commit
_END_SECONDS = 10.0


class Instance:
    """A virtual host of the broker.

    Args:
        active_lease: the active lease of the broker; None if no other broker can replace it.
        grace_ms: the time after which a session without a connection loses its leases.
        restart_grace_ms: the minimum time after startup for which leases from before the startup stay; None means
            ``grace_ms``.
        traced: export OpenTelemetry spans of messages.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        active_lease: ActiveLease | None = None,
        flow: Flow | None = None,
        slow_turns: SlowTurns | None = None,
        *,
        grace_ms: int,
        restart_grace_ms: int | None = None,
        max_message_bytes: int,
        traced: bool = False,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        loop, clock, state = asyncio.get_running_loop(), engine.clock, engine.state
        restart_grace_ms = grace_ms if restart_grace_ms is None else restart_grace_ms
        self.name = name
        self.run_id = entropy(16)  # a random id of this run; transient state is lost when it changes
        self.engine, self.loop = engine, loop
        self.sessions: dict[bytes, Session] = {}  # the sessions of its clients, by id, with and without a connection
        self.notices = Notices(log, loop.time, instance=name)
        self.warnings = WarnOnce(log)
        self.audit = Audit(loop.time, name)
        # delivery
        self.flow = flow or Flow(loop)
        lease = active_lease or ActiveLease()
        self._turn = Turn(name, engine, self.sessions, self.notices, self.flow, lease, restart_grace_ms, slow_turns)
        core, policies = self._turn.core, self._turn.policies
        self.outbox = core.outbox
        self.queues = core.queues
        self.failure = core.failure
        self.traffic = core.traffic
        self.policies = policies
        self.background = Background(loop, self.outbox, self.sessions, self.audit)
        # leases and sessions
        self.results = ResultWatches(self.outbox)
        self.task_outcomes = TaskOutcomes(clock)
        self.leases = LeaseTable(self.queues, state.leases, self.outbox, engine.task_runs, self.task_outcomes)
        self.timed = TimedLeases(core, self.leases, state.session_names)
        self.lifecycle = SessionLifecycle(core, self.leases, state, engine.operations, self.results.forget_session)
        self.lease_expiry = LeaseExpiry(
            core, self.lifecycle, self.leases, state, engine.operations, grace_ms, restart_grace_ms
        )
        # background work
        revocations = Revocations(engine.results, state.results.chords, clock, self.results.changed)
        self.dead_letters = DeadLetters(core, state, engine.payloads, engine.operations, policies, revocations)
        self.replays = ReplayScheduler(core, engine.router, state.cursors, policies)
        planner = Planner(core, state.topology, engine.staging, policies)
        router = StagingRouter(core, planner, engine.staging, max_message_bytes)
        self.staging = StagingService(core, router, engine.staging, max_message_bytes)
        self.job_control = JobControl(core, state, engine.staging)
        self.maintenance = Maintenance(core, engine, self.lease_expiry, self.replays, self.staging)
        self._works: set[asyncio.Task[None]] = set()
        self._renewed_at = loop.time()
        self._stalled_seconds = 0.0
        # queues, and their recent past
        self.maker = self._recover_queues()
        self.recent_metrics = MetricsMemory(self.queues, clock)
        self.client_rates = ClientRates(self.sessions, clock)
        self.spans = self._message_spans() if traced else None

    def _message_spans(self) -> MessageSpans:
        from ..metrics.message_spans import MessageSpans  # a broker without it needs no OpenTelemetry

        return MessageSpans(self.name, self.engine, self.notices)

    def _recover_queues(self) -> QueueMaker:
        """Create the queues that are in the store; return the factory for new ones."""
        engine = self.engine
        storage = Storage(
            operations=engine.operations,
            definitions=engine.definitions,
            loader=engine.loader,
            repartitioner=engine.repartitioner,
            payloads=engine.payloads,
            pages=engine.pages,
            collector=engine.collector,
            task_runs=engine.task_runs,
            state=engine.state,
            clock=engine.clock,
            wake=self.queues.wake_by_name,
        )
        around = Surroundings(
            clock=engine.clock,
            topology=engine.state.topology,
            readers=self.timed.transient_readers,
            dead_letter=self.dead_letters.add_transient,
            drop=self.queues.drop_transient,
        )
        maker = QueueMaker(storage, around, self.replays.start)
        self.queues.update((queue.name, maker.recover(queue)) for queue in engine.state.queues.values())
        self.timed.load()
        return maker

    # ------------------------------------------------------------------ life cycle
    def start(self, store: Store) -> None:
        """Start the background tasks. ``store`` puts dead letters, and tasks on completion of jobs, into queues."""
        self._work(self.engine.upkeep.run())
        self._work(self.engine.history.run(lambda: self.traffic.total))
        if self.spans is not None:
            self._work(self.spans.run())
        self._work(self.dead_letters.run(store))
        self._work(self.replays.run())
        self._work(self.staging.router.run())
        self._work(self.job_control.run(store))

    def _work(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)
        task.add_done_callback(self.failure.watch)

    def tick(self) -> None:
        """Do periodic work. Called twice per second."""
        self.maintenance.tick()
        self.job_control.tick()
        self.policies.tick()
        self.recent_metrics.tick()
        self.client_rates.tick()
        self._watch_store()
        if self.engine.journal is not None:  # a turn takes as long as its commit, which blocks the loop
            seconds = self.engine.metrics.take_mean()
            self.flow.turn_seconds = min(max(seconds, LEAST_TURN_SECONDS), MOST_TURN_SECONDS)
        self._turn.gate.tick()
        if self.engine.stalled_seconds:
            self.flow.change(Reason.STORE, False)
        self.notices.tick()
        self.audit.tick()
        if self.loop.time() - self._renewed_at > _RENEW_SECONDS:
            self._renewed_at = self.loop.time()
            self.lease_expiry.renew()

    def _watch_store(self) -> None:
        """Log once when the store stops accepting writes, and once when it accepts them again."""
        extra = {"instance": self.name}
        stalled, before = self.engine.stalled_seconds, self._stalled_seconds
        if stalled and not before:
            what = "disk full?" if self.engine.journal is not None else "does the bucket answer?"
            text = "instance %s: the store has accepted no writes for %.0f s (%s); waiting"
            log.error(text, self.name, stalled, what, extra=extra)
        elif not stalled and before:
            log.info("instance %s: the store accepts writes again, after %.0f s", self.name, before, extra=extra)
        self._stalled_seconds = stalled
        if slow := self.engine.metrics.take_slow():
            text = "instance %s: %d commits were slow, the slowest took %.2f s"
            slowest = max(commit.seconds for commit in slow)
            self.notices.say(logging.WARNING, "slow commits", text, self.name, len(slow), slowest)
            if self.spans is not None:
                for commit in slow:
                    self.spans.slow_commit(commit)

    async def end_calls(self) -> None:
        """Stop long calls and commit their changes so far, or raise the commit's error.

        Raise StoreSilent if the store does not respond in time: uncommitted changes were not confirmed to any client.
        """
        ending = self.loop.create_task(self._end_calls())
        await asyncio.wait({ending}, timeout=_END_SECONDS)
        if not ending.done():
            ending.cancel()
            text = f"the store did not answer for {_END_SECONDS:g} s at the end: what was not confirmed is not stored"
            self.engine.commits.failure = StoreSilent(text, deadline_seconds=_END_SECONDS)
            raise self.engine.commits.failure
        ending.result()

    async def _end_calls(self) -> None:
        await self.maintenance.close()
        await self.background.close()
        if not self.failure.future.done():
            await self.engine.commits.commit()

    async def stop(self) -> None:
        self._turn.stop()
        self.policies.stop()
        self.timed.stop()
        for task in self._works:
            task.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)
        self.notices.close()
        self.audit.close()

    # ------------------------------------------------------------------ status
    def report(self) -> dict[str, Any]:
        """Return the report of the status call, without the queues."""
        return {
            **self.engine.report(), "sessions": len(self.sessions), "published": self.traffic.published,
            "delivered": self.traffic.delivered, "dead_letters": self.dead_letters.report(),
            "staging": self.staging.report(),
            "transient_queues": len(self.queues) - len(self.engine.state.queues),
            "maintenance": self.maintenance.report(),
        }  # fmt: skip

    async def queue_metrics(self) -> dict[str, Any]:
        """Return the encoded metrics of all stored queues, by name."""
        encoded_by_name = {}
        async for stored in TimeSlice().over(list(self.engine.state.queues.values())):
            messages, queue = stored.messages, self.queues.get(stored.name)
            metrics: dict[str, Any] = {
                "available": len(messages),
                "in_flight": len(messages.in_flight),
                "loaded_buckets": len(messages.buckets),
                "cold_buckets": len(messages.cold),
                "partitions": len(messages.partitions) - 1 if messages.partitions is not None else 0,
                "consumers": len(queue.consumers) if queue is not None else 0,
                "paused": queue is not None and queue.is_paused,
                "publishes_paused": queue is not None and queue.refuses_publishes,
            }
            replay = self.replays.report(stored.name)
            if replay is not None:
                metrics["replay"] = replay
            encoded_by_name[stored.name] = encoded(metrics)
        return encoded_by_name
