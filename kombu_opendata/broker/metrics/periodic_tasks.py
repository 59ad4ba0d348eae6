"""Periodic tasks that Celery's beat has published since startup.

A header that beat sets identifies a periodic task. The name of the schedule's entry is known if the message has it, as
with django-celery-beat. A retry has the headers of the task that it repeats, so it is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...protocol.messages import PeriodicTaskEntry

#: the headers that identify a periodic task
BEAT, ENTRY_NAME = "celery_beat_task", "periodic_task_name"
#: maximum number of entries; the oldest publishes are removed first
MAX_ENTRIES = 1000


class PeriodicTaskTracker:
    """Periodic tasks that were published since ``since_ms``; ``entries`` are by name, task and queue."""

    def __init__(self, now_ms: int) -> None:
        self.since_ms = now_ms
        self.entries: dict[tuple[str, str, str], PeriodicTaskEntry] = {}  # the newest publish last

    def published(self, headers: Mapping[str, str], queues: Iterable[str], id: int, now_ms: int) -> None:
        """Record the publish of a periodic task."""
        if headers.get("retries", "0") != "0":
            return
        for queue in queues:
            key = headers.get(ENTRY_NAME, ""), headers.get("task", ""), queue
            last = self.entries.pop(key, None)
            count, first_at_ms = (last.count, last.first_at_ms) if last is not None else (0, now_ms)
            interval_ms = now_ms - last.last_at_ms if last is not None else 0
            self.entries[key] = PeriodicTaskEntry(*key, count + 1, first_at_ms, now_ms, interval_ms, id)
        while len(self.entries) > MAX_ENTRIES:
            del self.entries[next(iter(self.entries))]
