"""Metrics of a scrape. The event loop collects them in small pieces, so ten thousand queues delay no client.

The metrics of one queue are of one moment, unless it has many thousand messages in memory. The metrics of different
queues, and of the instance itself, may be some milliseconds apart.
"""

from __future__ import annotations

from collections import Counter
from heapq import nlargest

from ...protocol.task_reports import STATES
from ...storage.clock import TimeSlice
from ...storage.commit.measurements import EngineMetrics, Histogram, Standing
from ...storage.records.staged_jobs import END_STATES
from ...storage.state.partitions import Partitions
from ...storage.state.queue_counters import QueueCounts
from ..delivery.task_outcomes import TaskOutcomes
from ..instance.instance import Instance
from ..instance.maintenance import Maintenance
from ..metrics.metric_catalogue import QUEUE_AGES, QUEUE_COUNTERS, QUEUE_GAUGES, MetricsSnapshot, Ranges
from ..metrics.queue_depths import standing_of
from ..model.queue import BrokerQueue
from ..model.stored_queue import StoredQueue
from ..model.transient_queue import TransientQueue

#: labels for queues without separate series; a queue with such a name is counted there, too
OTHER, TRANSIENT = "(other)", "(transient)"
#: partitions of a queue with separate series
_MAX_PARTITIONS = 10
_SUMMED = {TransientQueue.kind: TRANSIENT}
_GAUGES = tuple(metric.name for metric in (*QUEUE_GAUGES, *QUEUE_AGES))
_COUNTERS = {counter: metric.name for counter, metric in QUEUE_COUNTERS.items()}


class _Row:
    """Metrics of one series of labels: one queue, or a sum of several."""

    def __init__(self) -> None:
        self.ready = self.delayed = self.in_flight = self.consumers = self.paused = self.publishes_paused = 0
        self.oldest_at_ms = self.newest_at_ms = 0
        self.counts = QueueCounts()

    def add(self, queue: BrokerQueue, standing: Standing) -> None:
        self.in_flight += len(queue.messages.in_flight)
        self.consumers += len(queue.consumers)
        self.paused += queue.is_paused
        self.publishes_paused += queue.refuses_publishes
        self.ready += standing.ready
        self.delayed += standing.delayed
        if standing.oldest_at_ms:
            self.oldest_at_ms = min(self.oldest_at_ms or standing.oldest_at_ms, standing.oldest_at_ms)
        self.newest_at_ms = max(self.newest_at_ms, standing.newest_at_ms)

    def put(self, snapshot: MetricsSnapshot, now: int, *labels: str) -> None:
        numbers = self.ready, self.delayed, self.in_flight, self.consumers, self.paused, self.publishes_paused
        ages = [max(now - at, 0) / 1000 if at else 0.0 for at in (self.oldest_at_ms, self.newest_at_ms)]
        for name, value in zip(_GAUGES, (*numbers, *ages), strict=True):
            snapshot.set(name, value, *labels)
        for counter, name in _COUNTERS.items():
            snapshot.set(name, getattr(self.counts, counter), *labels)


