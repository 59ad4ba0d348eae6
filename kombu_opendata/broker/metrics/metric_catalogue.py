"""Catalogue of all metrics of a broker, as ``docs/monitoring.md`` lists them, their samples, and the text of a scrape.

Names follow Prometheus' conventions: base units, ``_total`` for counters. The label for an instance of the broker (its
virtual host) is ``broker_instance``, because Prometheus sets ``instance`` to the scraped address.

The text is in Prometheus' exposition format 0.0.4. prometheus_client needs about 25 µs of pure Python for a sample.
With thousands of samples this would delay the event loop noticeably, because threads share one interpreter. This module
needs an eighth of that time, and its thread yields the interpreter after each group of lines. prometheus_client renders
only the few samples of the process and of SlateDB.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

PREFIX = "opendata_queue_"
#: number of lines that are rendered without a pause, in about 0.1 ms
_PIECE = 100
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

#: bounds, the counts of the ranges, the sum of the values
Ranges = tuple[tuple[float, ...], tuple[int, ...], float]


class Metric(NamedTuple):
    """Metric family; its name has no prefix, and the suffix ``_total`` for a counter."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


def _metric(kind: str, own: tuple[str, ...], name: str, help: str, *labels: str) -> Metric:
    return Metric(name, kind, (*own, *labels), help)


_queue_gauge, _queue_counter = (partial(_metric, kind, ("broker_instance", "queue")) for kind in ("gauge", "counter"))
_gauge, _counter, _histogram = (
    partial(_metric, kind, ("broker_instance",)) for kind in ("gauge", "counter", "histogram")
)
_broker_gauge, _broker_counter = (partial(_metric, kind, ()) for kind in ("gauge", "counter"))

