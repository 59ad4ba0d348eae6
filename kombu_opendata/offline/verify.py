"""Command ``store verify``: checks every file, every record, and every invariant of a store at rest.

There are four passes: the files of the database (:mod:`.files.database_files`), the journal (when the store is opened),
every record that is not by message id (:mod:`.checks`), and every message (:mod:`.checks.message_checks`).

The verification keeps a summary of 100 bytes in memory for each bucket (256 ready or 1,024 settled messages), and the
ids of the messages in flight. It also keeps exchanges, bindings and the names of open chords, and reads one window of
messages and one file at a time. For ten million ready messages, that is about 20 MB, besides the journal's content.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import CorruptRecord, OpenDataError, StoreError, UnsupportedFormat
from ..storage import records
from ..storage.clock import Clock
from ..storage.records import keys
from ..storage.records.keys import RecordKind
from .checks import FAMILIES, CheckContext, Family
from .checks.message_checks import MessageChecks
from .files.database_files import DatabaseFiles
from .files.store_location import check_readable, find_store, running_broker
from .findings import Finding, OnProgress, Progress, Report
from .records.message_scan import BY_ID, MessageScan
from .records.offline_store import OfflineStore
from .records.open_store import open_store
from .records.record_view import kind_of, scan_except

_FILE_TRIES = 4


async def verify_store(
    folder_or_url: str | Path,
    instance: str | None = None,
    *,
    progress: OnProgress = lambda _: None,
    clock: Clock | None = None,
) -> Report:
    """Open an instance as far as possible, verify it, and close it.

    If this user may not read a file, or an object store does not answer, the report contains only that. While a broker
    runs, records are checked as of the time when the store was opened, and files in their current state.

    Raises:
        StoreError: there is no such store or instance.
        UnsupportedFormat: this version of the package does not read the store's format.
        InvalidURL: the URL is not that of a store.
    """
    location = find_store(folder_or_url, instance)
    try:
        check_readable(location)
        store = await open_store(folder_or_url, instance, clock=clock, tolerate_damage=True, who="verify")
    except UnsupportedFormat:
        raise
    except StoreError as exc:  # not damage: no permission to read, or no reply
        return Report(incomplete=[exc.text])
    async with store:
        verification = _Verification(store, progress)
        await verification.run()
    return verification.report


class _Verification:
    def __init__(self, store: OfflineStore, progress: OnProgress) -> None:
        self.store = store
        self.report = Report()
        self._progress = progress
        self._context = CheckContext(store, store.clock.now_ms(), self.report)
        self._families: list[Family] = [family(self._context) for family in FAMILIES]
        self._by_message = [family for family in self._families if type(family).message is not Family.message]
        self._by_kind = {kind: family for family in self._families for kind in family.kinds}

    async def run(self) -> None:
        store = self.store
        await self._files()
        self._add(store.journal.findings if store.journal is not None else ())
        self._add_problems()
        if not store.is_readable:
            self.report.incomplete.append("no record can be read")
            return
        if store.skipped_wal:
            self.report.incomplete.append("the records were read without the WAL, with the changes of the journal")
        self._context.note_unreadable()
        try:
            await self._records()
            await self._messages()
        except OpenDataError as exc:
            self.report.incomplete.append(self._why(exc))
        self._add_problems()
        if store.unreadable:
            self.report.incomplete.append(f"{len(store.unreadable)} ranges of keys can't be read")

    def _add(self, findings: Iterable[Finding]) -> None:
        for problem in findings:
            self.report.add(problem)

    def _add_problems(self) -> None:
        """Report the findings of the store since the last call."""
        if self.store.problems:
            self._add(self.store.problems)
            self.store.problems.clear()
            self._context.note_unreadable()

    def _why(self, exc: OpenDataError) -> str:
        if running_broker(self.store.location.root) is not None:
            unheld = f" (nothing kept them: {self.store.unheld})" if self.store.unheld else ""
            text = f"the running broker changed files during verification{unheld}"
            return f"{text}; verify again, or verify a copy: {exc}"
        return f"reading ended early: {exc}"

    async def _files(self) -> None:
        """Check the files, again if a running broker may have deleted one of them during the check."""
        for _ in range(_FILE_TRIES):
            result = DatabaseFiles(self.store.location, lambda count: self._progress(Progress("files", count)))
            await result.check()
            if not result.findings or running_broker(self.store.location.root) is None:
                break
        self.report.files = result.checked
        self.report.incomplete += result.incomplete if self.store.location.root is not None else []
        self.store.unreadable += result.unreadable
        self._add(result.findings)

    async def _records(self) -> None:
        """Check every record except those by message id, which have a separate pass."""
        async for key, value in scan_except(self.store, BY_ID, 500, self._progress):
            self._record(key, value)
        self._add_problems()
        for family in self._families:
            await family.finish()

    def _record(self, key: bytes, value: bytes) -> None:
        try:
            parsed = keys.parse(key)
            decoded: Any = records.decode_any(key, value)
        except (CorruptRecord, UnsupportedFormat) as exc:
            self._not_decoded(key, exc)
            return
        self.report.records[parsed.kind.value] += 1
        family = self._by_kind.get(parsed.kind)
        if family is not None:
            family.record(parsed, key, decoded)

    def _not_decoded(self, key: bytes, exc: StoreError) -> None:
        kind = kind_of(key)
        self.report.records["unknown" if kind is None else kind.value] += 1
        if kind is None:
            self._context.add("key-unknown", f"a key of unknown kind: {key[:40].hex()}", key=key)
            return
        self._context.blind.add(kind)
        self._context.add("record-corrupt", f"{kind.value}: {exc.text}", key=key)

    async def _messages(self) -> None:
        scan = MessageScan(self.store, self._context.spans, self._not_decoded_by_id, self._count)
        async for facts in scan.messages(self._progress):
            self.report.messages += 1
            MessageChecks(facts, self._context).run()
            for family in self._by_message:
                family.message(facts)
            self._add_problems()
        for family in self._families:
            family.end()

    def _count(self, kind: RecordKind, _key: bytes, _value: bytes) -> None:
        self.report.records[kind.value] += 1

    def _not_decoded_by_id(self, key: bytes, exc: CorruptRecord) -> None:
        self._not_decoded(key, exc)
        kind = kind_of(key)
        if kind is not None:
            self.report.records[kind.value] -= 1  # its row was counted already
