"""Calls about metrics of queues: their messages, counters and rates, due times, and periodic tasks."""

from __future__ import annotations

from typing import Any

from ...protocol import messages as m
from ...protocol.framing import encoded
from ...storage.clock import Clock, TimeSlice
from ..delivery.queue_registry import Queues
from ..metrics.metrics_changes import InstanceChanges
from ..metrics.metrics_memory import MetricsMemory
from ..metrics.periodic_tasks import PeriodicTaskTracker
from ..metrics.queue_depths import DueTimes, levels
from ..model.queue import BrokerQueue
from .dispatch import BrokerCalls, Context, check_range, handles

#: maximum number of queues in one reply
MAX_QUEUES = 1000
#: maximum number of buckets of a histogram, and maximum length of a bucket: a year
MAX_BUCKETS = 1000
MAX_BUCKET_MS = 366 * 86_400_000


class MetricsCalls(BrokerCalls):
    """Calls that read the metrics of queues, and their schedules."""

    _queues: Queues
    _memory: MetricsMemory
    _periodic: PeriodicTaskTracker
    _clock: Clock
    _changes: InstanceChanges

    @handles(m.GetMetrics)
    async def get_metrics(self, call: Context, msg: m.GetMetrics) -> m.Metrics:
        may_watch = call.session.rights.may_watch
        queues = [call.queue(name) for name in msg.queues]
        mark, deleted = 0, None
        if not queues and msg.since >= 0:
            mark, queues, deleted = await self._changes.since(msg.since)
        elif not queues:
            queues = list(self._queues.values())
        if not msg.queues:
            queues = [queue for queue in queues if not queue.deleting and may_watch(queue.name)]
        metrics, pace = {}, TimeSlice()
        async for queue in pace.over(queues):
            metrics[queue.name] = encoded(await self._metrics_of(queue, pace))
        deleted = None if deleted is None else [name for name in deleted if may_watch(name)]
        return m.Metrics(msg.rid, self._clock.now_ms(), metrics, mark, deleted)

    async def _metrics_of(self, queue: BrokerQueue, pace: TimeSlice) -> dict[str, Any]:
        now = self._clock.now_ms()
        ready, in_flight, delayed = await levels(queue.messages, now, pace)
        oldest, newest = await _ages(queue, now)
        return {
            "length": ready + in_flight + delayed, "visible": ready, "in_flight": in_flight, "delayed": delayed,
            "oldest_age_seconds": oldest, "newest_age_seconds": newest, "consumers": len(queue.consumers),
            "paused": queue.is_paused, "publishes_paused": queue.refuses_publishes, **await queue.settled(),
            **queue.counts.as_dict(), **self._memory.rates(queue), "counted_since_ms": queue.counts.since_ms,
        }  # fmt: skip

    @handles(m.GetRecentMetrics)
    async def get_recent_metrics(self, call: Context, msg: m.GetRecentMetrics) -> m.RecentMetrics:
        check_range("the number of queues", len(msg.queues), 0, MAX_QUEUES)
        memory, series = self._memory, {}
        numbers, times = memory.points(msg.since_ms)
        async for queue in TimeSlice().over(self._queues.existing(dict.fromkeys(msg.queues))):
            series[queue.name] = encoded(memory.of(queue, numbers))
        total = encoded(memory.total(numbers)) if "monitor" in call.session.rights.roles else None
        return m.RecentMetrics(msg.rid, times, series, total)

    @handles(m.CountDue)
    async def count_due(self, call: Context, msg: m.CountDue) -> m.DueCountsReply:
        check_range("the length of a bucket in ms", msg.bucket_ms, 1, MAX_BUCKET_MS)
        check_range("the number of buckets", msg.number, 1, MAX_BUCKETS)
        may_watch = call.session.rights.may_watch
        queues = [call.queue(name) for name in msg.queues] or [
            queue for queue in self._queues.values() if not queue.deleting and may_watch(queue.name)
        ]
        now = self._clock.now_ms()
        due_times, pace = DueTimes(now // msg.bucket_ms * msg.bucket_ms, msg.bucket_ms, msg.number), TimeSlice()
        async for queue in pace.over(queues):
            await due_times.add(queue.messages, now, pace)
        counts, later = due_times.counts()
        return m.DueCountsReply(msg.rid, now, due_times.start_ms, counts, later, due_times.is_estimate)

    @handles(m.ListPeriodicTasks)
    def list_periodic_tasks(self, call: Context, msg: m.ListPeriodicTasks) -> None:
        may_watch = call.session.rights.may_watch
        entries = [entry for entry in reversed(self._periodic.entries.values()) if may_watch(entry.queue)]
        call.reply(m.PeriodicTaskList(msg.rid, entries, self._periodic.since_ms))


async def _ages(queue: BrokerQueue, now: int) -> tuple[float | None, float | None]:
    """Return the ages of the oldest and the newest message in seconds, in flight or not; None if there is none."""
    messages = queue.messages
    cold = messages.cold.values()
    groups = [ids for ids in (messages.available, messages.in_flight) if ids]
    if not groups and not cold:
        return None, None
    oldest = min([*map(min, groups), *(summary.lowest_id for summary in cold)])
    newest = max([*map(max, groups), *(summary.highest_id for summary in cold)])
    return await queue.age_seconds(oldest, now), await queue.age_seconds(newest, now)