#: for each queue; transient queues, and queues beyond the limit, are summed
QUEUE_GAUGES = (
    _queue_gauge("messages_ready", "Messages that could be delivered now."),
    _queue_gauge("messages_delayed", "Messages that are not due yet: eta, countdown or retry delay."),
    _queue_gauge("messages_in_flight", "Messages held by consumers (leases)."),
    _queue_gauge("consumers", "Consumers of the queue."),
    _queue_gauge("paused", "Whether an operator has paused the queue, so that its consumers get nothing: 1 or 0."),
    _queue_gauge("publishes_paused", "Whether publishes to the queue are refused, because it is paused: 1 or 0."),
)
QUEUE_AGES = (
    _queue_gauge(
        "oldest_ready_message_age_seconds",
        "Age of the oldest ready message, since its publish, eta, last claim or retry delay; 0 if there is none.",
    ),
    _queue_gauge("newest_ready_message_age_seconds", "Age of the newest ready message; 0 if there is none."),
)
#: for the partitions of a queue with separate series: those with the largest backlogs, and the sum of the others
PARTITION_GAUGES = (
    _queue_gauge("partitions", "Partitions of the queue that have messages or running tasks."),
    _queue_gauge("partition_backlog", "Ready and delayed messages of the partition.", "partition"),
    _queue_gauge("partition_slots", "Messages of the partition in flight, and its running tasks.", "partition"),
)
#: by the name in QueueCounts
QUEUE_COUNTERS = {
    "published": _queue_counter("messages_published_total", "Messages put into the queue."),
    "delivered": _queue_counter("messages_delivered_total", "Deliveries to consumers, including repeated ones."),
    "redelivered": _queue_counter(
        "messages_redelivered_total", "Deliveries of messages that had been delivered before."
    ),
    "acked": _queue_counter("messages_acked_total", "Messages acknowledged."),
    "rejected": _queue_counter("messages_rejected_total", "Messages rejected by a consumer without requeueing."),
    "requeued": _queue_counter("messages_requeued_total", "Messages requeued by a consumer, using up an attempt."),
    "released": _queue_counter(
        "messages_released_total", "Messages returned before they were started, without using up an attempt."
    ),
    "lease_expired": _queue_counter(
        "leases_expired_total", "Messages taken back from consumers that did not reconnect."
    ),
    "exhausted": _queue_counter("messages_exhausted_total", "Messages that failed because they had no attempts left."),
    "expired": _queue_counter("messages_expired_total", "Messages removed because they expired (TTL)."),
    "dropped": _queue_counter(
        "messages_dropped_total", "Messages removed because the queue exceeded its maximum length."
    ),
    "purged": _queue_counter("messages_purged_total", "Messages removed by purging the queue."),
    "moved": _queue_counter("messages_moved_total", "Waiting messages moved to another queue."),
    "dead_lettered": _queue_counter("messages_dead_lettered_total", "Messages that left the queue as dead letters."),
}
#: for each instance
INSTANCE = (
    _gauge("queues", "Queues by kind: stored or transient.", "kind"),
    _gauge("sessions", "Client sessions: connected, or away and within their grace period.", "state"),
    _gauge("leases", "Messages held by consumers in all queues."),
    _gauge("buckets", "Buckets of stored queues: loaded into memory, or cold.", "state"),
    _histogram("commit_duration_seconds", "Time until a commit was durable."),
    _histogram("commit_effects", "Effects (publishes, claims, settlements, …) in a commit."),
    _histogram("commit_size_bytes", "Size of a commit."),
    _histogram("checkpoint_duration_seconds", "Duration of a checkpoint, which writes one batch to SlateDB."),
    _histogram("checkpoint_size_bytes", "Size of the keys and values in a checkpoint."),
    _gauge("journal_bytes", "Size of the journal that the store does not contain yet; 0 without a journal."),
    _gauge("journal_limit_bytes", "Size of the journal at which the broker refuses publishes."),
    _gauge("store_live_bytes", "Size of SlateDB's live tables, measured every ten seconds."),
    _gauge("store_limit_bytes", "Size beyond which the oldest settled messages are deleted early; 0 means no limit."),
    _counter(
        "messages_removed_early_total",
        "Settled messages deleted before their retention ended, because the store was too large.",
    ),
    _gauge(
        "store_waiting_bytes",
        "Size of replaced tables that are not deleted yet, some because a checkpoint still needs them.",
    ),
    _gauge("store_checkpoints", "Checkpoints that keep replaced tables: of readers, or of recent compactions.", "kind"),
    _gauge("store_stalled_seconds", "How long the store has accepted no writes; 0 if it does."),
    _gauge("dead_letters_waiting", "Dead letters waiting to be published."),
    _counter(
        "dead_letters_total",
        "Dead letters by outcome: published, or dropped as unroutable, cycle (was in that queue before) or lost.",
        "outcome",
    ),
    _counter("results_stored_total", "Results stored by tasks, including intermediate states."),
    _gauge("result_cache_bytes", "Size of cached results and chord parts that the store also contains."),
    _gauge("chords_open", "Chords whose callback has not been sent."),
    _counter("chords_completed_total", "Chords whose callback was sent."),
    _gauge("jobs_active", "Spark jobs with tasks that have not ended."),
    _gauge("job_tasks", "Tasks of these jobs, all together, by state.", "state"),
    _counter("messages_collected_total", "Done and failed messages deleted after their retention."),
    _counter("maintenance_runs_total", "Completed runs of a maintenance duty.", "duty"),
    _gauge(
        "maintenance_last_run_timestamp_seconds",
        "Time of the last run of a duty, in seconds since the epoch; 0 if it never ran.",
        "duty",
    ),
    _gauge("maintenance_last_run_duration_seconds", "Duration of the last run of a duty.", "duty"),
)
#: for each task
TASKS = (
    _counter("task_runs_total", "Runs of tasks that ended, by their outcome.", "task", "state"),
    _histogram("task_runtime_seconds", "How long a task ran.", "task"),
    _histogram("task_waiting_seconds", "Time from when its message was due to the task's start.", "task"),
)
#: for the whole broker
BROKER = (
    _broker_gauge(
        "build_info", "Always 1; the labels have the versions.", "version", "slatedb_version", "python_version"
    ),
    _broker_gauge("memory_bytes", "Memory that the broker's process uses."),
    _broker_gauge("memory_limit_bytes", "Memory above which publishers wait; 0 means no limit."),
    _broker_gauge("memory_full", "1 while publishers wait because the memory is full, else 0."),
    _broker_gauge("publishers_waiting", "Connections with publishes that wait for memory or for the store."),
    _broker_gauge("active", "1 while this broker serves its store; 0 at a standby, at the start and at the end."),
    _broker_gauge("standbys", "Connected standbys that could take over now."),
    _broker_gauge("connections", "Open client connections."),
    _broker_gauge("connections_limit", "Maximum number of client connections."),
    _broker_gauge("connections_not_logged_in", "Open connections that have not logged in yet."),
    _broker_counter("connections_opened_total", "Client connections opened."),
    _broker_counter("connections_refused_total", "Connections refused or closed by the broker, by error code.", "code"),
    _broker_counter("requests_refused_total", "Client calls answered with an error, by error code.", "code"),
    _broker_gauge(
        "tls_certificate_expiry_timestamp_seconds",
        "When a TLS certificate ends, in seconds since the epoch: the server's, or the first of client_ca.",
        "certificate",
    ),
    _broker_gauge("event_loop_delay_seconds", "How long this scrape waited for the broker's event loop."),
    _broker_counter("event_loop_slow_steps_total", "Steps of the event loop that took over 5 ms, by cause.", "cause"),
    _broker_counter("event_loop_slow_seconds_total", "Duration of these steps.", "cause"),
    _broker_gauge("snapshot_duration_seconds", "How long collecting the metrics of this scrape took."),
)

