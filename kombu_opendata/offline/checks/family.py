"""What all checks share: the base class for a family of record kinds, and what is known about the whole store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...storage.records import keys
from ...storage.records.config import QueueConfig
from ...storage.records.keys import ParsedKey, RecordKind
from ...storage.records.options import QueueOptionsRecord
from ...storage.records.overrides import NO_OVERRIDES, QueueOverrides
from ..files.location import running_broker
from ..findings import Finding
from ..records.message_facts import MessageFacts, Span
from ..records.offline_store import OfflineStore

_DAY_MS = 86_400_000
#: how much clocks may differ
SLACK_MS = _DAY_MS


@dataclass(slots=True)
class QueueFacts:
    """What the records say about a queue.

    Attributes:
        buckets: the numbers of its stored buckets, by kind.
        filled: the same without empty buckets.
    """

    name: str
    config: QueueConfig | None = None
    options: QueueOptionsRecord | None = None
    overrides: QueueOverrides = NO_OVERRIDES
    is_counted: bool = False
    buckets: dict[RecordKind, list[int]] = field(default_factory=dict)
    filled: dict[RecordKind, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class CheckContext:
    """What is known about the store, for all checks.

    Attributes:
        now_ms: the present time.
        block_end: ids below it may be in use; None if no sequence block was found yet.
        queues: what is known about each queue, by name.
        spans: summaries of all buckets, for the pass over the messages.
        in_flight: the queue and the message id of every message in flight.
        blind: kinds with a record that could not be read or decoded, so that what seems missing may be in it.
        incomplete: why not everything could be checked.
    """

    store: OfflineStore
    now_ms: int
    block_end: int | None = None
    queues: dict[str, QueueFacts] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    in_flight: set[tuple[str, int]] = field(default_factory=set)
    blind: set[RecordKind] = field(default_factory=set)
    incomplete: list[str] = field(default_factory=list)

    @property
    def is_running(self) -> bool:
        """Return True if a broker of this host runs on the store; False for a bucket, of which that is unknown."""
        return running_broker(self.store.location.root) is not None

    def queue(self, name: str) -> QueueFacts:
        """What is known about a queue; a new entry if nothing is."""
        found = self.queues.get(name)
        if found is None:
            found = self.queues[name] = QueueFacts(name)
        return found

    def exists(self, name: str) -> bool:
        """Whether a broker would find this queue."""
        found = self.queues.get(name)
        return found is not None and (found.options is not None or RecordKind.OPTIONS in self.blind)

    def sees(self, *kinds: RecordKind) -> bool:
        """Whether all records of these kinds were read."""
        return not self.blind.intersection(kinds)

    def can_tell(self, key: bytes) -> bool:
        """Whether a record that was not found is really missing."""
        return self.store.can_tell(key)

    def is_plausible(self, at_ms: int) -> bool:
        """Whether a broker can have written this time."""
        header = self.store.header
        since = header.created_at_ms if header is not None else 0
        return since - SLACK_MS <= at_ms <= self.now_ms + SLACK_MS

    def note_unreadable(self) -> None:
        """Add the kinds with records in a range that can't be read to ``blind``."""
        for low, high in self.store.unreadable:
            for kind in RecordKind:
                start, end = keys.kind_range(kind)
                if low < end and (high is None or start < high):
                    self.blind.add(kind)


class Family:
    """The checks of some kinds of records.

    The verification calls :meth:`record` with each record of the family's ``kinds``, in the order of the keys, and then
    :meth:`finish`, which compares what the family has kept. What it keeps should be small: messages have a pass of
    their own, which calls :meth:`message` for each message and :meth:`end` afterwards.
    """

    kinds: ClassVar[tuple[RecordKind, ...]] = ()

    def __init__(self, context: CheckContext) -> None:
        self.context = context

    def record(self, key: ParsedKey, raw: bytes, value: Any) -> Iterator[Finding]:
        """Check a record, given by its parsed key, the bytes of the key, and the decoded value."""
        yield from ()

    async def finish(self) -> AsyncIterator[Finding]:
        """Check what was kept, after all records."""
        nothing: tuple[Finding, ...] = ()
        for found in nothing:
            yield found

    def message(self, facts: MessageFacts) -> Iterator[Finding]:
        """Check a message; called only for families that override this."""
        yield from ()

    def end(self) -> Iterator[Finding]:
        """Check what was kept, after all messages."""
        yield from ()
