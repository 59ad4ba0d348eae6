"""All metrics of a broker, as ``docs/monitoring.md`` lists them: names, labels and what they say.

Names follow Prometheus' conventions: base units, ``_total`` for counters. The label for an instance of the broker (its
virtual host) is ``broker_instance``: Prometheus gives ``instance`` to each scraped address itself.
"""

from __future__ import annotations

from typing import NamedTuple

PREFIX = "opendata_queue_"
SLATE_PREFIX = "slatedb_"

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
_BROKER = ()
_INSTANCE = ("broker_instance",)
_QUEUE = ("broker_instance", "queue")


class Metric(NamedTuple):
    """One family; the name is without the prefix, with ``_total`` where it is a counter."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


#: of each queue; those of transient queues, and of queues past the limit, are summed
QUEUE_GAUGES = (
    Metric("messages_ready", GAUGE, _QUEUE, "Messages that could be delivered now."),
    Metric("messages_delayed", GAUGE, _QUEUE, "Messages that are not due yet: eta, countdown or retry delay."),
    Metric("messages_in_flight", GAUGE, _QUEUE, "Messages held by consumers (leases)."),
    Metric("consumers", GAUGE, _QUEUE, "Consumers of the queue."),
)
QUEUE_AGES = (
    Metric(
        "oldest_ready_message_age_seconds", GAUGE, _QUEUE,
        "Age of the oldest ready message, since its publish, eta, last claim or retry delay; 0 if there is "
        "none.",
    ),
    Metric(
        "newest_ready_message_age_seconds", GAUGE, _QUEUE,
        "Age of the newest ready message; 0 if there is none.",
    ),
)  # fmt: skip
#: by the name in QueueCounts
QUEUE_COUNTERS = {
    "published": Metric("messages_published_total", COUNTER, _QUEUE, "Messages put into the queue."),
    "delivered": Metric(
        "messages_delivered_total", COUNTER, _QUEUE, "Deliveries to consumers, including repeated ones."
    ),
    "redelivered": Metric(
        "messages_redelivered_total", COUNTER, _QUEUE, "Deliveries of messages that had been delivered before."
    ),
    "acked": Metric("messages_acked_total", COUNTER, _QUEUE, "Messages acknowledged."),
    "rejected": Metric(
        "messages_rejected_total", COUNTER, _QUEUE, "Messages rejected by a consumer without requeueing."
    ),
    "requeued": Metric(
        "messages_requeued_total", COUNTER, _QUEUE, "Messages requeued by a consumer, using up an attempt."
    ),
    "released": Metric(
        "messages_released_total",
        COUNTER,
        _QUEUE,
        "Messages returned before they were started, without using up an attempt.",
    ),
    "lease_expired": Metric(
        "leases_expired_total", COUNTER, _QUEUE, "Messages taken back from consumers that did not reconnect."
    ),
    "exhausted": Metric(
        "messages_exhausted_total", COUNTER, _QUEUE, "Messages that failed because they had no attempts left."
    ),
    "expired": Metric("messages_expired_total", COUNTER, _QUEUE, "Messages removed because they expired (TTL)."),
    "dropped": Metric(
        "messages_dropped_total", COUNTER, _QUEUE, "Messages removed because the queue exceeded its maximum length."
    ),
    "purged": Metric("messages_purged_total", COUNTER, _QUEUE, "Messages removed by purging the queue."),
    "dead_lettered": Metric(
        "messages_dead_lettered_total", COUNTER, _QUEUE, "Messages that left the queue as dead letters."
    ),
}
#: of each instance
INSTANCE = (
    Metric("queues", GAUGE, (*_INSTANCE, "kind"), "Queues by kind: stored or transient."),
    Metric(
        "sessions", GAUGE, (*_INSTANCE, "state"),
        "Client sessions: connected, or away and within their grace period.",
    ),
    Metric("leases", GAUGE, _INSTANCE, "Messages held by consumers in all queues."),
    Metric("buckets", GAUGE, (*_INSTANCE, "state"), "Buckets of stored queues: loaded into memory, or cold."),
    Metric("commit_duration_seconds", HISTOGRAM, _INSTANCE, "Time until a commit was durable."),
    Metric("commit_effects", HISTOGRAM, _INSTANCE, "Effects (publishes, claims, settlements, …) in a commit."),
    Metric("commit_size_bytes", HISTOGRAM, _INSTANCE, "Size of a commit."),
    Metric(
        "checkpoint_duration_seconds", HISTOGRAM, _INSTANCE,
        "Duration of a checkpoint, which writes one batch to SlateDB.",
    ),
    Metric("checkpoint_size_bytes", HISTOGRAM, _INSTANCE, "Size of the keys and values in a checkpoint."),
    Metric(
        "journal_bytes", GAUGE, _INSTANCE,
        "Size of the journal that the store does not contain yet; 0 without a journal.",
    ),
    Metric("journal_limit_bytes", GAUGE, _INSTANCE, "Size of the journal at which the broker refuses publishes."),
    Metric(
        "store_live_bytes", GAUGE, _INSTANCE,
        "Size of SlateDB's live tables, measured every ten seconds.",
    ),
    Metric(
        "store_limit_bytes", GAUGE, _INSTANCE,
        "Size beyond which the oldest settled messages are deleted early; 0 means no limit.",
    ),
    Metric(
        "messages_removed_early_total", COUNTER, _INSTANCE,
        "Settled messages deleted before their retention ended, because the store was too large.",
    ),
    Metric(
        "store_waiting_bytes", GAUGE, _INSTANCE,
        "Size of replaced tables that are not deleted yet, some because a checkpoint still needs them.",
    ),
    Metric(
        "store_checkpoints", GAUGE, (*_INSTANCE, "kind"),
        "Checkpoints that keep replaced tables: of readers, or of recent compactions.",
    ),
    Metric("store_stalled_seconds", GAUGE, _INSTANCE, "How long the store has accepted no writes; 0 if it does."),
    Metric("dead_letters_waiting", GAUGE, _INSTANCE, "Dead letters waiting to be published."),
    Metric(
        "dead_letters_total", COUNTER, (*_INSTANCE, "outcome"),
        "Dead letters by outcome: published, or dropped as unroutable, cycle (was in that queue before) or "
        "lost.",
    ),
    Metric("results_stored_total", COUNTER, _INSTANCE, "Results stored by tasks, including intermediate states."),
    Metric(
        "result_cache_bytes", GAUGE, _INSTANCE,
        "Size of cached results and chord parts that the store also contains.",
    ),
    Metric("chords_open", GAUGE, _INSTANCE, "Chords whose callback has not been sent."),
    Metric("chords_completed_total", COUNTER, _INSTANCE, "Chords whose callback was sent."),
    Metric("messages_collected_total", COUNTER, _INSTANCE, "Done and failed messages deleted after their retention."),
    Metric("maintenance_runs_total", COUNTER, (*_INSTANCE, "duty"), "Completed runs of a maintenance duty."),
    Metric(
        "maintenance_last_run_timestamp_seconds", GAUGE, (*_INSTANCE, "duty"),
        "Time of the last run of a duty, in seconds since the epoch; 0 if it never ran.",
    ),
    Metric("maintenance_last_run_duration_seconds", GAUGE, (*_INSTANCE, "duty"), "Duration of the last run of a duty."),
)  # fmt: skip
#: of the whole broker
BROKER = (
    Metric(
        "build_info", GAUGE, ("version", "slatedb_version", "python_version"), "Always 1; the labels have the versions."
    ),
    Metric("connections", GAUGE, _BROKER, "Open client connections."),
    Metric("connections_limit", GAUGE, _BROKER, "Maximum number of client connections."),
    Metric("connections_not_logged_in", GAUGE, _BROKER, "Open connections that have not logged in yet."),
    Metric("connections_opened_total", COUNTER, _BROKER, "Client connections opened."),
    Metric(
        "connections_refused_total", COUNTER, ("code",), "Connections refused or closed by the broker, by error code."
    ),
    Metric("requests_refused_total", COUNTER, ("code",), "Client calls answered with an error, by error code."),
    Metric("event_loop_delay_seconds", GAUGE, _BROKER, "How long this scrape waited for the broker's event loop."),
    Metric("snapshot_duration_seconds", GAUGE, _BROKER, "How long collecting the figures of this scrape took."),
)

ALL = (*QUEUE_GAUGES, *QUEUE_AGES, *QUEUE_COUNTERS.values(), *INSTANCE, *BROKER)
BY_NAME = {metric.name: metric for metric in ALL}
