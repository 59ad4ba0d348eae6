"""Operations on messages that somebody names by their ids, and leases for a time: what the queue client adds.

As all operations, each changes memory at once and notes an effect for the commit. Entries must be loaded
(:meth:`.loader.QueueLoader.find_entries`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .effects.by_id import Archive, Delay, Delete, Extend
from .effects.deliveries import Return, ReturnLater
from .operations import Operations
from .queue_buckets import Entry
from .state import UNLIMITED_ATTEMPTS, Queue


class OperationsById(Operations):
    """The operations, and these."""

    def extend(self, queue: Queue, entries: Iterable[Entry], lease_ms: int) -> int:
        """Have leases that nobody renews end in so many ms; returns when, ms since the epoch."""
        at = self.clock.now_ms()
        until = at + lease_ms
        pairs: list[int] = []
        for entry in entries:
            pairs += entry.id, entry.bucket
        self.commits.apply(Extend(queue.name, at, pairs, until))
        return until

    def delay(self, queue: Queue, entries: Iterable[Entry], delay_ms: int) -> None:
        """Make available messages visible in so many ms, sooner or later than they were."""
        at = self.clock.now_ms()
        pairs: list[int] = []
        for entry in entries:
            pairs += entry.id, entry.bucket
        self.commits.apply(Delay(queue.name, at, pairs, at + delay_ms))

    def release(self, queue: Queue, entries: Iterable[Entry], consumer: str, delay_ms: int) -> None:
        """in flight → available in so many ms, at no cost of an attempt."""
        at = self.clock.now_ms()
        pairs: list[int] = []
        for entry in entries:
            pairs += entry.id, entry.bucket
        self.commits.apply(ReturnLater(queue.name, at, pairs, False, consumer, at + delay_ms))

    def give_up(self, queue: Queue, entries: Iterable[Entry], consumer: str) -> None:
        """in flight → available at once, though the queue has a delay between attempts; failed if none is left."""
        at = self.clock.now_ms()
        pairs: list[int] = []
        spent: list[Entry] = []
        for entry in entries:
            if UNLIMITED_ATTEMPTS > queue.options.max_attempts <= entry.attempts:
                spent.append(entry)
                continue
            pairs += entry.id, entry.bucket
        if pairs:
            self.commits.apply(Return(queue.name, at, pairs, True, consumer))
        if spent:
            self.fail(queue, spent, consumer, "delivery_limit")

    def delete(self, queue: Queue, entries: Iterable[Entry]) -> None:
        """available or in flight → gone, without a trace in the done or failed messages."""
        at = self.clock.now_ms()
        pairs: list[int] = []
        for entry in entries:
            self.payloads.drop(entry.id)
            pairs += entry.id, entry.bucket
        self.commits.apply(Delete(queue.name, at, pairs))

    def archive(self, queue: Queue, entries: Sequence[Entry], operator: str) -> None:
        """available → done, without a claim."""
        at = self.clock.now_ms()
        pairs: list[int] = []
        for entry in entries:
            self.payloads.drop(entry.id)
            pairs += entry.id, entry.bucket
        self.commits.apply(Archive(queue.name, at, pairs, operator))
