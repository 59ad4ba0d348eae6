"""Composition of all calls of an instance."""

from __future__ import annotations

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
from .flow_calls import FlowCalls
from .history_calls import HistoryCalls
from .metrics_calls import MetricsCalls
from .publish import PublishCalls
from .queue_calls import QueueCalls
from .queue_client.claimed_messages import Claiming
from .queue_client.partition_read import PartitionReads
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
        engine, queues, outbox = instance.engine, instance.queues, instance.outbox
        state, commits, clock = engine.state, engine.commits, engine.clock
        self._instance = instance
        self.lifecycle = instance.lifecycle  # begins and ends the clients' sessions
        self.run_id = instance.run_id  # random for each run of the instance
        self.flow = instance.flow
        self.queues = queues
        periodic = PeriodicTaskTracker(clock.now_ms())
        #: puts messages into queues
        self.publishing = publishing = self._publish_calls(instance, max_message_bytes, periodic)
        holders = Holders(instance.sessions, instance.timed)
        claiming = Claiming(
            instance.sessions,
            instance.leases,
            instance.timed,
            engine.pages,
            instance.background,
            clock,
            instance.traffic,
        )
        reads = ReadCalls(claiming, queues, outbox, PartitionReads(claiming, outbox))
        keys = SentKeys(queues, engine.idempotency, clock)
        bulks = self._bulks(instance)
        altered = AlteredMessages(engine.store, engine.buckets, state.topology, clock)
        #: the handler of each message
        self.handlers = bind_handlers(
            publishing,
            reads,
            ConsumeCalls(queues, instance.leases, instance.lifecycle, outbox, instance.background, commits, clock),
            AdminCalls(instance.maintenance, directory),
            QueueCalls(queues, instance.maker, engine.repeats, instance.policies, altered, clock, instance.warnings),
            FlowCalls(engine.operations, queues, state.running, clock),
            self._exchange_calls(instance),
            ResultCalls(
                engine.results, state.results.chords, instance.results, instance.sessions, commits, max_message_bytes
            ),
            ReplayCalls(instance.replays, engine.router, state, engine.moves, engine.settled_moves, outbox, clock),
            HistoryCalls(engine.history, engine.failures, state, bulks, clock),
            MetricsCalls(
                queues,
                instance.recent_metrics,
                periodic,
                clock,
                InstanceChanges(queues, instance.recent_metrics, clock),
            ),
            self._staging_calls(instance, bulks, max_message_bytes),
            SendCalls(publishing, keys, engine.operations, commits, instance.policies),
            SettleCalls(instance.leases, instance.timed, holders, queues, outbox, clock),
            PeekCalls(holders, queues, engine.payloads, engine.pages, commits, engine.history),
            WorkerCalls(
                instance.sessions, queues, instance.leases, holders, reads, outbox, state.running, instance.client_rates
            ),
        )

    def _staging_calls(self, instance: Instance, bulks: Bulks, max_message_bytes: int) -> StagingCalls:
        engine = instance.engine
        return StagingCalls(
            instance.name,
            instance.staging,
            engine.staging,
            instance.job_control,
            bulks,
            engine.commits,
            engine.clock,
            max_message_bytes,
        )

    def _publish_calls(self, instance: Instance, max_message_bytes: int, periodic: PeriodicTaskTracker) -> PublishCalls:
        engine = instance.engine
        return PublishCalls(
            engine.operations,
            engine.unique_keys,
            engine.commits,
            engine.results,
            engine.staging,
            engine.state.topology,
            instance.queues,
            instance.outbox,
            instance.policies,
            instance.traffic,
            max_message_bytes,
            periodic,
            engine.clock,
        )

    def _bulks(self, instance: Instance) -> Bulks:
        engine = instance.engine
        return Bulks(
            engine.failures,
            engine.state,
            engine.moves,
            engine.settled_moves,
            engine.payloads,
            engine.commits,
            engine.clock,
            self.publishing,
            self.queues,
            instance.replays,
            instance.outbox,
        )

    def _exchange_calls(self, instance: Instance) -> ExchangeCalls:
        engine = instance.engine
        return ExchangeCalls(
            engine.state,
            engine.state.topology,
            engine.definitions,
            self.queues,
            instance.replays,
            self.publishing,
            instance.warnings,
            engine.commits,
            engine.payloads,
            engine.pages,
        )

    def context(self, session: Session) -> Context:
        instance = self._instance
        return Context(session, instance.outbox, instance.background, instance.queues, instance.name, instance.audit)