class InstanceView:
    """View of an instance: selects the queues with separate series, and keeps the counts of deleted queues.

    The first ``max_queues`` stored queues have separate series, and keep them, so that no counter decreases. A sum of
    several queues begins at 0 at startup: the counters of queues are stored, but those of deleted queues are not, so
    that a sum of stored counters would be lower after a restart.
    """

    def __init__(self, instance: Instance, max_queues: int) -> None:
        self._instance, self._max = instance, max_queues
        self._labelled: set[str] = set()
        self._others: set[str] = set()
        self._gone = {OTHER: QueueCounts(), TRANSIENT: QueueCounts()}
        self._went: dict[BrokerQueue, str] = {}  # deleted since the current collection began, with their labels
        instance.queues.watchers.append(self._queue_gone)

    def _queue_gone(self, queue: BrokerQueue) -> None:
        label = self._went[queue] = self._label(queue)
        if label in self._gone:
            self._gone[label].add_since_start(queue.counts)
        self._labelled.discard(queue.name)
        self._others.discard(queue.name)

    def _label(self, queue: BrokerQueue) -> str:
        name = queue.name
        if queue.kind in _SUMMED:
            return _SUMMED[queue.kind]
        if name in self._labelled:
            return name
        if name in self._others or len(self._labelled) >= self._max or name in self._gone:
            self._others.add(name)
            return OTHER
        self._labelled.add(name)
        return name

    async def collect(self, snapshot: MetricsSnapshot, pace: TimeSlice) -> None:
        """Add the instance's metrics.

        A sum includes the queues that exist at the beginning and the counts of queues that were deleted before. So a
        queue that is deleted during the collection is counted once, and sums never decrease.
        """
        instance = self._instance
        self._went.clear()
        rows = {label: _Row() for label in self._gone}
        for label, counts in self._gone.items():
            rows[label].counts.add(counts)
        now = instance.engine.clock.now_ms()
        kinds = Counter({StoredQueue.kind: 0, TransientQueue.kind: 0})
        loaded = Counter[str]()
        cold = 0
        async for queue in pace.over(list(instance.queues.values())):
            standing = await standing_of(queue.messages, now, pace)
            if queue in self._went:
                if (label := self._went[queue]) in self._gone:
                    rows[label].counts.add_since_start(queue.counts)
                continue
            label = self._label(queue)
            row = rows.setdefault(label, _Row())
            row.add(queue, standing)
            if label == queue.name and queue.messages.partitions is not None:
                await _put_partitions(snapshot, pace, queue.messages.partitions, instance.name, label)
            add = row.counts.add_since_start if label == OTHER else row.counts.add
            add(queue.counts)
            kinds[queue.kind] += 1
            loaded[queue.kind] += len(queue.messages.buckets)
            cold += len(queue.messages.cold)
        if not self._others and not any(rows[OTHER].counts.as_dict().values()):
            del rows[OTHER]
        async for label, row in pace.over(rows.items()):
            row.put(snapshot, now, instance.name, label)
        _put(snapshot, "queues", instance.name, **kinds)
        _put(snapshot, "buckets", instance.name, loaded=loaded[StoredQueue.kind], cold=cold)
        _put_instance(snapshot, instance)
        _put_jobs(snapshot, instance)
        _put_duties(snapshot, instance.name, instance.maintenance)
        _put_histograms(snapshot, instance.name, instance.engine.metrics)
        _put_tasks(snapshot, instance.name, instance.task_outcomes)


def _put(snapshot: MetricsSnapshot, metric: str, instance: str, /, **values: float) -> None:
    """Set samples that differ in a second label."""
    for label, value in values.items():
        snapshot.set(metric, value, instance, label)


def _put_instance(snapshot: MetricsSnapshot, instance: Instance) -> None:
    """Set the metrics that are not of a queue, all of one moment."""
    engine, name = instance.engine, instance.name
    sessions = instance.sessions.values()
    away = sum(session.connection is None for session in sessions)
    _put(snapshot, "sessions", name, connected=len(sessions) - away, away=away)
    leases = sum(map(len, engine.state.leases.values())) + sum(len(session.leases) for session in sessions)
    journal, results = engine.journal, engine.state.results
    letters = instance.dead_letters.report()
    disk = engine.disk_space.report()
    named_count = sum(bool(checkpoint["name"]) for checkpoint in disk["checkpoints"])
    _put(snapshot, "store_checkpoints", name, reader=named_count, compaction=len(disk["checkpoints"]) - named_count)
    plain = {
        "leases": leases,
        "journal_bytes": journal.waiting_bytes if journal is not None else 0,
        "journal_limit_bytes": journal.max_bytes if journal is not None else 0,
        "store_live_bytes": disk["live_bytes"],
        "store_limit_bytes": engine.size_limit.limit_bytes,
        "messages_removed_early_total": engine.size_limit.removed,
        "store_waiting_bytes": disk["waiting_bytes"],
        "store_stalled_seconds": engine.stalled_seconds,
        "dead_letters_waiting": letters.pop("waiting"),
        "results_stored_total": engine.results.stored,
        "result_cache_bytes": results.results.size_bytes + results.parts.size_bytes,
        "chords_open": len(results.chords),
        "chords_completed_total": engine.results.chords_completed,
        "messages_collected_total": instance.maintenance.collected,
    }
    for metric, value in plain.items():
        snapshot.set(metric, value, name)
    for outcome, count in letters.items():
        snapshot.set("dead_letters_total", count, name, outcome.removesuffix("s") if outcome == "cycles" else outcome)


