"""What SlateDB's compactor does: the compactions that run or wait, and the one that ended last."""

from __future__ import annotations

from typing import Any, NamedTuple

from .ulids import ulid_time_ms


class Compaction(NamedTuple):
    """One compaction.

    Attributes:
        status: ``submitted``, ``scheduled``, ``running``, ``compacted``, ``completed`` or ``failed``.
        planned_at_ms: when it was planned.
        sources: how many tables and runs it merges.
        processed_bytes: how much it has read.
    """

    status: str
    planned_at_ms: int
    sources: int
    processed_bytes: int
    is_active: bool

    def report(self) -> dict[str, Any]:
        """For the status call."""
        return {
            "status": self.status, "planned_at_ms": self.planned_at_ms, "sources": self.sources,
            "processed_bytes": self.processed_bytes,
        }  # fmt: skip


def compaction_of(found: Any) -> Compaction:
    """A compaction as the binding gives it."""
    return Compaction(
        found.status.name.lower(), ulid_time_ms(found.id), len(found.spec.sources), found.bytes_processed, found.active
    )
