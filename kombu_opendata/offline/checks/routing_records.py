"""Checks of routing cursors, and of the sends that idempotency keys represent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from ...selectors import SelectorError, compile_selector
from ...storage.records.idempotency import Sending
from ...storage.records.keys import ParsedKey, RecordKind
from ...storage.records.kinds import FIRST_TRANSIENT_ID
from ...storage.records.routing_cursor import Cursor
from ..findings import Finding, finding
from .family import CheckContext, Family


class RoutingFamily(Family):
    """Family of cursors and idempotency keys. Collects the cursors, of which a queue has at most one."""

    kinds = (RecordKind.CURSOR, RecordKind.IDEMPOTENCY)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._cursors: list[tuple[str, bytes, Cursor]] = []

    def record(self, key: ParsedKey, raw: bytes, value: Any) -> Iterator[Finding]:
        if key.kind is RecordKind.CURSOR:
            self._cursors.append((key.name or "", raw, value))
        else:
            yield from self._sending(raw, value)

    def _sending(self, raw: bytes, sending: Sending) -> Iterator[Finding]:
        """Check that the ids in the reply have been assigned and that each has a destination, or all share one."""
        end = self.context.block_end
        wrong = [id for id in sending.ids if id < -1 or (end is not None and end <= id < FIRST_TRANSIENT_ID)]
        if wrong:
            text = f"an idempotency key stands for message {wrong[0]}, whose id has not been assigned yet"
            yield finding("idempotency-wrong", text, key=raw)
        if len(sending.queues) not in (1, len(sending.ids)):
            text = f"an idempotency key stands for {len(sending.ids)} messages and {len(sending.queues)} destinations"
            yield finding("idempotency-wrong", text, key=raw)

    async def finish(self) -> AsyncIterator[Finding]:
        for queue, raw, cursor in self._cursors:
            wrong = "; ".join(self._cursor(queue, cursor))
            if wrong:
                yield finding("cursor-wrong", f"the routing cursor of queue {queue!r}: {wrong}", key=raw, queue=queue)

    def _cursor(self, queue: str, cursor: Cursor) -> Iterator[str]:
        if not self.context.exists(queue):
            yield "there is no such queue"
        if cursor.position < cursor.start:
            yield f"it is at {cursor.position}, before its start {cursor.start}"
        end = self.context.block_end
        if end is not None and cursor.end > end:
            yield f"it ends at {cursor.end}, but ids from {end} on have not been assigned yet"
        if cursor.routed > cursor.seen:
            yield f"it routed {cursor.routed} messages but examined only {cursor.seen}"
        try:
            if cursor.selector:
                compile_selector(cursor.selector)
        except SelectorError as exc:
            yield f"its selector is not valid ({exc.text})"
