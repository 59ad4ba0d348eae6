"""Checks of the records about the whole store: its header, the block of message ids, times."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from ...storage.records import keys
from ...storage.records.keys import ParsedKey, RecordKind
from ..findings import Finding, finding
from .family import Family


class HeaderFamily(Family):
    """Family of records that exist once in a store."""

    kinds = (
        RecordKind.STORE_HEADER,
        RecordKind.SEQ_BLOCK,
        RecordKind.JOURNAL_POSITION,
        RecordKind.NEWEST_TIME,
        RecordKind.LOG_RETENTION,
    )

    def record(self, key: ParsedKey, raw: bytes, value: Any) -> Iterator[Finding]:
        plausible = self.context.is_plausible
        if key.kind is RecordKind.SEQ_BLOCK:
            yield from self._block(raw, *value)
        elif key.kind is RecordKind.STORE_HEADER:
            here = self.context.store.location.instance
            if value.instance != here:
                text = f"the header names the instance {value.instance!r}, but the store is at {here!r}"
                yield finding("header-instance", text, key=raw)
            if not 0 < value.created_at_ms <= self.context.now_ms + 86_400_000:
                yield finding("time-implausible", f"the store was created at {value.created_at_ms} ms", key=raw)
        elif key.kind is RecordKind.NEWEST_TIME and not plausible(value):
            yield finding("time-implausible", f"the newest time in the store is {value} ms", key=raw)
        elif key.kind is RecordKind.LOG_RETENTION and value.swept_at_ms and not plausible(value.swept_at_ms):
            yield finding("time-implausible", f"the log was swept at {value.swept_at_ms} ms", key=raw)

    def _block(self, raw: bytes, base: int, size: int) -> Iterator[Finding]:
        self.context.block_end = base + size
        if not size or base + size > keys.MAX_MESSAGE_ID:
            yield finding("sequence-behind", f"the sequence block has {size} ids from {base} on", key=raw)

    async def finish(self) -> AsyncIterator[Finding]:
        context = self.context
        used = max((span.high for span in context.spans), default=None)
        if context.block_end is not None or used is None or not context.sees(RecordKind.SEQ_BLOCK):
            return
        if context.can_tell(keys.SEQ_BLOCK_KEY):
            text = f"there is no sequence block, but message ids up to {used} are in use"
            yield finding("sequence-missing", text, key=keys.SEQ_BLOCK_KEY)
