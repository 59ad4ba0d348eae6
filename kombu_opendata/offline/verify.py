"""``store verify``: every file, every record, and every invariant that can be seen at rest.

Four passes: the files of the database (:mod:`.slate_files`), the journal (when the store is opened), every record that
is not by message id (:mod:`.checks`), and every message (:mod:`.facts`, :mod:`.checks.messages`).

Held in memory: a summary of 100 bytes of each bucket (256 waiting or 1,024 settled messages), the ids in flight and
leased, exchanges and bindings, the names of open chords, one window of messages, and the largest file. For ten million
waiting messages that is about 20 MB, besides what the journal holds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CorruptRecord, NewerFormat, OpenDataError, StoreError
from ..storage import records
from ..storage.clock import Clock
from ..storage.records import keys
from ..storage.records.keys import RecordKind
from ..storage.records.kinds import PREFIXES
from .checks import FAMILIES, Context, Family
from .checks.message_checks import CHECKS
from .files.database_files import FileCheck, check_files
from .files.location import check_readable, find_store
from .findings import Finding, Report, finding
from .records.message_scan import BY_ID, MessageFacts, MessageScan
from .records.offline_store import OfflineStore, open_store, running_broker

#: findings of one kind that a report keeps
MAX_FINDINGS = 1000
_FILE_TRIES = 4
_PROGRESS_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a verification is.

    Attributes:
        stage: files, records or messages.
        done: files, records or messages so far.
        total: of them; None when it is not known.
    """

    stage: str
    done: int
    total: int | None = None


OnProgress = Callable[[Progress], None]


def _silent(_progress: Progress) -> None:
    pass


async def verify_store(
    folder_or_url: str | Path,
    instance: str | None = None,
    *,
    progress: OnProgress = _silent,
    max_findings: int = MAX_FINDINGS,
    clock: Clock | None = None,
) -> Report:
    """Open an instance as far as it can be opened, verify it, close it.

    Where a file may not be read, or an object store does not answer, the report says so, and nothing else.

    Raises:
        StoreError: there is no such store or instance.
        NewerFormat: it was written by a newer version of this package.
        InvalidURL: the URL is none of a store.
    """
    location = find_store(folder_or_url, instance)
    try:
        check_readable(location)
        store = await open_store(folder_or_url, instance, clock=clock, tolerate_damage=True, who="verify")
    except NewerFormat:
        raise
    except StoreError as exc:  # no damage: it may not be read, or does not answer
        return Report(incomplete=[exc.text])
    async with store:
        return await verify(store, progress=progress, max_findings=max_findings)


async def verify(store: OfflineStore, *, progress: OnProgress = _silent, max_findings: int = MAX_FINDINGS) -> Report:
    """Verify a store that was opened with ``tolerate_damage``.

    While a broker runs, the records are those of the moment of the opening, and files are looked at as they are now.

    Args:
        progress: called now and then.
        max_findings: of each kind, that the report keeps; all are counted.
    """
    verification = _Verification(store, progress)
    report = verification.report
    async for found in verification.findings():
        report.add(found, max_findings)
    return report


