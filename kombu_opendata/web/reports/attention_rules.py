"""Rules that find problems in the broker's reports: pure functions. docs/web.md has the thresholds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, computed_field

from ...protocol.messages import PartitionInfo
from ...queue_client.administration import Worker
from ...queue_client.metrics import QueueMetrics
from ...readable_text import age, counted, number
from .queue_metrics import Trend

#: ``bad``: tasks do not run, or soon will not. ``warn``: to be checked today. ``note``: possibly forgotten.
Severity = Literal["bad", "warn", "note"]
_SEVERITIES: tuple[Severity, ...] = ("bad", "warn", "note")
#: order of kinds within one severity
_ORDER = (
    "store_stalled", "not_active", "store_full", "memory_full", "not_consumed", "hanging", "failing", "growing",
)  # fmt: skip
#: a store that has accepted no writes for this time is stalled
STALLED_SECONDS = 2.0
#: share of a limit from which it is nearly reached
NEARLY = 0.9
#: duration for which an early removal of settled messages is reported
REMOVED_SECONDS = 3600.0
#: number of waiting dead letters that is a finding, because normally the next commit publishes them
DEAD_LETTERS = 100
#: clocks that differ by more make ages and deadlines wrong
CLOCK_SECONDS = 5.0
#: a queue grows if the number of ready messages has increased by this number and by this share
GROWN_MESSAGES, GROWN_SHARE = 20, 0.1
#: and if the ratio of published to settled messages is larger than this
PUBLISHED_RATIO = 1.05
#: minimum duration of a trend
TREND_SECONDS = 60.0
#: failures of the last ten minutes are bad from this share of what the queue settled, or from this number
FAILING_SHARE, FAILING_COUNT = 0.05, 100
#: a task hangs if its runtime exceeds the usual one by this factor, and this minimum
HANGS_TIMES, HANGS_SECONDS = 10.0, 10.0
#: a task without known runs is bad only after this time
SURELY_HANGS_SECONDS = 30.0
#: duration after which a message is held for too long, by a program or behind a task of its worker
HELD_SECONDS = 300.0
#: a partition starves if its oldest message has been ready for this time, while its queue delivers
STARVES_SECONDS = 300.0
#: number of the starving partitions of a queue that are findings
_STARVING = 3
#: a partition floods its queue if it has this number of waiting messages, and this share of all
FLOODS_MESSAGES, FLOODS_SHARE = 1000, 0.9
#: texts of the reasons of failures without an exception
_REASONS = {
    "timed_out": "timed out", "lost": "lost with its worker", "rejected": "rejected",
    "delivery_limit": "no attempts left", "raised": "raised", "": "not known",
}  # fmt: skip
#: number of exceptions that a sentence names
_NAMED = 3

_Hidden = Field(exclude=True)


@dataclass(frozen=True)
class AttentionFinding:
    """A problem as one sentence: ``before``, the name of the object, and ``after``.

    Attributes:
        kind: the kind of problem, one word for programs.
        subject: the name of the object, which may contain any text.
        view, query: the view of the web UI where the problem can be fixed, and its parameters.
        weight: the rank among findings of the same severity and kind; the largest comes first.
    """

    kind: str
    severity: Severity
    before: Annotated[str, _Hidden]
    subject: str
    after: Annotated[str, _Hidden]
    view: str
    query: dict[str, str] = field(default_factory=dict, hash=False)
    weight: Annotated[float, _Hidden] = 0.0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """The problem as a sentence."""
        return f"{self.before}{self.subject}{self.after}"


# ---------------------------------------------------------------------- input
@dataclass(frozen=True)
class TaskFailures:
    """Failures of a task in the last minutes, by exception or reason, the most frequent first.

    The name of the task is empty for messages that are no tasks.
    """

    task: str
    queue: str
    by_exception: tuple[tuple[str, int], ...]

    @property
    def count(self) -> int:
        """The number of all failures."""
        return sum(count for _name, count in self.by_exception)


@dataclass(frozen=True)
class Busy:
    """Messages of one task that one worker has held or run for long.

    Attributes:
        task: its name; empty for a message that is no task.
        task_id, message_id: ids of the oldest.
        running: whether the worker reported that the task began; otherwise it only holds the message.
        seconds: the duration for the oldest.
        count: the number of running messages, or of held ones if none runs.
        usual_seconds: the 95th percentile of the task's runtime; None if unknown.
        waiting: the number of messages that the worker holds beside the running ones.
    """

    task: str
    task_id: str
    message_id: int
    queue: str
    worker: str
    running: bool
    seconds: float
    count: int
    usual_seconds: float | None
    waiting: int = 0

    @property
    def hangs(self) -> bool:
        """True if the task runs for too long, or the message is held for too long."""
        if not self.running:
            return self.seconds >= HELD_SECONDS
        return self.seconds >= max(HANGS_SECONDS, HANGS_TIMES * (self.usual_seconds or 0))


@dataclass(frozen=True)
class AttentionInput:
    """All data at one moment.

    Attributes:
        queues: all queues except those that Celery creates for itself.
        trends: by queue; empty if the broker keeps no recent metrics.
        status: the broker's report; empty if the user may not see it.
        clock_ahead_seconds: the difference of the broker's clock to this host's.
        partitions: by queue, the partitions with the oldest ready messages, and the one with the largest backlog.
        leases_expired: by queue, in the last ten minutes, or since the first reading.
        expects_standby: there was a standby, or the web UI's URL names more than one broker.
    """

    now: datetime
    queues: list[QueueMetrics] = field(default_factory=list)
    trends: dict[str, Trend] = field(default_factory=dict)
    failures: list[TaskFailures] = field(default_factory=list)
    busy: list[Busy] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)
    clock_ahead_seconds: float = 0.0
    expects_standby: bool = False
    leases_expired: dict[str, int] = field(default_factory=dict)
    partitions: dict[str, tuple[list[PartitionInfo], PartitionInfo]] = field(default_factory=dict)


def findings(data: AttentionInput) -> list[AttentionFinding]:
    """Return the findings, the most severe first."""

    def rank(finding: AttentionFinding) -> tuple[int, int, str, float, str]:
        order = _ORDER.index(finding.kind) if finding.kind in _ORDER else len(_ORDER)
        return _SEVERITIES.index(finding.severity), order, finding.kind, -finding.weight, finding.subject

    return sorted([*_broker_findings(data), *_queue_findings(data), *_task_findings(data)], key=rank)


# ---------------------------------------------------------------------- the broker and its store
def _broker_findings(data: AttentionInput) -> Iterator[AttentionFinding]:
    if abs(data.clock_ahead_seconds) >= CLOCK_SECONDS:
        relation = "ahead of" if data.clock_ahead_seconds > 0 else "behind"
        text = f" is {age(abs(data.clock_ahead_seconds))} {relation} the clock of the web UI's host: ages are wrong."
        yield _on_broker("clock", "warn", "The broker's clock", text)
    if not data.status:
        return
    yield from _process(data.status, data)
    instances = data.status.get("instances", {})
    for name, report in instances.items():
        where = f" of instance {name}" if len(instances) > 1 else ""
        yield from _instance(report, where, data)


def _on_broker(kind: str, severity: Severity, subject: str, after: str, weight: float = 0.0) -> AttentionFinding:
    return AttentionFinding(kind, severity, "", subject, after, "store", {}, weight)


def _process(status: dict[str, Any], data: AttentionInput) -> Iterator[AttentionFinding]:
    if status.get("state", "active") != "active":
        text = f" is {status['state']}: another broker takes its place, or it is starting."
        yield _on_broker("not_active", "bad", "The broker", text)
    memory = status.get("memory") or {}
    used, limit = memory.get("resident_bytes", 0), memory.get("limit_bytes", 0)
    if memory.get("is_full"):
        text = f" has reached its limit of {limit >> 20:,} MiB: publishers wait until consumers have caught up."
        yield _on_broker("memory_full", "bad", "The broker's memory", text)
    elif limit and used > NEARLY * limit:
        text = f" is at {used / limit:.0%} of its limit, at which publishers wait."
        yield _on_broker("memory", "warn", "The broker's memory", text)
    if data.expects_standby and not status.get("standbys"):
        text = " is connected: no broker takes over if this broker's host fails."
        yield _on_broker("no_standby", "warn", "No standby", text)
    open_now, most = status.get("connections", 0), status.get("connections_limit", 0)
    if most and open_now > NEARLY * most:
        before, text = "The broker has nearly all of its ", f": {number(open_now)} of {number(most)}"
        text += "; beyond, clients are refused."
        yield AttentionFinding("connections", "warn", before, "connections", text, "workers")


def _instance(report: dict[str, Any], where: str, data: AttentionInput) -> Iterator[AttentionFinding]:
    stalled = report.get("stalled_seconds", 0.0)
    if stalled >= STALLED_SECONDS:
        text = f"{where} has taken no writes for {age(stalled)}: publishes wait or are refused."
        yield _on_broker("store_stalled", "bad", "The store", text)
    letters = report.get("dead_letters", {}).get("waiting", 0)
    if letters >= DEAD_LETTERS:
        text = f"{where} wait to be published: see whether their queues are full."
        yield _on_broker("dead_letters", "warn", counted(letters, "dead letter"), text, letters)
    disk = report.get("disk", {})
    size, limit = disk.get("size_bytes", 0), disk.get("limit_bytes", 0)
    since = data.now.timestamp() - disk.get("removed_at_ms", 0) / 1000
    if disk.get("is_stuck"):
        text = f"{where} is larger than its limit, and there is nothing settled to remove: consume, purge or give room."
        yield _on_broker("store_full", "bad", "The store", text)
    elif disk.get("removed_early") and since < REMOVED_SECONDS:
        text = f"{where} is at its limit: {counted(disk['removed_early'], 'settled message')} removed early."
        yield _on_broker("removed_early", "warn", "The store", text)
    elif limit and size > NEARLY * limit:
        text = f"{where} is at {size / limit:.0%} of its limit: soon the oldest settled messages are removed early."
        yield _on_broker("store_large", "warn", "The store", text)


# ---------------------------------------------------------------------- queues
def _queue_findings(data: AttentionInput) -> Iterator[AttentionFinding]:
    hanging = Counter[str]()
    for busy in data.busy:
        if busy.hangs:
            hanging[busy.queue] += busy.count
    for queue in data.queues:
        trend = data.trends.get(queue.queue)
        if queue.paused or queue.publishes_paused:
            paused = " and ".join(["deliveries"] * queue.paused + ["publishes"] * queue.publishes_paused)
            text = f" is paused ({paused}): {counted(queue.ready, 'message')} ready."
            yield _on_queue("paused", "note", queue, text, queue.ready)
        elif queue.ready > 0 and queue.consumers == 0 and queue.delivered_per_second == 0:
            # neither a consumer nor a polling program receives them
            oldest = f", the oldest for {age(queue.oldest_age_seconds)}" if queue.oldest_age_seconds is not None else ""
            text = f" has no consumers: {_ready(queue)}{oldest}."
            yield _on_queue("not_consumed", "bad", queue, text, queue.ready)
        elif trend is not None and _grows(queue, trend):
            yield _growing(queue, trend, hanging[queue.queue])
        if expired := data.leases_expired.get(queue.queue):
            text = f" got {counted(expired, 'message')} back from workers that did not come back."
            yield _on_queue("leases_expired", "warn", queue, text, expired)
        if queue.queue in data.partitions:
            yield from _partition_findings(queue, *data.partitions[queue.queue])


def _partition_findings(
    queue: QueueMetrics, oldest: list[PartitionInfo], largest: PartitionInfo
) -> Iterator[AttentionFinding]:
    """Yield the partitions that starve or flood; the largest has old messages anyway, and starves only at a limit."""

    def on(kind: str, key: str, after: str, weight: float) -> AttentionFinding:
        # no search finds the partition without a key; it is at the top of the page in this order
        query = {"queue": queue.queue} | ({"search": key} if key else {"order": order[kind]})
        text = f" of queue {queue.queue} {after}"
        return AttentionFinding(kind, "warn", "Partition ", key or "(no value)", text, "partitions", query, weight)

    order, backlog = {"starving": "oldest", "flooding": "backlog"}, queue.ready + queue.delayed
    others = [each for each in oldest if each.limited_by or each.key != largest.key]
    for partition in others[:_STARVING]:
        waited = partition.oldest_age_seconds or 0.0
        if waited >= STARVES_SECONDS and queue.delivered_per_second > 0:
            reason = f", limited by {partition.limited_by}" if partition.limited_by else ""
            text = f"starves: its oldest message is ready for {age(waited)}{reason}."
            yield on("starving", partition.key, text, waited)
    if largest.backlog >= FLOODS_MESSAGES and FLOODS_SHARE * backlog <= largest.backlog < backlog:
        text = f"has {number(largest.backlog)} of its {number(backlog)} waiting messages."
        yield on("flooding", largest.key, text, largest.backlog)


def _on_queue(kind: str, severity: Severity, queue: QueueMetrics, after: str, weight: float) -> AttentionFinding:
    return AttentionFinding(kind, severity, "Queue ", queue.queue, after, "queue", {"name": queue.queue}, weight)


def _ready(queue: QueueMetrics) -> str:
    return f"{counted(queue.ready, 'message')} {'is' if queue.ready == 1 else 'are'} ready"


def may_grow(queue: QueueMetrics) -> bool:
    """Return True if a queue is full enough to request its trend."""
    return queue.ready >= GROWN_MESSAGES


def _grows(queue: QueueMetrics, trend: Trend) -> bool:
    grown = queue.ready - trend.ready_before
    return (
        trend.seconds >= TREND_SECONDS
        and grown >= GROWN_MESSAGES
        and grown >= GROWN_SHARE * trend.ready_before
        and trend.published > PUBLISHED_RATIO * trend.settled
    )


def _growing(queue: QueueMetrics, trend: Trend, hanging: int) -> AttentionFinding:
    per_second = (queue.ready - trend.ready_before) / trend.seconds
    in_an_hour = int(queue.ready + 3600 * per_second)
    text = (
        f" grows: {number(queue.ready)} ready, {number(trend.ready_before)} {age(trend.seconds)} ago; "
        f"at this pace {number(in_an_hour)} in an hour."
    )
    if hanging:
        text += f" {number(hanging)} of its tasks {'hangs' if hanging == 1 else 'hang'}."
    return _on_queue("growing", "warn", queue, text, per_second)


# ---------------------------------------------------------------------- tasks and workers
def _task_findings(data: AttentionInput) -> Iterator[AttentionFinding]:
    for failing in data.failures:
        yield _failing(failing, data)
    for busy in data.busy:
        if busy.hangs:
            yield _hanging(busy, data)
    for worker in data.workers:
        held = worker.held + worker.running
        if held and not worker.connected:
            text = f" has disconnected and still holds {counted(held, 'message')}, which others get soon."
            yield _on_worker("worker_gone", "warn", worker, text)
        elif worker.suspended:
            yield _on_worker("suspended", "note", worker, " is suspended and gets no messages.")


def _on_worker(kind: str, severity: Severity, worker: Worker, after: str) -> AttentionFinding:
    return AttentionFinding(kind, severity, "Worker ", worker.name or worker.id, after, "workers", {}, worker.held)


def _failing(failing: TaskFailures, data: AttentionInput) -> AttentionFinding:
    trend = data.trends.get(failing.queue)
    finished = max(trend.settled, failing.count) if trend is not None else 0
    share = failing.count / finished if finished else 0.0
    reasons = failing.by_exception[:_NAMED]
    if len(failing.by_exception) == 1 and reasons[0][0] not in _REASONS:
        text = f" raises {reasons[0][0]}: {failing.count:,} in ten minutes"
    else:
        texts = ", ".join(f"{_REASONS.get(name, name)} {count:,}" for name, count in reasons)
        more = ", …" if len(failing.by_exception) > len(reasons) else ""
        text = f" fails: {failing.count:,} in ten minutes ({texts}{more})"
    text += f", {share:.0%} of what its queue finished." if share >= 0.01 else "."
    severity: Severity = "bad" if share >= FAILING_SHARE or failing.count >= FAILING_COUNT else "warn"
    kind, subject = ("task", failing.task) if failing.task else ("queue", failing.queue)
    before = f"{kind.capitalize()} "
    return AttentionFinding("failing", severity, before, subject, text, "failed", {kind: subject}, failing.count)


def _hanging(busy: Busy, data: AttentionInput) -> AttentionFinding:
    others = [f"{busy.count - 1:,} more there"] * (busy.count > 1) + [f"{busy.waiting:,} more held"] * (
        busy.waiting > 0
    )
    more = f" (and {', '.join(others)})" if others else ""
    usual = ""
    if busy.usual_seconds is not None:
        short = f"{busy.usual_seconds:.2g} s" if busy.usual_seconds < 10 else age(busy.usual_seconds)
        usual = f"; it usually takes {short}"
    elif busy.running:
        usual = "; how long it usually takes is not known"
    verb = "has run for" if busy.running else "has been held for"
    text = f" {verb} {age(busy.seconds)} at {busy.worker or 'a worker without a name'}{more}{usual}."
    queue = next((candidate for candidate in data.queues if candidate.queue == busy.queue), None)
    if queue is not None and queue.ready and not (queue.delivered_per_second or queue.paused):
        text += f" Queue {queue.queue} delivers nothing: {_ready(queue)}."
    is_bad = busy.running and (busy.usual_seconds is not None or busy.seconds >= SURELY_HANGS_SECONDS)
    before, subject, id = "Task ", busy.task or busy.task_id, busy.task_id
    if not busy.task_id:
        before, subject, id = "Message ", str(busy.message_id), str(busy.message_id)
        text = f" of queue {busy.queue}{text}"
    severity: Severity = "bad" if is_bad else "warn"
    return AttentionFinding("hanging", severity, before, subject, text, "task", {"id": id}, busy.seconds)
