"""Archiving of failed messages and deletion of settled ones, in small steps.

Each step is one effect, so an interruption leaves every message in exactly one place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from ...selectors import Selector
from ..effects.message_moves import ArchiveFailedEffect, MoveSettledEffect
from ..engine_parts import EngineParts, EngineService
from ..read.settled_buckets import SettledBuckets
from ..read.stored_messages import matching, read_metadata
from ..records import settled
from ..state.settled_list import ListName
from ..state.store_state import Queue

#: deleted messages after which a checkpoint is written, so that it is not large
GARBAGE_PER_CHECKPOINT = 4096
#: approximate journal bytes of one row
ROW_BYTES = 60


class Selection(NamedTuple):
    """The conditions for messages of an operation on a settled list.

    Attributes:
        ids: the ids of the messages; None for any.
        selector: matches the metadata headers of the messages.
        before_ms: the upper bound of the time of settlement, exclusive, in ms since the epoch.
        limit: the largest number of messages; 0 for no limit.
    """

    ids: Collection[int] | None = None
    selector: Selector | None = None
    before_ms: int | None = None
    limit: int = 0

    def takes(self, row: settled.SettledEntry) -> bool:
        """Return True if a row meets the conditions on ids and time."""
        return (self.ids is None or row.message_id in self.ids) and (
            self.before_ms is None or row.settled_at_ms < self.before_ms
        )


class SettledMoves(EngineService):
    """Archiving and deletion of settled messages of one instance's queues."""

    def __init__(self, parts: EngineParts, buckets: SettledBuckets) -> None:
        super().__init__(parts)
        self._buckets = buckets

    async def archive_failed(self, queue: Queue, selection: Selection, on_step: Callable[[int], bool]) -> int:
        """Archive failed messages of a queue; return their number. They keep their records until they are deleted.

        ``on_step``: called with the total number after each step; returns False to stop.
        """
        log = queue.failed
        archived = 0
        limit = selection.limit
        for number in range(log.first, log.tail + 1):
            async with self._commits.checkpointing, self._buckets.hold(queue, "failed", number) as entries:
                rows = await self._matching([row for row in entries if selection.takes(row)], selection.selector)
                if self._state.queues.get(queue.name) is not queue:
                    break
                rows = rows[: limit - archived] if limit else rows
                if rows:
                    self._commits.check_room(ROW_BYTES * (len(rows) + 4))
                    self._commits.apply(ArchiveFailedEffect.of(queue.name, number, rows))
                    self._commits.needs_sync = True
                    archived += len(rows)
            if not on_step(archived) or 0 < limit <= archived:
                break
        return archived

    async def _matching(
        self, rows: list[settled.SettledEntry], selector: Selector | None
    ) -> list[settled.SettledEntry]:
        """Return the rows of the messages whose headers the selector matches."""
        if selector is None:
            return rows
        metadata = await read_metadata(self._store, self._payloads, [row.message_id for row in rows])
        ids = await matching(selector, metadata.values())
        return [row for row in rows if row.message_id in ids]

    async def delete(
        self,
        queue: Queue,
        which: ListName,
        selection: Selection,
        on_step: Callable[[int], bool] = lambda _deleted: True,
        bucket: int | None = None,
    ) -> int:
        """Delete settled messages of a queue, or of one bucket; return their number.

        Records that another queue needs remain. ``on_step`` is as in :meth:`archive_failed`.
        """
        log, deleted = queue.settled_list(which), 0
        for number in range(log.first, log.tail + 1) if bucket is None else (bucket,):
            rows, count = await self._delete_from(queue, which, number, selection)
            deleted += count
            is_by_age = which != "archived_failed"  # that list is in the order of archiving
            rest_is_younger = rows and selection.before_ms is not None and rows[-1][1] >= selection.before_ms
            alive = self._state.queues.get(queue.name) is queue
            if not alive or not on_step(deleted) or (is_by_age and rest_is_younger):
                break
            if len(self._state.dirty.garbage) >= GARBAGE_PER_CHECKPOINT:
                await self._commits.checkpoint()
        return deleted

    async def _delete_from(
        self, queue: Queue, which: ListName, number: int, selection: Selection
    ) -> tuple[list[settled.SettledEntry], int]:
        """Delete messages of a bucket; return its rows before the deletion, and the number of deleted messages."""
        async with self._commits.checkpointing, self._buckets.hold(queue, which, number) as rows:
            ids = [row.message_id for row in rows if selection.takes(row)]
            if not ids or self._state.queues.get(queue.name) is not queue:
                return rows, 0
            self._commits.check_room(ROW_BYTES * (len(ids) + 4))
            self._commits.apply(MoveSettledEffect(queue.name, self._clock.now_ms(), which, number, ids, "", []))
            self._commits.needs_sync = True
            for id in ids:
                self._payloads.drop(id)
            return rows, len(ids)
