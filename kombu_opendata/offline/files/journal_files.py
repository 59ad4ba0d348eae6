"""Reader of the journal's files: the commits that the engine's recovery would replay, and the errors in the files.

Commits that are not in the store yet become records: the methods of recovery replay them, and the engine's functions
create the checkpoint that a broker would write when it opens the store, in a batch that stays in memory.

The engine's :class:`~kombu_opendata.storage.commit.journal.Journal` can't be used here, because it opens the files for
writing and cleans up while it reads. The same functions parse the formats.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...errors import CorruptRecord, StoreChanged, StoreError
from ...storage.clock import Clock
from ...storage.commit import checkpoint, journal_format, recovery
from ...storage.commit.journal_format import JournalRecord
from ...storage.effects import codec
from ...storage.effects.codec import Commit
from ...storage.history.history_index import Index
from ...storage.history.service import end_of_log
from ...storage.records.payload import NewMessage, message_rows
from ...storage.slatedb.ffi import WriteBatch
from ...storage.slatedb.store_reads import Reads
from ...storage.state.history_log import HistoryLog
from ...storage.state.store_state import StoreState
from ..findings import Finding, finding

#: exceptions of recovery if records and commits contradict each other
CONTRADICTIONS = (LookupError, TypeError, ValueError, AttributeError, AssertionError, OverflowError)

Changes = dict[bytes, bytes | None]


@dataclass(slots=True)
class SegmentFile:
    """File of the journal.

    Attributes:
        first: the sequence number of its first record.
        last: the sequence number of its last complete record; ``first - 1`` if there is none.
        records: the number of its complete records.
        used_bytes: the bytes from its start to the end of the last complete record.
    """

    path: Path
    first: int
    size: int
    last: int = 0
    records: int = 0
    used_bytes: int = journal_format.HEADER_BYTES


class JournalPlace(NamedTuple):
    sequence: int
    path: Path
    offset: int


class JournalTail:
    """End of the journal in a folder: the commits that the store does not have yet. Each error becomes a finding.

    Attributes:
        position: the last sequence number that the store has.
        last: the last sequence number of the journal.
        commits: the effects of the records after ``position``.
        is_whole: True if no commit is missing in between, so that they can be applied.
        lost_from: the place of the first commit that can't be read although later ones can; None if there is none.
        spares: the files without records.
        power_lost: True if a power loss may have torn the records since the last sync.

    Raises:
        StoreChanged: a broker changed it during the read; open the store again.
        StoreError: a file can't be read.
    """

    def __init__(self, folder: Path, position: int, *, power_lost: bool = False) -> None:
        self.folder = folder
        self.position = position
        self.power_lost = power_lost
        self.last = position
        self.segments: list[SegmentFile] = []
        self.spares: list[Path] = []
        self.commits: list[Commit] = []
        self.tail_bytes = 0
        self.is_whole = True
        self.lost_from: JournalPlace | None = None
        self.findings: list[Finding] = []
        if not folder.is_dir():
            if position:
                stored = f"the store was written with a journal up to record {position}"
                text = f"the folder {folder} is missing, but {stored}"
                self._add("journal-missing", text, folder)
            return
        contents = self._read_segments()
        if not contents and not self.findings:
            text = f"there is no segment in {folder}, although a broker always leaves one"
            self._add("journal-missing", text, folder)
            return
        following = [*(segment.first for segment, _data in contents[1:]), None]
        last = 0
        for (segment, data), until in zip(contents, following, strict=False):
            if last and last + 1 != segment.first <= max(last, position) + 1:
                text = f"{segment.path.name} begins with record {segment.first} where {last + 1} was expected"
                self._add("journal-sequence", text, segment.path)
            self._read_records(segment, data, until)
            last = segment.last
        if last < position and not any(problem.code.startswith("journal-") for problem in self.findings):
            text = f"the journal ends with record {last}, but the store has records up to {position}"
            self._add("journal-behind", text, folder)

    def _add(self, code: str, text: str, file: Path) -> None:
        self.findings.append(finding(code, text, file=str(file)))

    def _read_segments(self) -> list[tuple[SegmentFile, bytes]]:
        contents: list[tuple[SegmentFile, bytes]] = []
        self.spares = sorted(self.folder.glob("*.spare"))
        for path in sorted(self.folder.glob("*.journal")):
            try:
                data = path.read_bytes()
            except FileNotFoundError as exc:
                raise StoreChanged(f"{path} was released while it was read", path=str(path)) from exc
            except OSError as exc:
                raise StoreError(f"{path} can't be read: {exc.strerror}", path=str(path)) from exc
            header = journal_format.parse_header(data)
            if header is None:
                text = f"{path.name}, {len(data)} bytes, does not begin with a journal header"
            elif not header.is_sound(path):
                text = (
                    f"{path.name} has a header with number {header.number}, version {header.version}, {header.reserved}"
                )
            else:
                contents.append((SegmentFile(path, header.first, len(data), header.first - 1), data))
                continue
            self._add("journal-header", text, path)
            self.is_whole = False
            if self.lost_from is None:
                self.lost_from = JournalPlace(0, path, 0)
        self.segments = [segment for segment, _data in contents]
        return contents

    def _read_records(self, segment: SegmentFile, data: bytes, until: int | None) -> None:
        """Read the records of a segment; ``until`` is the first record of the next segment."""
        records = list(journal_format.complete_records(data, segment.first, self.position, until))
        for index, record in enumerate(records):
            if record.sequence != segment.last + 1 and self._is_end(segment, records[index:], until):
                break
            segment.records += 1
            segment.last = record.sequence
            if record.sequence > self.last:
                self._keep(segment, record)
            segment.used_bytes = record.end
        if until is not None:
            first = max(segment.last, self.position) + 1
            if until > first:
                self._lose(segment)
                text = f"records {first} to {until - 1} are missing behind {_end(segment)}"
                self._add("journal-gap", text, segment.path)
        else:
            self._check_end(segment, data)

    def _is_end(self, segment: SegmentFile, later: list[JournalRecord], until: int | None) -> bool:
        """Report the damaged records before these. Return True if a power loss tore them and so ended the journal."""
        label = f"record {segment.last + 1} at {_end(segment)}"
        begin = later[0].start
        if later[0].sequence <= self.position + 1:
            text = f"{label} is damaged, but the store holds it; the next complete record begins at byte {begin}"
            self._add("journal-stored", text, segment.path)
            return False
        counts = [(record.sequence, codec.unsynced(record.payload)) for record in later]
        was_synced = any(count is not None and sequence - 1 - count > segment.last for sequence, count in counts)
        if self.power_lost and until is None and not was_synced:
            unsynced = f"it and the {len(later)} complete records behind it were not synced"
            text = f"{label} was torn by a power loss; {unsynced}"
            self._add("journal-torn", text, segment.path)
            return True
        self._lose(segment)
        text = f"{label} is damaged; complete records follow from byte {begin} on"
        self._add("journal-record", text, segment.path)
        return False

    def _lose(self, segment: SegmentFile) -> None:
        """Record that the commits after the last readable one of a segment are lost."""
        self.is_whole = False
        if self.lost_from is None:
            self.lost_from = JournalPlace(max(segment.last, self.position) + 1, segment.path, segment.used_bytes)

    def _keep(self, segment: SegmentFile, record: JournalRecord) -> None:
        if not self.is_whole:
            return
        if record.sequence != self.last + 1:  # a file before this one is missing
            self._lose(segment)
            text = f"records {self.last + 1} to {record.sequence - 1} are missing before {segment.path.name}"
            self._add("journal-gap", text, segment.path)
            return
        try:
            self.commits.append(codec.decode(record.payload))
            self.last = record.sequence
            self.tail_bytes += record.end - record.start
        except CorruptRecord as exc:
            text = f"record {record.sequence} in {segment.path.name} is complete but does not decode: {exc}"
            self._add("journal-record", text, segment.path)
            self._lose(segment)

    def _check_end(self, segment: SegmentFile, data: bytes) -> None:
        """Report the bytes after the last complete record of the journal, if a record was begun there."""
        expected = segment.last + 1
        state = journal_format.begun_record(data, segment.used_bytes, expected)
        if not state or any(problem.code == "journal-torn" for problem in self.findings):
            return
        text = f"record {expected} at {_end(segment)}, the last one, is {state}"
        code = "journal-stored" if expected <= self.position else "journal-torn"
        if state == "damaged" and expected > self.position:
            code, text = "journal-record", f"{text}: its sequence number was changed"
            self._lose(segment)
        self._add(code, text, segment.path)


def _end(segment: SegmentFile) -> str:
    return f"{segment.path.name}, byte {segment.used_bytes}"


# ---- commits as records
class MemoryBatch(WriteBatch):
    """Batch that is never written.

    Attributes:
        changes: the value of each key, None if it is deleted. The last change of a key counts.
    """

    __slots__ = ("changes",)

    def __init__(self) -> None:
        super().__init__(None)
        self.changes: Changes = {}

    def __len__(self) -> int:
        return len(self.changes)

    def put(self, key: bytes, value: bytes) -> None:
        self.changes[key] = value

    def delete(self, key: bytes) -> None:
        self.changes[key] = None


async def replayed(store: Reads, commits: list[Commit], last: int, clock: Clock) -> Changes:
    """Return the records that these commits change.

    This needs as much memory as the commits and the startup of a broker.

    ``last``: the sequence number of the last commit.

    Raises:
        CorruptRecord: a record that is needed does not decode, or the commits contradict the store.
    """
    try:
        state = StoreState()
        index, history = Index(), HistoryLog()
        await index.load(store)
        history.begin_at(await end_of_log(store, index.head))
        await recovery.rebuild(state, store, commits, clock, history)
        batch = MemoryBatch()
        fresh = checkpoint.Fresh({}, {})
        for effects in commits:
            for effect in effects:
                _put(effect.new_messages(), batch, fresh)
        dirty = checkpoint.snapshot(state, batch, last, clock.now_ms())
        history.snapshot(batch)
        await checkpoint.resolve(dirty, batch, store, fresh, state)
    except CONTRADICTIONS as exc:
        raise CorruptRecord(f"the journal contradicts the store: {exc!r}", key=b"", offset=0) from exc
    return batch.changes


def _put(records: Iterable[NewMessage], batch: MemoryBatch, fresh: checkpoint.Fresh) -> None:
    """Add the records of new messages to the batch."""
    for record in records:
        batch.put_all(message_rows(*record))
        if record.uri:
            fresh.staged[record.id] = record
        else:
            fresh.envelopes[record.id] = record.envelope
