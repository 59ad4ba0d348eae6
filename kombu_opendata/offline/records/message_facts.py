"""Facts about one message, joined from all its records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...storage.records import active, settled
from ...storage.records.dead_letter import DeadLetter
from ...storage.records.keys import RecordKind
from ...storage.records.metadata import Metadata
from ...storage.records.payload import PayloadURI
from ...storage.records.routes_block import KEPT_IN_CHUNKS

#: states of messages by the lists of their queue; the first list has ready and delayed messages
AVAILABLE, IN_FLIGHT, DONE, FAILED, ARCHIVED = "ready or delayed", "in flight", "done", "failed", "archived failed"
READY, DELAYED = "ready", "delayed"

#: kinds of buckets, and their decoders
BUCKETS = {
    RecordKind.ACTIVE: active.decode,
    RecordKind.DONE: settled.decode,
    RecordKind.FAILED: settled.decode,
    RecordKind.ARCHIVED_FAILED: settled.decode,
}
_SETTLED = {RecordKind.DONE: DONE, RecordKind.FAILED: FAILED, RecordKind.ARCHIVED_FAILED: ARCHIVED}


class QueueMembership(NamedTuple):
    """Message in a queue.

    Attributes:
        entry: the fields of its entry. Available: (id, priority, visible at, retention deadline, attempts). In flight:
            (id, priority, leased at, lease deadline, attempts). Settled: (id, settled at, attempts).
    """

    queue: str
    state: str
    bucket: int
    entry: tuple[int, ...]

    @property
    def attempts(self) -> int:
        return self.entry[-1]


class Span(NamedTuple):
    """Summary of a bucket: the lowest and the highest id, and the number of entries."""

    low: int
    high: int
    entries: int
    key: bytes
    kind: RecordKind
    queue: str
    bucket: int


@dataclass(slots=True)
class MessageFacts:
    """Records about one message.

    Attributes:
        chunks: the number and the bytes of each chunk.
        routes: the number of queues that need it, by its routes block.
        letters: the queues that it left, each with its dead letter.
        corrupt: the kinds of its records that do not decode.
    """

    id: int
    metadata: Metadata | None = None
    payload: bytes | PayloadURI | None = None
    chunks: list[tuple[int, int]] = field(default_factory=list)
    attempts: list[str] | None = None
    routes: int | None = None
    letters: list[tuple[str, DeadLetter]] = field(default_factory=list)
    places: list[QueueMembership] = field(default_factory=list)
    corrupt: set[RecordKind] = field(default_factory=set)

    @property
    def payload_bytes(self) -> int:
        return sum(size for _number, size in self.chunks) or (len(self.payload) if type(self.payload) is bytes else 0)

    @property
    def is_kept(self) -> bool:
        """True if, by its count, no queue needs it and only the log keeps it."""
        return self.routes is not None and self.routes >= KEPT_IN_CHUNKS

    @property
    def needs(self) -> int:
        """Number of uses of the payload: by queues, and by dead letters that are its last use."""
        return len(self.places) + sum(letter.last_use for _queue, letter in self.letters)


def entries_of(kind: RecordKind, value: Any) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Yield the state and the entry of each message in a decoded bucket."""
    if kind is RecordKind.ACTIVE:
        available, in_flight = value
        yield from ((AVAILABLE, entry) for entry in available)
        yield from ((IN_FLIGHT, entry) for entry in in_flight)
    else:
        yield from ((_SETTLED[kind], entry) for entry in value)


def state_at(state: str, entry: tuple[int, ...], now_ms: int) -> str:
    """Return the state of an entry at a time, in which an available message is either ready or delayed."""
    if state != AVAILABLE:
        return state
    return DELAYED if entry[2] > now_ms else READY


def span_of(kind: RecordKind, key: bytes, queue: str, bucket: int, value: Any) -> Span | None:
    """Return the summary of a decoded bucket; None if it is empty."""
    ids = [entry[0] for _state, entry in entries_of(kind, value)]
    return Span(min(ids), max(ids), len(ids), key, kind, queue, bucket) if ids else None
