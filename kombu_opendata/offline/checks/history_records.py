"""Compares the kept headers of collected messages with the history's log, its index, and the messages."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator
from typing import Any

from ...storage.records.history_headers import Collected
from ...storage.records.history_index import Head
from ...storage.records.keys import Key, RecordKind
from ..findings import Finding, finding
from ..records.message_facts import MessageFacts
from .family import Context, Family

_PLACES = (RecordKind.HISTORY_LOG, RecordKind.HISTORY_HEAD)


class HistoryFamily(Family):
    """Kept headers. Keeps the ids of their messages, 8 bytes each; of the log, only the number of attempts."""

    kinds = (RecordKind.HISTORY_LOG, RecordKind.HISTORY_HEAD, RecordKind.HISTORY_HEADERS)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._end = 0
        self._head = Head()
        self._records: list[tuple[bytes, int, array[int]]] = []
        self._ids: array[int] = array("Q")

    def record(self, key: Key, raw: bytes, value: Any) -> Iterator[Finding]:
        if key.kind is RecordKind.HISTORY_LOG:
            attempt, _row = key.numbers or (0, 0)
            self._end = max(self._end, attempt + len(value.attempts))
        elif key.kind is RecordKind.HISTORY_HEAD:
            self._head = value
        else:
            yield from self._headers(key, raw, value)

    def _headers(self, key: Key, raw: bytes, value: list[Collected]) -> Iterator[Finding]:
        attempt, first = key.numbers or (0, 0)
        if value[0].message_id != first:
            text = f"the headers from message {first} on begin with those of message {value[0].message_id}"
            yield finding("key-value-mismatch", text, key=raw)
        end, last = self.context.block_end, value[-1].message_id
        if end is not None and last >= end:
            text = f"headers of message {last} are kept, but ids from {end} on have not been assigned yet"
            yield finding("history-wrong", text, key=raw, message_id=last)
        self._records.append((raw, attempt, array("Q", [one.message_id for one in value])))

    async def finish(self) -> AsyncIterator[Finding]:
        self._ids = array("Q", sorted(id for _raw, _attempt, ids in self._records for id in ids))
        twice = [id for id, following in zip(self._ids, self._ids[1:], strict=False) if id == following]
        for id in twice:
            text = f"headers of message {id} are kept more than once"
            yield finding("history-wrong", text, key=self._key_of(id), message_id=id)
        indexed = self._head.attempt
        end = max(self._end, indexed)
        for raw, attempt, _ids in self._records if self.context.sees(*_PLACES) else ():
            if attempt > end:
                text = f"headers are kept for attempts before {attempt}, but the log ends before {end}"
                yield finding("history-wrong", text, key=raw)
            elif attempt <= indexed:
                text = f"headers are kept for attempts before {attempt}, but the index has all before {indexed}"
                yield finding("history-wrong", text, key=raw)

    def message(self, facts: MessageFacts) -> Iterator[Finding]:
        at = bisect_left(self._ids, facts.id)
        if at < len(self._ids) and self._ids[at] == facts.id and facts.metadata is not None:
            text = f"headers of message {facts.id} are kept, but it was not collected"
            yield finding("history-wrong", text, key=self._key_of(facts.id), message_id=facts.id)

    def _key_of(self, id: int) -> bytes:
        """The key of the (last) record with a message."""
        return next(raw for raw, _attempt, ids in reversed(self._records) if id in ids)
