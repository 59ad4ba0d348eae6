"""Disk use of an instance's tables, the part of it that can be deleted, and the threshold for a deletion."""

from __future__ import annotations

import logging
from typing import Any

from ...errors import StoreError
from ..clock import Clock
from ..slatedb.slate_admin import DiskUse, SlateAdmin

log = logging.getLogger(__name__)

#: shorter than the lifetime of a compaction's checkpoint, so that each is seen
READ_SECONDS = 10.0
BUCKET_READ_SECONDS = 60.0
#: an idle store keeps garbage below this: collecting it writes a small table, which may cause another compaction
_WORTH_BYTES = 1 << 20


class DiskSpace:
    """The disk use of a database, read from its manifest periodically.

    Attributes:
        use: the disk use at the last reading; None before the first.
        freed_bytes: the size of unreferenced tables, which may still exist.
    """

    def __init__(self, admin: SlateAdmin, clock: Clock) -> None:
        self._admin, self._clock = admin, clock
        self._held: dict[str, int] = {}
        self.use: DiskUse | None = None
        self.freed_bytes = 0

    async def read(self) -> None:
        """Read the disk use again. If that fails, log the error and keep the old values."""
        try:
            use = await self._admin.disk_use(self._clock.now_ms())
        except StoreError as exc:
            log.warning("the size of the tables could not be read: %s", exc.text)
            return
        self.freed_bytes += sum(size for id, size in self._held.items() if id not in use.held)
        self.use, self._held = use, use.held

    @property
    def is_worth_collecting(self) -> bool:
        return self.freed_bytes >= _WORTH_BYTES

    @property
    def is_held(self) -> bool:
        """True if a checkpoint keeps tables that could be deleted otherwise."""
        return bool(self._held)

    def collected(self) -> None:
        """Reset the size of unreferenced tables after their deletion."""
        self.freed_bytes = 0

    def report(self) -> dict[str, Any]:
        """Return the disk use for the status call; times in ms since the epoch, 0 means never."""
        use = self.use
        if use is None:
            use = DiskUse(0, 0, {}, ())
        return {
            "live_bytes": use.live_bytes,
            "waiting_bytes": use.held_bytes + self.freed_bytes,
            "checkpoints": [
                {
                    "name": checkpoint.name,
                    "created_at_ms": checkpoint.created_at_ms,
                    "expires_at_ms": checkpoint.expires_at_ms or 0,
                }
                for checkpoint in sorted(
                    use.checkpoints, key=lambda checkpoint: (checkpoint.name, checkpoint.created_at_ms)
                )
            ],
            "tables": use.tables,
            "runs": use.runs,
            "unsorted_tables": use.unsorted,
            "compactions_running": [compaction.report() for compaction in use.compactions if compaction.is_active],
            "compactions_ended": [compaction.report() for compaction in use.compactions if not compaction.is_active],
            "at_ms": use.at_ms,
        }
