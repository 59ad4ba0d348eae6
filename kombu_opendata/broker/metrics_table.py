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
    Metric("messages_delayed", GAUGE, _QUEUE, "Messages that wait for their time: eta, countdown, a delayed retry."),
    Metric("messages_in_flight", GAUGE, _QUEUE, "Messages that consumers hold (leases)."),
    Metric("consumers", GAUGE, _QUEUE, "Consumers of the queue."),
)
QUEUE_AGES = (
    Metric(
        "oldest_ready_message_age_seconds", GAUGE, _QUEUE,
        "How long the message has been ready that waits longest: since its publish, eta, last claim or retry delay. "
        "0: none is.",
    ),
    Metric(
        "newest_ready_message_age_seconds", GAUGE, _QUEUE,
        "How long the message has been ready that waits shortest. 0: none is.",
    ),
)  # fmt: skip
#: by the name in QueueCounts
QUEUE_COUNTERS = {
    "published": Metric("messages_published_total", COUNTER, _QUEUE, "Messages put into the queue."),
    "delivered": Metric("messages_delivered_total", COUNTER, _QUEUE, "Messages claimed by consumers, each time."),
    "redelivered": Metric(
        "messages_redelivered_total", COUNTER, _QUEUE, "Of the delivered ones, those that were delivered before."
    ),
    "acked": Metric("messages_acked_total", COUNTER, _QUEUE, "Messages settled as done."),
    "rejected": Metric("messages_rejected_total", COUNTER, _QUEUE, "Messages that a consumer refused for good."),
    "requeued": Metric(
        "messages_requeued_total", COUNTER, _QUEUE, "Messages given back by a consumer at the cost of an attempt."
    ),
    "released": Metric("messages_released_total", COUNTER, _QUEUE, "Messages given back unstarted, at no cost."),
    "lease_expired": Metric(
        "leases_expired_total", COUNTER, _QUEUE, "Messages taken back from consumers that did not come back."
    ),
    "exhausted": Metric(
        "messages_exhausted_total", COUNTER, _QUEUE, "Messages that failed because no attempt was left."
    ),
    "expired": Metric("messages_expired_total", COUNTER, _QUEUE, "Messages removed past their deadline (TTL)."),
    "dropped": Metric("messages_dropped_total", COUNTER, _QUEUE, "Messages removed over the queue's maximum length."),
    "purged": Metric("messages_purged_total", COUNTER, _QUEUE, "Messages removed by a purge."),
    "dead_lettered": Metric(
        "messages_dead_lettered_total", COUNTER, _QUEUE, "Messages that left the queue as dead letters."
    ),
}
#: of each instance
INSTANCE = (
    Metric("queues", GAUGE, (*_INSTANCE, "kind"), "Queues, stored or transient."),
    Metric("sessions", GAUGE, (*_INSTANCE, "state"), "Clients' sessions: connected, or away for their grace."),
    Metric("leases", GAUGE, _INSTANCE, "Messages that consumers hold, in all queues."),
    Metric("buckets", GAUGE, (*_INSTANCE, "state"), "Buckets of stored queues, loaded into memory or cold."),
    Metric("commit_duration_seconds", HISTOGRAM, _INSTANCE, "Time that a commit took until it was safe."),
    Metric("commit_effects", HISTOGRAM, _INSTANCE, "Effects (publishes, claims, settlements, …) of a commit."),
    Metric("commit_size_bytes", HISTOGRAM, _INSTANCE, "Size of a commit."),
    Metric("checkpoint_duration_seconds", HISTOGRAM, _INSTANCE, "Time that a checkpoint took: one batch for SlateDB."),
    Metric("checkpoint_size_bytes", HISTOGRAM, _INSTANCE, "Size of a checkpoint's keys and values."),
    Metric("journal_bytes", GAUGE, _INSTANCE, "Journal files that the store does not hold yet. 0 without a journal."),
    Metric("journal_limit_bytes", GAUGE, _INSTANCE, "Size of the journal at which publishes are refused."),
    Metric(
        "store_live_bytes", GAUGE, _INSTANCE,
        "Size of SlateDB's tables in use, as of the last look (every ten seconds).",
    ),
    Metric(
        "store_limit_bytes", GAUGE, _INSTANCE,
        "Size past which the oldest settled messages go early. 0: no limit.",
    ),
    Metric(
        "messages_removed_early_total", COUNTER, _INSTANCE,
        "Settled messages removed before their retention was over, as the store was too large.",
    ),
    Metric(
        "store_waiting_bytes", GAUGE, _INSTANCE,
        "Size of tables that were replaced and wait to be deleted, or for a checkpoint that keeps them.",
    ),
    Metric(
        "store_checkpoints", GAUGE, (*_INSTANCE, "kind"),
        "Checkpoints that keep replaced tables: a reader's, or a compaction's for its first seconds.",
    ),
    Metric("store_stalled_seconds", GAUGE, _INSTANCE, "How long the store has taken no writes. 0: it does."),
    Metric("dead_letters_waiting", GAUGE, _INSTANCE, "Dead letters that are not published yet."),
    Metric(
        "dead_letters_total", COUNTER, (*_INSTANCE, "outcome"),
        "Dead letters by what became of them: published, or dropped as unroutable, cycle (was there before) or lost.",
    ),
    Metric("results_stored_total", COUNTER, _INSTANCE, "Results that tasks stored, the states on the way included."),
    Metric("result_cache_bytes", GAUGE, _INSTANCE, "Results and chords' parts in memory that the store has, too."),
    Metric("chords_open", GAUGE, _INSTANCE, "Chords whose callback was not sent yet."),
    Metric("chords_completed_total", COUNTER, _INSTANCE, "Chords whose callback was sent."),
    Metric("messages_collected_total", COUNTER, _INSTANCE, "Done and failed messages removed after their retention."),
    Metric("maintenance_runs_total", COUNTER, (*_INSTANCE, "duty"), "How often a duty was done."),
    Metric(
        "maintenance_last_run_timestamp_seconds", GAUGE, (*_INSTANCE, "duty"),
        "When a duty was done last, seconds since the epoch. 0: never.",
    ),
    Metric("maintenance_last_run_duration_seconds", GAUGE, (*_INSTANCE, "duty"), "How long that took."),
)  # fmt: skip
#: of the whole broker
BROKER = (
    Metric("build_info", GAUGE, ("version", "slatedb_version", "python_version"), "Always 1; the labels say it."),
    Metric("connections", GAUGE, _BROKER, "Open connections of clients."),
    Metric("connections_limit", GAUGE, _BROKER, "How many connections the broker takes."),
    Metric("connections_not_logged_in", GAUGE, _BROKER, "Open connections that have not logged in yet."),
    Metric("connections_opened_total", COUNTER, _BROKER, "Connections that clients opened."),
    Metric("connections_refused_total", COUNTER, ("code",), "Connections that were refused or cut off, by error."),
    Metric("requests_refused_total", COUNTER, ("code",), "Calls of clients that were answered by an error."),
    Metric(
        "event_loop_delay_seconds", GAUGE, _BROKER, "How long this scrape waited for its turn in the broker's loop."
    ),
    Metric("snapshot_duration_seconds", GAUGE, _BROKER, "How long the figures of this scrape took to collect."),
)

ALL = (*QUEUE_GAUGES, *QUEUE_AGES, *QUEUE_COUNTERS.values(), *INSTANCE, *BROKER)
BY_NAME = {metric.name: metric for metric in ALL}
