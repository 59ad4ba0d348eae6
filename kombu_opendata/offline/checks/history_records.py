"""Checks of the history's data outside of its log: headers of collected messages, failures, and their marks."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Any

from ...storage.records import keys
from ...storage.records.failures import Handled
from ...storage.records.history_index import IndexHead
from ...storage.records.history_log import DETAILED
from ...storage.records.keys import ParsedKey, RecordKind
from ...storage.records.metadata import Pairs
from ..records.message_facts import MessageFacts
from .family import CheckContext, Family

_PLACES = (RecordKind.HISTORY_LOG, RecordKind.HISTORY_HEAD)


class HistoryFamily(Family):
    """Family of headers and failures.

    Collects the ids of their messages and the numbers of failed attempts, 8 bytes each.
    """

    kinds = (
        RecordKind.HISTORY_LOG, RecordKind.HISTORY_HEAD, RecordKind.HISTORY_HEADERS, RecordKind.TASK_FAILURE,
        RecordKind.HANDLED_FAILURES,
    )  # fmt: skip

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._end = 0
        self._head = IndexHead()
        self._records: list[tuple[bytes, int, array[int]]] = []
        self._ids: array[int] = array("Q")
        self._failed: array[int] = array("Q")  # attempts with a failure
        self._failures: array[int] = array("Q")  # attempts whose failure is stored
        self._marked: dict[bytes, int] = {}  # last attempt, by record of handled attempts

    def record(self, key: ParsedKey, raw: bytes, value: Any) -> None:
        if key.kind is RecordKind.HISTORY_LOG:
            attempt, _row = key.numbers or (0, 0)
            self._end = max(self._end, attempt + len(value.attempts))
            self._failed.extend(number for number, row in enumerate(value.attempts, attempt) if row.state & DETAILED)
        elif key.kind is RecordKind.TASK_FAILURE:
            self._failures.extend(key.numbers or ())
        elif key.kind is RecordKind.HANDLED_FAILURES:
            self._handled(raw, value)
        elif key.kind is RecordKind.HISTORY_HEAD:
            self._head = value
        else:
            self._headers(key, raw, value)

    def _handled(self, raw: bytes, value: list[Handled]) -> None:
        self._marked[raw] = max(row.number for row in value)
        end = self.context.block_end
        for row in value:
            if end is not None and row.message_id >= end:
                text = f"attempt {row.number} was run again as message {row.message_id}, but ids from {end} on are new"
                self.add("history-wrong", text, key=raw, message_id=row.message_id)

    def _headers(self, key: ParsedKey, raw: bytes, value: dict[int, Pairs]) -> None:
        attempt, first = key.numbers or (0, 0)
        ids = array("Q", value)
        if ids[0] != first:
            text = f"the headers from message {first} on begin with those of message {ids[0]}"
            self.add("key-value-mismatch", text, key=raw)
        end, last = self.context.block_end, ids[-1]
        if end is not None and last >= end:
            text = f"headers of message {last} are kept, but ids from {end} on have not been assigned yet"
            self.add("history-wrong", text, key=raw, message_id=last)
        self._records.append((raw, attempt, ids))

    async def finish(self) -> None:
        self._ids = array("Q", sorted(id for _raw, _attempt, ids in self._records for id in ids))
        twice = [id for id, following in zip(self._ids, self._ids[1:], strict=False) if id == following]
        for id in twice:
            text = f"headers of message {id} are kept more than once"
            self.add("history-wrong", text, key=self._key_of(id), message_id=id)
        if self.context.sees(*_PLACES):
            self._compare_ends()
        self._compare_failures()

    def _compare_ends(self) -> None:
        """Check that no record has attempts after the end of the log, and that the index still needs the headers."""
        indexed = self._head.attempt
        end = max(self._end, indexed)
        for raw, attempt, _ids in self._records:
            if attempt > end:
                text = f"headers are kept for attempts before {attempt}, but the log ends before {end}"
                self.add("history-wrong", text, key=raw)
            elif attempt <= indexed:
                text = f"headers are kept for attempts before {attempt}, but the index has all before {indexed}"
                self.add("history-wrong", text, key=raw)
        for raw, number in self._marked.items():
            if number >= end:
                self.add("history-wrong", f"attempt {number} was handled, but the log ends before {end}", key=raw)

    def _compare_failures(self) -> None:
        if not self.context.sees(RecordKind.HISTORY_LOG, RecordKind.HISTORY_HEAD, RecordKind.TASK_FAILURE):
            return
        failed, stored = set(self._failed), set(self._failures)
        for number in sorted(failed - stored):
            text = f"the task of attempt {number} failed, but its error is not stored"
            self.add("history-wrong", text, key=keys.task_failure_key(number))
        for number in sorted(stored - failed):
            if number >= self._head.kept:  # older ones are removed by the next sweep
                text = f"the error of attempt {number} is stored, but the log has no such failure"
                self.add("history-wrong", text, key=keys.task_failure_key(number))

    def message(self, facts: MessageFacts) -> None:
        at = bisect_left(self._ids, facts.id)
        if at < len(self._ids) and self._ids[at] == facts.id and facts.metadata is not None:
            text = f"headers of message {facts.id} are kept, but it was not collected"
            self.add("history-wrong", text, key=self._key_of(facts.id), message_id=facts.id)

    def _key_of(self, id: int) -> bytes:
        """Return the key of the last record that has a message."""
        return next(raw for raw, _attempt, ids in reversed(self._records) if id in ids)
