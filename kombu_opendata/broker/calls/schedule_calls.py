"""Calls about the schedule: due times of delayed messages, and periodic tasks."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import RequestError
from ...protocol.messages import schedule_messages as s
from ...storage.clock import Clock
from ..delivery.queues import Queues
from ..delivery.time_slices import TimeSlice
from ..metrics.periodic_tasks import PeriodicTaskTracker
from ..metrics.queue_depths import DueTimes
from .dispatch.context import Context
from .dispatch.registry import handles

#: maximum number of buckets of a histogram, and maximum length of a bucket: a year
MAX_BUCKETS = 1000
MAX_BUCKET_MS = 366 * 86_400_000


@dataclass(frozen=True, slots=True)
class ScheduleCalls:
    """The calls about the schedule of one instance."""

    _queues: Queues
    _periodic: PeriodicTaskTracker
    _clock: Clock

    @handles(s.CountDue)
    async def count_due(self, call: Context, msg: s.CountDue) -> s.DueCountsReply:
        _check(msg.bucket_ms, MAX_BUCKET_MS, "a bucket of {} ms: use 1 to {} ms")
        _check(msg.number, MAX_BUCKETS, "{} buckets: use 1 to {}")
        may_watch = call.session.rights.may_watch
        queues = [call.queue(name) for name in msg.queues] or [
            queue for queue in self._queues.values() if not queue.deleting and may_watch(queue.name)
        ]
        now = self._clock.now_ms()
        due_times, pace = DueTimes(now // msg.bucket_ms * msg.bucket_ms, msg.bucket_ms, msg.number), TimeSlice()
        async for queue in pace.over(queues):
            await due_times.add(queue.messages, now, pace)
        counts, later = due_times.counts()
        return s.DueCountsReply(msg.rid, now, due_times.start_ms, counts, later, due_times.is_estimate)

    @handles(s.ListPeriodicTasks)
    def list_periodic_tasks(self, call: Context, msg: s.ListPeriodicTasks) -> None:
        may_watch = call.session.rights.may_watch
        entries = [
            s.PeriodicTaskEntry(
                *entry, times.count, times.first_at_ms, times.last_at_ms,
                times.last_at_ms - times.before_ms if times.before_ms else 0, times.last_message_id,
            )
            for entry, times in reversed(self._periodic.entries.items())
            if may_watch(entry.queue)
        ]  # fmt: skip
        call.reply(s.PeriodicTaskList(msg.rid, entries, self._periodic.since_ms))


def _check(value: int, highest: int, text: str) -> None:
    if not 1 <= value <= highest:
        raise RequestError(text.format(value, highest), value=value, limit=highest)
