"""Base class for the checks of a family of record kinds, and the facts about the whole store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...errors import CorruptRecord
from ...staging.folder import LocalFolder
from ...storage.messages.payload_reader import NO_MESSAGE, read_place
from ...storage.records import keys
from ...storage.records.definitions import NO_OVERRIDES, QueueConfig, QueueOptionsRecord, QueueOverrides
from ...storage.records.keys import ParsedKey, RecordKind
from ...storage.records.payload import SegmentUse
from ...storage.records.payload_places import EnvelopePlace, is_segment
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
        segment_uses: the messages and values of results in each payload segment, by the records that refer to it.
    """

    store: OfflineStore
    now_ms: int
    report: Report
    block_end: int | None = None
    queues: dict[str, QueueFacts] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    in_flight: set[tuple[str, int]] = field(default_factory=set)
    blind: set[RecordKind] = field(default_factory=set)
    segment_uses: dict[str, SegmentUse] = field(default_factory=dict)

    def add(self, code: str, text: str, **subject: Any) -> None:
        """Report a finding, as :func:`~..findings.finding` returns it."""
        self.report.add(finding(code, text, **subject))

    @property
    def is_running(self) -> bool:
        """True if a broker of this host runs on the store; False for a bucket, for which that is unknown."""
        return running_broker(self.store.location.root) is not None

    def check_place(self, place: EnvelopePlace, subject: str, id: int, **named: Any) -> None:
        """Check that a batch object exists and is large enough, or that the payload in a segment is undamaged.

        ``StagedFamily`` reads batches.

        Args:
            subject: the payload or value at this place; ``named`` is as in :meth:`add`.
            id: the id of its message, or ``NO_MESSAGE``.
        """
        folder = self.store.location.staged
        if folder is None:
            return  # in a bucket, each object would cost a request
        end = place.offset + place.stored_bytes
        try:
            size = (folder / place.path).stat().st_size
        except OSError as exc:
            if not self.is_running:  # else the message may have been settled since, and the object removed
                text = f"{subject} is in batch {place.path}, which can't be read: {exc.strerror}"
                self.add("batch-missing", text, **named)
            return
        if end > size:
            text = f"{subject} ends at byte {end} of batch {place.path}, which has {size}"
            self.add("batch-missing", text, **named)
        elif is_segment(place.path):
            read = read_place(LocalFolder(folder), id, place)
            if isinstance(read, CorruptRecord) and not (self.is_running and not (folder / place.path).exists()):
                self.add("batch-damaged", f"{subject}: {read.text}" if id == NO_MESSAGE else read.text, **named)

    def use_segment(self, place: EnvelopePlace) -> None:
        """Count a message, or a value of a result, if it is in a segment."""
        if is_segment(place.path):
            use = self.segment_uses.get(place.path, SegmentUse(0, 0))
            self.segment_uses[place.path] = use.plus(1, place.stored_bytes)

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
