"""Reads the journal's files: what the engine's recovery would replay, and what is wrong with them.

The engine's :class:`~kombu_opendata.storage.commit.journal.Journal` can't be used here, because it opens the files for
writing and cleans up while it reads. The same functions parse the formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import CorruptRecord, StoreChanged, StoreError
from ...storage.commit import journal, journal_segment
from ...storage.effects import codec
from ...storage.effects.codec import Commit
from ..findings import Finding, finding

#: how far behind a segment's end to search for records; a torn record is never larger
_SEARCH_BYTES = 160 << 20


@dataclass(slots=True)
class Segment:
    """One file of the journal.

    Attributes:
        first: the sequence number of its first record.
        records: how many complete records it has.
        used_bytes: the bytes from its start to the end of the last complete record.
    """

    path: Path
    number: int
    first: int
    size: int
    records: int = 0
    used_bytes: int = 0

    @property
    def last(self) -> int:
        """The sequence number of the last record; ``first - 1`` if there is none."""
        return self.first + self.records - 1


@dataclass(slots=True)
class JournalTail:
    """The end of the journal: the commits that the store does not have yet.

    Attributes:
        position: the last sequence number that the store has.
        last: the last sequence number of the journal.
        commits: the effects of the records after ``position``.
        is_whole: whether no commit is missing in between, so that they can be applied.
        spares: files that hold nothing yet.
    """

    folder: Path
    position: int
    last: int = 0
    segments: list[Segment] = field(default_factory=list)
    spares: list[Path] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    tail_bytes: int = 0
    is_whole: bool = True
    findings: list[Finding] = field(default_factory=list)


def read_tail(folder: Path, position: int) -> JournalTail:
    """Read the journal in ``folder``; anything wrong with it becomes a finding.

    Raises:
        StoreChanged: a broker changed it meanwhile; open the store again.
        StoreError: a file can't be read.
    """
    tail = JournalTail(folder, position, last=position)
    if not folder.is_dir():
        if position:
            text = f"the folder {folder} is missing, but the store was written with a journal up to record {position}"
            tail.findings.append(finding("journal-missing", text, file=str(folder)))
        return tail
    contents = _read_segments(tail)
    if not contents and not tail.findings:
        text = f"there is no segment in {folder}, although a broker always leaves one"
        tail.findings.append(finding("journal-missing", text, file=str(folder)))
        return tail
    expected: int | None = None
    for segment, data in contents:
        _check_header(tail, segment, expected)
        _read_records(tail, segment, data)
        expected = segment.last + 1
    last = contents[-1][0].last if contents else 0
    if last < position and not any(found.code.startswith("journal-") for found in tail.findings):
        text = f"the journal ends with record {last}, but the store has records up to {position}"
        tail.findings.append(finding("journal-behind", text, file=str(folder)))
    return tail


def _read_segments(tail: JournalTail) -> list[tuple[Segment, bytes]]:
    """The segments in order, with their bytes."""
    found: list[tuple[Segment, bytes]] = []
    tail.spares = sorted(tail.folder.glob("*.spare"))
    for path in sorted(tail.folder.glob("*.journal")):
        try:
            data = path.read_bytes()
        except FileNotFoundError as exc:
            raise StoreChanged(f"{path} was released while it was read", path=str(path)) from exc
        except OSError as exc:
            raise StoreError(f"{path} can't be read: {exc.strerror}", path=str(path)) from exc
        header = journal_segment.parse_header(data)
        if header is None or header.version > journal_segment.VERSION:
            text = f"{path.name}, {len(data)} bytes, does not begin with a journal header that this version knows"
            tail.findings.append(finding("journal-header", text, file=str(path)))
            tail.is_whole = False
            continue
        if header.reserved or header.version != journal_segment.VERSION or path.name != f"{header.number:016d}.journal":
            text = f"{path.name} says that it is number {header.number}, version {header.version}, {header.reserved}"
            tail.findings.append(finding("journal-header", text, file=str(path)))
        found.append((Segment(path, header.number, header.first, len(data)), data))
    tail.segments = [segment for segment, _data in found]
    return found


def _check_header(tail: JournalTail, segment: Segment, expected: int | None) -> None:
    """Check that the records continue from segment to segment."""
    if expected is None:
        if segment.first > tail.position + 1:
            _gap(tail, segment, tail.position + 1)
    elif segment.first != expected:
        if segment.first > max(expected, tail.position + 1):
            _gap(tail, segment, expected)
        else:
            text = f"{segment.path.name} begins with record {segment.first} where {expected} was expected"
            tail.findings.append(finding("journal-sequence", text, file=str(segment.path)))


def _gap(tail: JournalTail, segment: Segment, expected: int) -> None:
    text = f"records {expected} to {segment.first - 1} are missing before {segment.path.name}"
    tail.findings.append(finding("journal-gap", text, file=str(segment.path)))
    tail.is_whole = False


def _read_records(tail: JournalTail, segment: Segment, data: bytes) -> None:
    end = segment.used_bytes = journal_segment.HEADER_BYTES
    for sequence, end, payload in journal.whole_records(data, segment.first):
        segment.records += 1
        if sequence > tail.last:
            _keep(tail, segment, sequence, payload)
            tail.tail_bytes += end - segment.used_bytes
        segment.used_bytes = end
    tail.findings += _check_end(segment, data, end, tail.position)


def _keep(tail: JournalTail, segment: Segment, sequence: int, payload: bytes) -> None:
    if not tail.is_whole:
        return
    try:
        tail.commits.append(codec.decode(payload))
        tail.last = sequence
    except CorruptRecord as exc:
        text = f"record {sequence} in {segment.path.name} is complete but does not decode: {exc}"
        tail.findings.append(finding("journal-record", text, file=str(segment.path)))
        tail.is_whole = False


# ---- the end of a segment
def _check_end(segment: Segment, data: bytes, end: int, position: int) -> Iterator[Finding]:
    """Find out whether a segment ends where its writer stopped, or at a damaged record."""
    expected = segment.last + 1
    where = f"{segment.path.name}, byte {end}"
    if end + journal.RECORD_BYTES > len(data):
        if data[end:].strip(b"\0"):
            text = f"{where}: the last {len(data) - end} bytes are not a record"
            yield finding("journal-torn", text, file=str(segment.path))
        return
    later = _find_record(data, end, expected + 1)
    if later is not None:
        text = f"record {expected} at {where} is damaged; complete records follow from byte {later} on"
        yield finding("journal-record", text, file=str(segment.path))
        return
    length, crc, sequence = journal.RECORD.unpack_from(data, end)
    payload = data[end + journal.RECORD_BYTES : end + journal.RECORD_BYTES + length]
    if length and journal.checksum(expected, payload) == crc:
        text = f"record {expected} at {where} has the sequence number {sequence}"
        yield finding("journal-record", text, file=str(segment.path))
    elif sequence == expected:
        was_whole = expected <= position  # because the store has it
        text = f"record {expected} at {where}, the last one, is incomplete"
        yield finding("journal-record" if was_whole else "journal-torn", text, file=str(segment.path))
    elif segment.records == 0:
        other = journal.record_at(data, end)
        if other is not None and other[0] > expected:
            text = f"{where}: the header announces record {expected}, but the first one is {other[0]}"
            yield finding("journal-record", text, file=str(segment.path))


def _find_record(data: bytes, start: int, sequence: int) -> int | None:
    """Where a complete record with this sequence number begins after ``start``."""
    wanted = journal.SEQUENCE.pack(sequence)
    limit = min(len(data), start + _SEARCH_BYTES)
    at = data.find(wanted, start, limit)
    while at >= 0:
        offset = at - (journal.RECORD_BYTES - journal.SEQUENCE.size)
        if offset > start and (found := journal.record_at(data, offset)) is not None and found[0] == sequence:
            return offset
        at = data.find(wanted, at + 1, limit)
    return None