ALL = (*QUEUE_GAUGES, *QUEUE_AGES, *PARTITION_GAUGES, *QUEUE_COUNTERS.values(), *INSTANCE, *TASKS, *BROKER)
BY_NAME = {metric.name: metric for metric in ALL}


class MetricsSnapshot:
    """Samples by the metric's name: a value, or a histogram's ranges, for each tuple of label values."""

    def __init__(self) -> None:
        self.samples: dict[str, dict[tuple[str, ...], float | Ranges]] = defaultdict(dict)

    def set(self, name: str, value: float | Ranges, *labels: str) -> None:
        assert len(labels) == len(BY_NAME[name].labels), name
        self.samples[name][labels] = value


def render(snapshot: MetricsSnapshot) -> bytes:
    """Render all families of the catalogue, including those without samples."""
    parts: list[str] = []
    lines: list[str] = []
    for line in _lines(snapshot):
        lines.append(line)
        if len(lines) >= _PIECE:
            parts.append("".join(lines))
            lines.clear()
            time.sleep(0)  # yield the interpreter to the loop, which would otherwise wait 5 ms for it
    return "".join((*parts, *lines)).encode()


def _lines(snapshot: MetricsSnapshot) -> Iterator[str]:
    label_texts: dict[tuple[str, ...], dict[tuple[str, ...], str]] = {}
    for metric in ALL:
        name = PREFIX + metric.name
        yield f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind}\n"
        texts = label_texts.setdefault(metric.labels, {})
        for labels, value in snapshot.samples.get(metric.name, {}).items():
            text = texts.get(labels)
            if text is None:
                pairs = zip(metric.labels, labels, strict=True)
                text = texts[labels] = ",".join(f'{label}="{escape(value)}"' for label, value in pairs)
            if isinstance(value, tuple):
                yield _histogram_lines(name, text, value)
            elif text:
                yield f"{name}{{{text}}} {value}\n"
            else:
                yield f"{name} {value}\n"


def escape(value: str) -> str:
    """Escape the value of a label."""
    return value.translate(_ESCAPES)


def _histogram_lines(name: str, labels: str, ranges: Ranges) -> str:
    bounds, counts, total = ranges
    rows = [f'{name}_bucket{{{labels},le="{bound}"}} {count}\n' for bound, count in cumulated(bounds, counts)]
    return "".join((*rows, f"{name}_count{{{labels}}} {sum(counts)}\n", f"{name}_sum{{{labels}}} {total}\n"))


def cumulated(bounds: Iterable[float], counts: Iterable[int]) -> list[tuple[str, int]]:
    """Return a histogram's cumulative buckets: upper bounds, and the number of values up to each."""
    total = 0
    buckets = []
    for bound, count in zip([*(str(float(bound)) for bound in bounds), "+Inf"], counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets
