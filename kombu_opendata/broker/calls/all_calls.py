"""The composition of all calls of an instance."""

from __future__ import annotations

from uuid import uuid4

from ..instance.instance import Instance
from ..instance.queue_alterations import AlteredMessages
from ..metrics.metrics_changes import InstanceChanges
from ..metrics.periodic_tasks import PeriodicTaskTracker
from ..model.sessions import Session
from .admin_calls import AdminCalls, Directory
from .alter_calls import AlterCalls
from .chord_calls import ChordCalls
from .consume import ConsumeCalls
from .dispatch.context import Context
from .dispatch.registry import bind_handlers
from .exchange_calls import ExchangeCalls
from .explain_routing import ExplainCalls
from .failures.bulk import Bulks
from .failures.failure_calls import FailureCalls
from .history_calls import HistoryCalls
from .publish import PublishCalls
from .queue_calls import QueueCalls
from .queue_client.claimed_messages import Claiming
from .queue_client.conditional_read import ConditionalReads
from .queue_client.figure_calls import FigureCalls
from .queue_client.lease_holders import Holders
from .queue_client.peek import PeekCalls
from .queue_client.queue_metrics import MetricsCalls
from .queue_client.read import ReadCalls
from .queue_client.send import SendCalls
from .queue_client.sent_keys import SentKeys
from .queue_client.settle import SettleCalls
from .queue_client.worker_calls import WorkerCalls
from .replay_calls import ReplayCalls
from .result_calls import ResultCalls
from .schedule_calls import ScheduleCalls
from .session_calls import SessionCalls
from .settled_calls import SettledCalls
from .staging_calls import StagingCalls


class InstanceCalls:
    """The calls of one instance's clients.

    Attributes:
        handlers: the handler of each message.
        publishing: puts messages into queues.
        lifecycle: begins and ends the clients' sessions.
        run_id: random for each run of the instance.
        queues: the instance's queues.
    """

    def __init__(
        self,
        instance: Instance,
        max_message_bytes: int,
        directory: Directory,
    ) -> None:
        i, engine, clock, largest = instance, instance.engine, instance.engine.clock, max_message_bytes
        state, topology, operations, commits = engine.state, engine.state.topology, engine.operations, engine.commits
        self._instance = instance
        self.lifecycle = instance.lifecycle
        self.run_id = instance.run_id
        self.flow = instance.flow
        self.queues = instance.queues
        periodic = PeriodicTaskTracker(clock.now_ms())
        self.publishing = PublishCalls(
            operations, commits, engine.results, topology, i.queues, i.outbox, i.policies, i.traffic, largest, periodic,
            clock,
        )  # fmt: skip
        holders = Holders(i.sessions, i.timed)
        uses = Claiming(i.sessions, i.leases, i.timed, engine.pages, i.background, clock, i.traffic)
        reads = ReadCalls(ConditionalReads(uses, i.outbox), uses, i.queues)
        chords = ChordCalls(engine.results, state.results.chords, i.sessions, commits, largest)
        keys = SentKeys(i.queues, engine.idempotency, clock)
        bulks = Bulks(
            engine.failures, state, engine.moves, engine.settled_moves, engine.payloads, commits, clock,
            self.publishing, i.queues, i.replays, i.outbox, lambda: str(uuid4()),
        )  # fmt: skip
        self.handlers = bind_handlers(
            self.publishing,
            ConsumeCalls(i.queues, i.leases, i.outbox, clock),
            SessionCalls(i.lifecycle, i.outbox, i.background, commits),
            AdminCalls(i.maintenance, directory),
            QueueCalls(i.queues, i.maker, engine.repeats, clock, i.warnings),
            AlterCalls(i.queues, i.policies, AlteredMessages(engine.store, engine.buckets, topology, clock), clock),
            ExchangeCalls(topology, engine.definitions, i.queues, i.replays, self.publishing, i.warnings),
            ExplainCalls(state, commits, engine.payloads, engine.pages),
            ResultCalls(engine.results, chords, i.results, largest),
            chords,
            ReplayCalls(i.replays, engine.router, state, clock),
            SettledCalls(engine.moves, engine.settled_moves, i.replays, clock, i.outbox),
            HistoryCalls(engine.history),
            FailureCalls(engine.failures, state, bulks, clock),
            ScheduleCalls(i.queues, periodic, clock),
            StagingCalls(i.name, i.staging, engine.staging, state.running, largest),
            SendCalls(self.publishing, keys, operations, commits, i.policies),
            reads,
            SettleCalls(i.leases, i.timed, holders, i.queues, i.outbox, clock),
            PeekCalls(holders, i.queues, engine.payloads, engine.pages, commits, engine.history),
            MetricsCalls(i.queues, i.figures, InstanceChanges(i.queues, i.figures, clock), clock),
            FigureCalls(i.queues, i.figures),
            WorkerCalls(i.sessions, i.queues, i.leases, holders, reads, i.outbox, state.running, i.client_rates),
        )

    def context(self, session: Session) -> Context:
        """Return the context of a session's calls."""
        instance = self._instance
        return Context(session, instance.outbox, instance.background, instance.queues, instance.name, instance.audit)