class _Verification:
    def __init__(self, store: OfflineStore, progress: OnProgress) -> None:
        self.store = store
        self.report = Report()
        self._progress = progress
        self._context = Context(store, store.clock.now_ms())
        self._families: list[Family] = [family(self._context) for family in FAMILIES]
        self._by_message = [family for family in self._families if type(family).message is not Family.message]
        self._by_kind = {kind: family for family in self._families for kind in family.kinds}
        self._found: list[Finding] = []  # by callbacks

    async def findings(self) -> AsyncIterator[Finding]:
        """Everything that is found, as it is found; the report has the rest."""
        store = self.store
        for found in await self._files():
            yield found
        for found in [*(store.journal.findings if store.journal is not None else ()), *store.problems]:
            yield found
        store.problems.clear()
        if not store.is_readable:
            self.report.incomplete.append("no record can be read")
            return
        if store.skipped_wal:
            self.report.incomplete.append("the records are those without the WAL and with what the journal adds")
        self._context.note_unreadable()
        try:
            async for found in self._records():
                yield found
            async for found in self._messages():
                yield found
        except OpenDataError as exc:
            self.report.incomplete.append(self._why(exc))
        for found in self._drain():
            yield found
        if store.unreadable:
            self.report.incomplete.append(f"{len(store.unreadable)} ranges of keys can't be read")

    def _why(self, exc: OpenDataError) -> str:
        if running_broker(self.store.location.root) is not None:
            held = f" (nothing kept them: {self.store.unheld})" if self.store.unheld else ""
            return (
                f"the broker that runs has changed files meanwhile{held}; verify again, or a copy of the store: {exc}"
            )
        return f"reading ended early: {exc}"

    def _drain(self) -> list[Finding]:
        """What callbacks and the store found in between."""
        drained, self._found = [*self._found, *self.store.problems], []
        self.store.problems.clear()
        if drained:
            self._context.note_unreadable()
        return drained

    # ------------------------------------------------------------------ files
    async def _files(self) -> list[Finding]:
        """The files' findings. While a broker works it may delete a file in between: look again then."""
        result = FileCheck()
        for _ in range(_FILE_TRIES):
            result = await check_files(
                self.store.location, self._context.now_ms, lambda done: self._progress(Progress("files", done))
            )
            if not result.findings or running_broker(self.store.location.root) is None:
                break
        self.report.files = result.checked
        self.report.incomplete += result.incomplete if self.store.location.root is not None else []
        self.store.unreadable += result.unreadable
        return result.findings

    # ------------------------------------------------------------------ records
    async def _records(self) -> AsyncIterator[Finding]:
        """Every record but those by message id, which have a pass of their own."""
        done = 0
        for start, end in between(BY_ID):
            async for rows in self.store.scan_batches(start, end, batch=500):
                for key, value in rows:
                    for found in self._record(key, value):
                        yield found
                done += len(rows)
                self._progress(Progress("records", done))
        for found in self._drain():
            yield found
        for family in self._families:
            async for found in family.finish():
                yield found

    def _record(self, key: bytes, value: bytes) -> Iterable[Finding]:
        try:
            parsed = keys.parse(key)
            decoded: Any = records.decode_any(key, value)
        except (CorruptRecord, NewerFormat) as exc:
            self._not_decoded(key, exc)
            return self._drain()
        self.report.records[parsed.kind.value] += 1
        family = self._by_kind.get(parsed.kind)
        return family.record(parsed, key, decoded) if family is not None else ()

    def _not_decoded(self, key: bytes, exc: StoreError) -> None:
        kind = kind_of(key)
        if kind is None:
            self.report.records["unknown"] += 1
            self._found.append(finding("key-unknown", f"a key of unknown kind: {key[:40].hex()}", key=key))
            return
        self.report.records[kind.value] += 1
        self._context.blind.add(kind)
        self._found.append(finding("record-corrupt", f"{kind.value}: {exc.text}", key=key))

    # ------------------------------------------------------------------ messages
    async def _messages(self) -> AsyncIterator[Finding]:
        scan = MessageScan(self.store, self._context.spans, self._not_decoded_by_id, self._count)
        last = scan.last_id
        async for facts in scan.messages():
            self.report.messages += 1
            if not self.report.messages % _PROGRESS_ROWS:
                self._progress(Progress("messages", facts.id, max(last, facts.id)))
            for found in self._message(facts):
                yield found
            if self._found or self.store.problems:
                for found in self._drain():
                    yield found
        for family in self._families:
            for found in family.end():
                yield found

    def _message(self, facts: MessageFacts) -> Iterable[Finding]:
        context = self._context
        for check in CHECKS:
            yield from check(facts, context)
        for family in self._by_message:
            yield from family.message(facts)

    def _count(self, kind: RecordKind, _key: bytes, _value: bytes) -> None:
        self.report.records[kind.value] += 1

    def _not_decoded_by_id(self, key: bytes, exc: CorruptRecord) -> None:
        self._not_decoded(key, exc)
        kind = kind_of(key)
        if kind is not None:
            self.report.records[kind.value] -= 1  # counted with its row


def kind_of(key: bytes) -> RecordKind | None:
    """What kind of record a key begins like, whether the rest of it is right or not."""
    for kind, prefix in PREFIXES.items():
        if kind is RecordKind.SEQ_BLOCK:
            continue
        start, end = keys.kind_range(kind)
        if start <= key < end or (kind is RecordKind.METADATA and key.startswith(prefix)):
            return kind
    return RecordKind.SEQ_BLOCK if key == keys.SEQ_BLOCK_KEY else None


def between(kinds: Iterable[RecordKind]) -> list[tuple[bytes, bytes | None]]:
    """All keys but those of these kinds, as ranges."""
    ranges: list[tuple[bytes, bytes | None]] = []
    position = b""
    for start, end in sorted(keys.kind_range(kind) for kind in kinds):
        if start > position:
            ranges.append((position, start))
        position = end
    return [*ranges, (position, None)]
