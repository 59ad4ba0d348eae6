"""Findings about queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ....queue_client.queue_models import QueueMetrics
from ....readable_text import age, counted, number
from ..figures.recent_figures import Trend
from .finding import AttentionFinding, Severity
from .seen import Seen
from .task_rules import hangs

#: a queue grows if the number of ready messages has increased by this number and by this share
GROWN_MESSAGES, GROWN_SHARE = 20, 0.1
#: and if the ratio of published to settled messages is larger than this
PUBLISHED_RATIO = 1.05
#: minimum duration of a trend
TREND_SECONDS = 60.0


def queue_findings(seen: Seen) -> Iterator[AttentionFinding]:
    """Yield the findings about queues."""
    hanging = Counter[str]()
    for busy in filter(hangs, seen.busy):
        hanging[busy.queue] += busy.count
    for queue in seen.queues:
        trend = seen.trends.get(queue.queue)
        if queue.paused or queue.publishes_paused:
            yield _paused(queue)
        elif _is_abandoned(queue):
            yield _abandoned(queue)
        elif trend is not None and _grows(queue, trend):
            yield _growing(queue, trend, hanging[queue.queue])
        if seen.leases_expired.get(queue.queue):
            yield _leases(queue, seen.leases_expired[queue.queue])


def _finding(
    kind: str, severity: Severity, before: str, queue: QueueMetrics, after: str, weight: float
) -> AttentionFinding:
    return AttentionFinding(kind, severity, before, queue.queue, after, "queue", {"name": queue.queue}, weight)


def _paused(queue: QueueMetrics) -> AttentionFinding:
    scope = "deliveries and publishes" if queue.paused and queue.publishes_paused else (
        "deliveries" if queue.paused else "publishes"
    )  # fmt: skip
    text = f" is paused ({scope}): {counted(queue.visible, 'message')} ready."
    return _finding("paused", "note", "Queue ", queue, text, queue.visible)


def _is_abandoned(queue: QueueMetrics) -> bool:
    """Return True if messages are ready and neither a consumer nor a polling program receives them."""
    return queue.visible > 0 and queue.consumers == 0 and queue.delivered_per_second == 0


def _abandoned(queue: QueueMetrics) -> AttentionFinding:
    oldest = f", the oldest for {age(queue.oldest_age_seconds)}" if queue.oldest_age_seconds is not None else ""
    ready = f"{counted(queue.visible, 'message')} {'is' if queue.visible == 1 else 'are'} ready"
    return _finding("not_consumed", "bad", "Queue ", queue, f" has no consumers: {ready}{oldest}.", queue.visible)


def may_grow(queue: QueueMetrics) -> bool:
    """Return True if a queue is full enough to request its trend."""
    return queue.visible >= GROWN_MESSAGES


def _grows(queue: QueueMetrics, trend: Trend) -> bool:
    grown = queue.visible - trend.ready_before
    return (
        trend.seconds >= TREND_SECONDS
        and grown >= GROWN_MESSAGES
        and grown >= GROWN_SHARE * trend.ready_before
        and trend.published > PUBLISHED_RATIO * trend.settled
    )


def _growing(queue: QueueMetrics, trend: Trend, hanging: int) -> AttentionFinding:
    per_second = (queue.visible - trend.ready_before) / trend.seconds
    in_an_hour = int(queue.visible + 3600 * per_second)
    text = (
        f" grows: {number(queue.visible)} ready, {number(trend.ready_before)} {age(trend.seconds)} ago; "
        f"at this pace {number(in_an_hour)} in an hour."
    )
    if hanging:
        text += f" {number(hanging)} of its tasks {'hangs' if hanging == 1 else 'hang'}."
    return _finding("growing", "warn", "Queue ", queue, text, per_second)


def _leases(queue: QueueMetrics, expired: int) -> AttentionFinding:
    text = f" got {counted(expired, 'message')} back from workers that did not come back."
    return _finding("leases_expired", "warn", "Queue ", queue, text, expired)
