"""Base class for the checks of a family of record kinds, and the facts about the whole store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...storage.records import keys
from ...storage.records.definitions import NO_OVERRIDES, QueueConfig, QueueOptionsRecord, QueueOverrides
from ...storage.records.keys import ParsedKey, RecordKind
from ..files.store_location import running_broker
from ..findings import Report, finding
from ..records.message_facts import MessageFacts, Span
from ..records.offline_store import OfflineStore

_DAY_MS = 86_400_000
#: allowed difference of clocks
SLACK_MS = _DAY_MS


@dataclass(slots=True)
class QueueFacts:
    """Facts about a queue from its records.

    Attributes:
        extras: the kinds of its other records.
        buckets: the numbers of its stored buckets, by kind.
        filled: the numbers of its buckets that are not empty, by kind.
        partitions: the numbers of its partitions.
    """

    name: str
    config: QueueConfig | None = None
    options: QueueOptionsRecord | None = None
    overrides: QueueOverrides = NO_OVERRIDES
    extras: set[RecordKind] = field(default_factory=set)
    buckets: dict[RecordKind, list[int]] = field(default_factory=dict)
    filled: dict[RecordKind, list[int]] = field(default_factory=dict)
    partitions: set[int] = field(default_factory=set)


@dataclass(slots=True)
class CheckContext:
    """Facts about the store, for all checks.

    Attributes:
        now_ms: the current time.
        block_end: ids below it may be in use; None if no sequence block was found yet.
        queues: the facts about each queue, by name.
        spans: summaries of all buckets, for the pass over the messages.
        in_flight: the queue and the message id of every message in flight.
        blind: the kinds with an unreadable record, so that data of these kinds may only seem to be missing.
    """

    store: OfflineStore
    now_ms: int
    report: Report
    block_end: int | None = None
    queues: dict[str, QueueFacts] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    in_flight: set[tuple[str, int]] = field(default_factory=set)
    blind: set[RecordKind] = field(default_factory=set)

    def add(self, code: str, text: str, **subject: Any) -> None:
        """Report a finding, as :func:`~..findings.finding` returns it."""
        self.report.add(finding(code, text, **subject))

    @property
    def is_running(self) -> bool:
        """True if a broker of this host runs on the store; False for a bucket, for which that is unknown."""
        return running_broker(self.store.location.root) is not None

    def queue(self, name: str) -> QueueFacts:
        return self.queues.setdefault(name, QueueFacts(name))

    def exists(self, name: str) -> bool:
        """Return True if a broker would find this queue."""
        facts = self.queues.get(name)
        return facts is not None and (facts.options is not None or RecordKind.OPTIONS in self.blind)

    def sees(self, *kinds: RecordKind) -> bool:
        """Return True if all records of these kinds were read."""
        return not self.blind.intersection(kinds)

    def is_plausible(self, at_ms: int) -> bool:
        """Return True if a broker can have written this time."""
        header = self.store.header
        since = header.created_at_ms if header is not None else 0
        return since - SLACK_MS <= at_ms <= self.now_ms + SLACK_MS

    def note_unreadable(self) -> None:
        """Add the kinds with records in an unreadable range to ``blind``."""
        for low, high in self.store.unreadable:
            for kind in RecordKind:
                start, end = keys.kind_range(kind)
                if low < end and (high is None or start < high):
                    self.blind.add(kind)


class Family:
    """Checks of some kinds of records.

    The verification calls :meth:`record` with each record of the family's ``kinds``, in the order of the keys, and then
    :meth:`finish`, which compares the data that the family has collected. That data should be small. Messages have a
    separate pass: it calls :meth:`message` with each message, and :meth:`end` afterwards.
    """

    kinds: ClassVar[tuple[RecordKind, ...]] = ()

    def __init__(self, context: CheckContext) -> None:
        self.context = context
        self.add = context.add

    def record(self, key: ParsedKey, raw: bytes, value: Any) -> None:
        """Check a record, given by its parsed key, the bytes of the key, and the decoded value."""

    async def finish(self) -> None:
        """Check the collected data, after all records."""

    def message(self, facts: MessageFacts) -> None:
        """Check a message."""

    def end(self) -> None:
        """Check the collected data, after all messages."""
