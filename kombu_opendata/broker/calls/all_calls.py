"""Composition of all calls of an instance."""

from __future__ import annotations

from uuid import uuid4

from ..instance.instance import Instance
from ..instance.queue_alterations import AlteredMessages
from ..metrics.metrics_changes import InstanceChanges
from ..metrics.periodic_tasks import PeriodicTaskTracker
from ..model.sessions import Session
from .admin_calls import AdminCalls, Directory
from .consume import ConsumeCalls
from .dispatch import Context, bind_handlers
from .exchange_calls import ExchangeCalls
from .failure_bulk import Bulks
from .history_calls import HistoryCalls
from .metrics_calls import MetricsCalls
from .publish import PublishCalls
from .queue_calls import QueueCalls
from .queue_client.claimed_messages import Claiming
from .queue_client.grouped_read import GroupedReads
from .queue_client.peek import PeekCalls
from .queue_client.read import ReadCalls
from .queue_client.send import SendCalls
from .queue_client.send_idempotency import SentKeys
from .queue_client.settle import Holders, SettleCalls
from .queue_client.worker_calls import WorkerCalls
from .replay_calls import ReplayCalls
from .result_calls import ResultCalls
from .staging_calls import StagingCalls


class InstanceCalls:
    """Calls of one instance's clients."""

    def __init__(self, instance: Instance, max_message_bytes: int, directory: Directory) -> None:
        i, engine, clock, largest = instance, instance.engine, instance.engine.clock, max_message_bytes
        state, topology, operations, commits = engine.state, engine.state.topology, engine.operations, engine.commits
        self._instance = instance
        self.lifecycle = instance.lifecycle  # begins and ends the clients' sessions
        self.run_id = instance.run_id  # random for each run of the instance
        self.flow = instance.flow
        self.queues = instance.queues  # the instance's queues
        periodic = PeriodicTaskTracker(clock.now_ms())
        #: puts messages into queues
        self.publishing = publishing = PublishCalls(
            operations, commits, engine.results, topology, i.queues, i.outbox, i.policies, i.traffic, largest, periodic,
            clock,
        )  # fmt: skip
        holders = Holders(i.sessions, i.timed)
        claiming = Claiming(i.sessions, i.leases, i.timed, engine.pages, i.background, clock, i.traffic)
        reads = ReadCalls(claiming, i.queues, i.outbox, GroupedReads(claiming, i.outbox))
        keys = SentKeys(i.queues, engine.idempotency, clock)
        altered = AlteredMessages(engine.store, engine.buckets, topology, clock)
        bulks = Bulks(
            engine.failures, state, engine.moves, engine.settled_moves, engine.payloads, commits, clock, publishing,
            i.queues, i.replays, i.outbox, lambda: str(uuid4()),
        )  # fmt: skip
        #: the handler of each message
        self.handlers = bind_handlers(
            publishing,
            reads,
            ConsumeCalls(i.queues, i.leases, i.lifecycle, i.outbox, i.background, commits, clock),
            AdminCalls(i.maintenance, directory),
            QueueCalls(i.queues, i.maker, engine.repeats, i.policies, altered, clock, i.warnings),
            ExchangeCalls(
                state, topology, engine.definitions, i.queues, i.replays, publishing, i.warnings, commits,
                engine.payloads, engine.pages,
            ),
            ResultCalls(engine.results, state.results.chords, i.results, i.sessions, commits, largest),
            ReplayCalls(i.replays, engine.router, state, engine.moves, engine.settled_moves, i.outbox, clock),
            HistoryCalls(engine.history, engine.failures, state, bulks, clock),
            MetricsCalls(
                i.queues, i.recent_metrics, periodic, clock, InstanceChanges(i.queues, i.recent_metrics, clock)
            ),
            StagingCalls(i.name, i.staging, engine.staging, state.running, largest),
            SendCalls(publishing, keys, operations, commits, i.policies),
            SettleCalls(i.leases, i.timed, holders, i.queues, i.outbox, clock),
            PeekCalls(holders, i.queues, engine.payloads, engine.pages, commits, engine.history),
            WorkerCalls(i.sessions, i.queues, i.leases, holders, reads, i.outbox, state.running, i.client_rates),
        )  # fmt: skip

    def context(self, session: Session) -> Context:
        instance = self._instance
        return Context(session, instance.outbox, instance.background, instance.queues, instance.name, instance.audit)
