"""Measurements of the storage: histograms of commits and checkpoints; number, age and bytes of a queue's messages.

A commit only adds its measures to a list, which is counted twice a second; no work is done per message.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from time import perf_counter as stopwatch
from typing import NamedTuple

from ..messages.payloads import read_sizes
from ..records import active, keys
from ..slatedb.store_reads import Reads
from ..state.cold_summaries import Summary
from ..state.queue_buckets import QueueEntry
from ..state.queue_state import QueueState

__all__ = ["EngineMetrics", "Histogram", "MeasuredCommit", "Standing", "stopwatch"]

#: bounds of a histogram of seconds, for a write with its sync: from a tenth of a millisecond to a stall
SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
COUNTS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0)
BYTES = tuple(float(1 << power) for power in range(8, 29, 2))  # 256 bytes to 256 MiB
#: messages between two yields of :meth:`Standing.look`; about a tenth of a millisecond
_PIECE = 2000
#: messages of one bucket that are read; further ones, which only a transient queue has, count as ready
_MAX_OF_BUCKET = 10_000


class Histogram:
    """The number of observed values in each range.

    Attributes:
        bounds: the upper bound of each range, ascending; one more range has no bound.
        counts: the number of values in each range; not cumulative.
        sum: the sum of all values.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class MeasuredCommit(NamedTuple):
    """A commit; without effects it only synced an earlier one. ``ended_at`` is a time of :func:`stopwatch`."""

    seconds: float
    effects: int
    size: int
    ended_at: float


class EngineMetrics:
    """The histograms of one engine.

    Attributes:
        commits: the commits that :meth:`count_commits` has not counted yet.
        commit_seconds: the time from the first byte of a commit until it is durable.
        commit_effects, commit_bytes: the size of a commit; without a journal the bytes of its batch.
        checkpoint_seconds, checkpoint_bytes: the duration and size of the batches that were written to SlateDB.
        last_checkpoint: the end, the duration and the size of the last checkpoint, for the status; zeros before it.
        slow_commits: the counted commits longer than ``slow_seconds`` since :meth:`take_slow`.
    """

    __slots__ = (
        "_totals", "checkpoint_bytes", "checkpoint_seconds", "commit_bytes", "commit_effects", "commit_seconds",
        "commits", "last_checkpoint", "slow_commits", "slow_seconds",
    )  # fmt: skip

    def __init__(self, slow_seconds: float) -> None:
        self.commits: list[MeasuredCommit] = []
        self.commit_seconds = Histogram(SECONDS)
        self.commit_effects = Histogram(COUNTS)
        self.commit_bytes = Histogram(BYTES)
        self.checkpoint_seconds = Histogram(SECONDS)
        self.checkpoint_bytes = Histogram(BYTES)
        self.slow_seconds = slow_seconds
        self.slow_commits: list[MeasuredCommit] = []
        self._totals = (0.0, 0)
        self.last_checkpoint: dict[str, float] = {"at_ms": 0, "seconds": 0.0, "bytes": 0}

    def count_commits(self) -> None:
        """Add the commits since the last call to the histograms."""
        for commit in self.commits:
            self.commit_seconds.observe(commit.seconds)
            if commit.effects:
                self.commit_effects.observe(commit.effects)
                self.commit_bytes.observe(commit.size)
            if commit.seconds > self.slow_seconds:
                self.slow_commits.append(commit)
        self.commits.clear()

    def checkpointed(self, seconds: float, size: int, at_ms: int) -> None:
        self.last_checkpoint = {"at_ms": at_ms, "seconds": round(seconds, 4), "bytes": size}
        self.checkpoint_seconds.observe(seconds)
        self.checkpoint_bytes.observe(size)

    def take_mean(self) -> float:
        """Return the mean duration of the commits since the last call, in seconds; 0 if there was none."""
        self.count_commits()
        seconds, count = self._totals
        self._totals = (self.commit_seconds.sum, sum(self.commit_seconds.counts))
        return (self._totals[0] - seconds) / max(self._totals[1] - count, 1)

    def take_slow(self) -> list[MeasuredCommit]:
        """Return the slow commits since the last call."""
        self.count_commits()
        slow, self.slow_commits = self.slow_commits, []
        return slow


