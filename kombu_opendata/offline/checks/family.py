"""What the checks have in common: a family of record kinds, and what is known of the store as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...storage.records import keys
from ...storage.records.config import QueueConfig
from ...storage.records.keys import Key, RecordKind
from ...storage.records.options import QueueOptions
from ..findings import Finding
from ..records.message_scan import MessageFacts, Span
from ..records.offline_store import OfflineStore

_DAY_MS = 86_400_000
#: by how much clocks may disagree
SLACK_MS = _DAY_MS


@dataclass(slots=True)
class QueueFacts:
    """What the records say about a queue.

    Attributes:
        buckets: the numbers of its stored buckets, by kind; those of done and failed lists that have entries.
    """

    name: str
    config: QueueConfig | None = None
    options: QueueOptions | None = None
    is_counted: bool = False
    buckets: dict[RecordKind, list[int]] = field(default_factory=dict)
    filled: dict[RecordKind, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class Context:
    """What all checks may use.

    Attributes:
        now_ms: the clock.
        block_end: ids below it may be in use; None while no sequence block was seen.
        queues: by name.
        spans: of every bucket, for the pass over the messages.
        in_flight: (queue, message id) of every message in flight.
        blind: kinds of which a record could not be read or decoded, so what is missing may be in it.
    """

    store: OfflineStore
    now_ms: int
    block_end: int | None = None
    queues: dict[str, QueueFacts] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    in_flight: set[tuple[str, int]] = field(default_factory=set)
    blind: set[RecordKind] = field(default_factory=set)

    def queue(self, name: str) -> QueueFacts:
        """What is known of a queue, from now on."""
        found = self.queues.get(name)
        if found is None:
            found = self.queues[name] = QueueFacts(name)
        return found

    def exists(self, name: str) -> bool:
        """Whether there is such a queue, as a broker sees it."""
        found = self.queues.get(name)
        return found is not None and (found.options is not None or RecordKind.OPTIONS in self.blind)

    def sees(self, *kinds: RecordKind) -> bool:
        """Whether every record of these kinds was read."""
        return not self.blind.intersection(kinds)

    def can_tell(self, key: bytes) -> bool:
        """Whether a record that was not found is really missing."""
        return self.store.can_tell(key)

    def is_plausible(self, at_ms: int) -> bool:
        """Whether a broker can have noted this time."""
        header = self.store.header
        since = header.created_at_ms if header is not None else 0
        return since - SLACK_MS <= at_ms <= self.now_ms + SLACK_MS

    def note_unreadable(self) -> None:
        """Note the kinds whose records are in a range that can't be read."""
        for low, high in self.store.unreadable:
            for kind in RecordKind:
                start, end = keys.kind_range(kind)
                if low < end and (high is None or start < high):
                    self.blind.add(kind)


class Family:
    """The checks of some kinds of records. Each record is seen once, in the order of the keys.

    A family is made by the verification, gets each record of its ``kinds`` by :meth:`record`, and then
    :meth:`finish` compares what it kept. What it keeps should be small: messages have a pass of their own, in which a
    family that has a :meth:`message` sees each; :meth:`end` comes after that.
    """

    kinds: ClassVar[tuple[RecordKind, ...]] = ()

    def __init__(self, context: Context) -> None:
        self.context = context

    def record(self, key: Key, raw: bytes, value: Any) -> Iterator[Finding]:
        """A record: its parsed key, the key's bytes, the decoded value."""
        yield from ()

    async def finish(self) -> AsyncIterator[Finding]:
        """All records were seen."""
        nothing: tuple[Finding, ...] = ()
        for found in nothing:
            yield found

    def message(self, facts: MessageFacts) -> Iterator[Finding]:
        """A message; called for families that override this."""
        yield from ()

    def end(self) -> Iterator[Finding]:
        """All messages were seen."""
        yield from ()
