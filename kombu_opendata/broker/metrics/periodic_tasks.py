"""The periodic tasks that were published since startup, as marked by Celery's beat.

Beat's own mark identifies a periodic task; the name of its entry is known if the message has it, as with
django-celery-beat. A retry has the marks of the task that it repeats, so it is not counted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

#: the headers that identify a periodic task
BEAT, ENTRY_NAME = "celery_beat_task", "periodic_task_name"
#: maximum number of entries, those that were published last
MAX_ENTRIES = 1000


class PeriodicEntry(NamedTuple):
    """A periodic task in one queue; the name of beat's entry may be empty."""

    name: str
    task: str
    queue: str


@dataclass(slots=True)
class PublishTimes:
    """The publishes of an entry; times are ms since the epoch, and ``before_ms`` is 0 until the second publish."""

    count: int = 0
    first_at_ms: int = 0
    before_ms: int = 0
    last_at_ms: int = 0
    last_message_id: int = 0


class PeriodicTaskTracker:
    """The periodic tasks that were published since ``since_ms``."""

    def __init__(self, now_ms: int) -> None:
        self.since_ms = now_ms
        self.entries: OrderedDict[PeriodicEntry, PublishTimes] = OrderedDict()

    def published(self, headers: Mapping[str, str], queues: Iterable[str], id: int, now_ms: int) -> None:
        """Record the publish of a periodic task."""
        if headers.get("retries", "0") != "0":
            return
        for queue in queues:
            entry = PeriodicEntry(headers.get(ENTRY_NAME, ""), headers.get("task", ""), queue)
            sent = self.entries.setdefault(entry, PublishTimes(first_at_ms=now_ms))
            sent.count += 1
            sent.before_ms, sent.last_at_ms, sent.last_message_id = sent.last_at_ms, now_ms, id
            self.entries.move_to_end(entry)
        while len(self.entries) > MAX_ENTRIES:
            self.entries.popitem(last=False)
