"""Periodic tasks are known by their headers, retries are left out, and the list is bounded."""

from __future__ import annotations

from kombu_opendata.broker.metrics.periodic_tasks import (
    BEAT,
    ENTRY_NAME,
    MAX_ENTRIES,
    PeriodicTaskTracker,
)
from kombu_opendata.protocol.messages import PeriodicTaskEntry


def test_entries_are_counted() -> None:
    seen = PeriodicTaskTracker(1)
    seen.published({BEAT: "true", "task": "a", "retries": "0"}, ["q"], 7, 1000)
    seen.published({BEAT: "true", "task": "a"}, ["q", "other"], 8, 3000)
    seen.published({ENTRY_NAME: "nightly", "task": "a"}, ["q"], 9, 4000)
    seen.published({BEAT: "true", "task": "a", "retries": "1"}, ["q"], 10, 5000)
    assert list(seen.entries.values()) == [
        PeriodicTaskEntry("", "a", "q", 2, 1000, 3000, 2000, 8),
        PeriodicTaskEntry("", "a", "other", 1, 3000, 3000, 0, 8),
        PeriodicTaskEntry("nightly", "a", "q", 1, 4000, 4000, 0, 9),
    ]


def test_those_that_were_published_last_are_kept() -> None:
    seen = PeriodicTaskTracker(1)
    for number in range(MAX_ENTRIES):
        seen.published({BEAT: "true", "task": f"t{number}"}, ["q"], number, number)
    seen.published({BEAT: "true", "task": "t0"}, ["q"], 1, 5000)
    seen.published({BEAT: "true", "task": "new"}, ["q"], 2, 6000)
    tasks = [entry.task for entry in seen.entries.values()]
    assert (len(tasks), tasks[0], tasks[-2:]) == (MAX_ENTRIES, "t2", ["t0", "new"])
