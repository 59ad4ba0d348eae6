"""Collection of the data for findings from the broker, without the parts that the user may not see."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, TypeVar

from ...errors import AccessRefused, NotFound, PreconditionFailed
from ...protocol.messages import MessageInfo, PartitionInfo
from ...protocol.queue_arguments import PARTITION_BY
from ...queue_client.administration import Worker
from ...queue_client.metrics import QueueMetrics
from ..user_clients import UserBroker
from .attention_rules import HANGS_SECONDS, AttentionFinding, AttentionInput, Busy, TaskFailures, findings, may_grow
from .queue_metrics import Trend, all_queues, recent_metrics, trend

T = TypeVar("T")

#: maximum ages of the parts
_SECONDS = 8.0
_USUAL_SECONDS = 60.0
#: age up to which failures are findings
WINDOW = timedelta(minutes=10)
#: limit of the messages in flight that are examined, the oldest first
_MESSAGES = 200
#: limit of the tasks that are compared with their usual runtime
_TASKS = 8
#: interval between two readings of the counters
_LOOK_SECONDS = 30.0
#: limit of the queues whose recent metrics are requested
_QUEUES = 50
#: limit of the queues whose partitions are requested
_PARTITIONED = 10
#: number of the partitions of a queue, those with the oldest ready messages, that are requested
_OLDEST = 5
_RUNS = 50


async def attention(broker: UserBroker) -> list[AttentionFinding]:
    """Return the findings, the most severe first."""
    return findings(await _input(broker))


async def _input(broker: UserBroker) -> AttentionInput:
    client = broker.client
    metrics, status, workers, failures, busy = await asyncio.gather(
        all_queues(broker),
        _allowed(broker, "status", client.status, dict[str, Any]()),
        _allowed(broker, "workers", client.workers, list[Worker]()),
        _allowed(broker, "failing", lambda: _failures(broker), list[TaskFailures]()),
        _allowed(broker, "busy", lambda: _busy(broker), list[Busy]()),
    )
    broker.expects_standby |= bool(status.get("standbys") or status.get("standby_expected"))
    queues = metrics.queues
    return AttentionInput(
        datetime.now(UTC),
        queues,
        await _trends(broker, queues, failures),
        failures,
        busy,
        workers,
        status,
        metrics.clock_ahead_seconds,
        broker.expects_standby,
        _leases_expired(broker, queues),
        await _allowed(broker, "partitions", lambda: _partitions(broker, queues), {}),
    )


def _leases_expired(broker: UserBroker, queues: list[QueueMetrics]) -> dict[str, int]:
    """Return the leases that expired in each queue since the oldest reading of the last ten minutes."""
    now, readings = monotonic(), broker.lease_counts
    counts = {queue.queue: count for queue in queues if (count := queue.counts.get("lease_expired", 0))}
    if not readings or now - readings[-1][0] >= _LOOK_SECONDS:
        readings.append((now, counts))
    while now - readings[0][0] > WINDOW.total_seconds():
        readings.popleft()
    before = readings[0][1]
    return {name: count - before.get(name, 0) for name, count in counts.items() if count > before.get(name, 0)}


async def _partitions(
    broker: UserBroker, queues: list[QueueMetrics]
) -> dict[str, tuple[list[PartitionInfo], PartitionInfo]]:
    """Return the oldest partitions, and the largest one, of the fullest queues with partitions."""
    partitioned = {info.name for info in await broker.client.list_queues() if PARTITION_BY in info.effective}
    filled = sorted((queue for queue in queues if queue.queue in partitioned), key=lambda queue: -queue.ready)
    found: dict[str, tuple[list[PartitionInfo], PartitionInfo]] = {}
    for queue in filled[:_PARTITIONED]:
        with suppress(AccessRefused, NotFound):
            oldest = await broker.client.list_partitions(queue.queue, order="oldest", limit=_OLDEST)
            largest = await broker.client.list_partitions(queue.queue, limit=1)
            if oldest.partitions and largest.partitions:
                found[queue.queue] = oldest.partitions, largest.partitions[0]
    return found


async def _trends(broker: UserBroker, queues: list[QueueMetrics], failures: list[TaskFailures]) -> dict[str, Trend]:
    """Return the trends of the fullest queues that may grow, and of the queues with failures."""
    filling = [queue for queue in queues if may_grow(queue)]
    filling.sort(key=lambda queue: -queue.ready)
    names = sorted({*(queue.queue for queue in filling[:_QUEUES]), *(failing.queue for failing in failures[:_QUEUES])})
    if not names:
        return {}
    recent = await recent_metrics(broker, names)
    trends = {name: trend(recent, name) for name in names}
    return {name: value for name, value in trends.items() if value is not None}


async def _allowed(broker: UserBroker, key: Hashable, load: Callable[[], Awaitable[T]], otherwise: T) -> T:
    """Return a part, or ``otherwise`` if the user may not see it or the broker keeps no history.

    A refusal is cached like a result, for all views of the user.
    """
    try:
        return await broker.recent(key, _SECONDS, load)
    except (AccessRefused, PreconditionFailed):
        return otherwise


async def _failures(broker: UserBroker) -> list[TaskFailures]:
    since = datetime.now(UTC) - WINDOW
    answer = await broker.client.group_failures(["task", "queue", "exception", "reason"], gte=since)
    counts_by_task: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for group in answer.groups:
        task, queue, exception, reason = group.values
        counts_by_task[task, queue][exception or reason] += group.count
    return [TaskFailures(task, queue, tuple(counts.most_common())) for (task, queue), counts in counts_by_task.items()]


# ---------------------------------------------------------------------- long runs
async def _busy(broker: UserBroker) -> list[Busy]:
    """Return the messages that workers have held or run for long, by task and worker."""
    page = await broker.client.list_messages(statuses=["in_flight", "running"], order="asc", limit=_MESSAGES)
    now = datetime.now(UTC).timestamp()
    busy_by_worker: dict[tuple[str, str, str], Busy] = {}
    for message in page.items:
        for busy in _held(message, now):
            known = busy_by_worker.get((busy.task, busy.queue, busy.worker))
            busy_by_worker[busy.task, busy.queue, busy.worker] = busy if known is None else _joined(known, busy)
    slow = sorted(busy_by_worker.values(), key=lambda busy: -busy.seconds)[:_TASKS]
    usual = await asyncio.gather(*(_usual_seconds(broker, busy.task) for busy in slow))
    return [replace(busy, usual_seconds=seconds) for busy, seconds in zip(slow, usual, strict=True)]


def _held(message: MessageInfo, now: float) -> list[Busy]:
    task, id = message.headers.get("task", ""), message.headers.get("id", "")
    return [
        Busy(
            task=task,
            task_id=id if task else "",
            message_id=message.id,
            queue=status.queue,
            worker=status.consumer,
            running=status.status == "running",
            seconds=now - status.at_ms / 1000,
            count=1,
            usual_seconds=None,
        )
        for status in message.queues
        if status.status in ("in_flight", "running") and now - status.at_ms / 1000 >= HANGS_SECONDS
    ]


def _joined(busy: Busy, other: Busy) -> Busy:
    """Return two entries of the same task and worker as one: the running one, or the older one."""
    first, second = sorted((busy, other), key=lambda each: (not each.running, -each.seconds))
    if first.running == second.running:
        return replace(first, count=first.count + second.count, waiting=first.waiting + second.waiting)
    return replace(first, waiting=first.waiting + second.count)


async def _usual_seconds(broker: UserBroker, task: str) -> float | None:
    """Return the 95th percentile of the runtime of a task's last runs."""

    async def load() -> float | None:
        page = await broker.client.list_attempts(headers={"task": task}, states=["succeeded"], limit=_RUNS)
        times = sorted(attempt.runtime_ms / 1000 for attempt in page.items)
        return times[int(0.95 * len(times))] if times else None

    return await broker.recent(("usual", task), _USUAL_SECONDS, load) if task else None