class Standing:
    """The number and age of the available messages of one queue.

    Attributes:
        available: the number of messages, visible or not.
        delayed: the number of messages that are not visible yet.
        oldest_at_ms, newest_at_ms: the times at which the first and the last of the ready messages became ready; 0 if
            none is ready. A message becomes ready when it is published, or when its ETA or retry delay ends. For a
            message that was returned without delay, the time of its claim counts.
    """

    __slots__ = ("available", "delayed", "newest_at_ms", "oldest_at_ms")

    def __init__(self) -> None:
        self.available = self.delayed = self.oldest_at_ms = self.newest_at_ms = 0

    @property
    def ready(self) -> int:
        return self.available - self.delayed

    @classmethod
    def of(cls, messages: QueueState, now: int) -> Standing:
        """Return the standing of a queue, in one step."""
        standing = cls()
        for _ in standing.look(messages, now):
            pass
        return standing

    def look(self, messages: QueueState, now: int) -> Iterator[None]:
        """Read a queue in pieces: a caller that reads many queues yields to other tasks after each piece.

        If delayed messages of a cold bucket have become visible since its eviction, ``delayed`` is an estimate.
        """
        piece = 0
        for bucket in list(messages.buckets.values()):
            if not bucket.available:
                continue
            for entry in islice(bucket.available.values(), _MAX_OF_BUCKET):
                self._add(entry.visible_at, now)
            piece += min(len(bucket.available), _MAX_OF_BUCKET)
            if piece >= _PIECE:
                piece = 0
                yield
        for summary in list(messages.cold.values()):
            self.delayed += summary.delayed_at(now)
            if summary.first_visible_at <= now:
                self._add(summary.first_visible_at, now)
            if summary.last_visible_at <= now:
                self._add(summary.last_visible_at, now)
            piece += 1
            if piece >= _PIECE:
                piece = 0
                yield
        self.available = len(messages)
        self.delayed = min(self.delayed, self.available)

    def _add(self, visible_at: int, now: int) -> None:
        if visible_at > now:
            self.delayed += 1
            return
        if visible_at < self.oldest_at_ms or not self.oldest_at_ms:
            self.oldest_at_ms = visible_at
        if visible_at > self.newest_at_ms:
            self.newest_at_ms = visible_at


async def measure_bytes(store: Reads, messages: QueueState) -> None:
    """Count the bytes of a queue's messages. Publishes and deliveries may continue during the count."""
    messages.count_bytes(True)
    measured_ids: set[int] = set()
    measured: dict[int, Summary] = {}
    while True:  # other buckets may be loaded or evicted during the reads
        loaded = (*messages.available.values(), *messages.in_flight.values())
        entries = [entry for entry in loaded if not entry.size and entry.id not in measured_ids]
        cold = {
            number: summary
            for number, summary in messages.cold.items()
            if 0 in messages.cold.sizes.get(number, (0,)) and measured.get(number) is not summary
        }
        if not entries and not cold:
            return
        await _measure_loaded(store, messages, entries)
        measured_ids.update(entry.id for entry in entries)
        for number, summary in cold.items():
            await _measure_bucket(store, messages, number, summary)
        measured |= cold


async def _measure_loaded(store: Reads, messages: QueueState, entries: list[QueueEntry]) -> None:
    for entry, size in zip(entries, await read_sizes(store, [entry.id for entry in entries]), strict=True):
        messages.set_size(entry, size)


async def _measure_bucket(store: Reads, messages: QueueState, number: int, summary: Summary) -> None:
    key = keys.active_key(messages.name, number)
    value = await store.get(key)
    if value is None or messages.cold.get(number) is not summary:
        return
    sizes = await read_sizes(store, [row[0] for row in active.decode(key, value)[0]])
    if messages.cold.get(number) is summary:
        messages.measure(number, sizes)