def _put_jobs(snapshot: MetricsSnapshot, instance: Instance) -> None:
    """Set the number of jobs that have not ended, and the sums of their tasks: ids of jobs would be too many labels."""
    engine, name = instance.engine, instance.name
    jobs = [job for job in engine.state.staged.active if not job.settled_at_ms]
    ended = [sum(counts) for counts in zip(*(job.ended for job in jobs), strict=True)] or [0] * len(END_STATES)
    running = engine.staging.running().total() if jobs else 0
    waiting = sum(job.tasks for job in jobs) - sum(ended) - running
    snapshot.set("jobs_active", len(jobs), name)
    _put(snapshot, "job_tasks", name, waiting=waiting, running=running, **dict(zip(END_STATES, ended, strict=True)))


def _put_duties(snapshot: MetricsSnapshot, name: str, maintenance: Maintenance) -> None:
    for duty, last in maintenance.last.items():
        snapshot.set("maintenance_runs_total", last.runs, name, duty)
        snapshot.set("maintenance_last_run_timestamp_seconds", last.at_ms / 1000, name, duty)
        snapshot.set("maintenance_last_run_duration_seconds", last.seconds, name, duty)


def _put_histograms(snapshot: MetricsSnapshot, name: str, metrics: EngineMetrics) -> None:
    metrics.count_commits()
    for metric, histogram in {
        "commit_duration_seconds": metrics.commit_seconds,
        "commit_effects": metrics.commit_effects,
        "commit_size_bytes": metrics.commit_bytes,
        "checkpoint_duration_seconds": metrics.checkpoint_seconds,
        "checkpoint_size_bytes": metrics.checkpoint_bytes,
    }.items():
        snapshot.set(metric, _ranges(histogram), name)


def _put_tasks(snapshot: MetricsSnapshot, name: str, outcomes: TaskOutcomes) -> None:
    for task, runs in outcomes.tasks.items():
        for state, count in zip(STATES, runs.states, strict=True):
            if count:
                snapshot.set("task_runs_total", count, name, task, state)
        snapshot.set("task_runtime_seconds", _ranges(runs.runtime), name, task)
        snapshot.set("task_waiting_seconds", _ranges(runs.waiting), name, task)


def _ranges(histogram: Histogram) -> Ranges:
    return histogram.bounds, tuple(histogram.counts), histogram.sum


async def _put_partitions(snapshot: MetricsSnapshot, pace: TimeSlice, partitions: Partitions, *labels: str) -> None:
    """Add the partitions with the largest backlogs, and the sum of the others."""
    backlogs, slots = Counter[str](), Counter[str]()
    async for partition in pace.over(list(partitions.values())):
        if partition.waiting or partition.in_flight or partition.running:
            backlogs[partition.key] += partition.waiting
            slots[partition.key] += partition.in_flight + partition.running
    snapshot.set("partitions", len(backlogs), *labels)
    largest = nlargest(_MAX_PARTITIONS, backlogs, key=lambda key: (backlogs[key], slots[key], key))
    for name, counts in ("partition_backlog", backlogs), ("partition_slots", slots):
        for key in largest:
            snapshot.set(name, counts.pop(key), *labels, key)
        if counts:
            snapshot.set(name, counts.total(), *labels, OTHER)
