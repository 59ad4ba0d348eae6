"""View of replays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...json_values import moment
from ..request_context import AVisit
from .view import Views

VIEWS = Views("replays")


@dataclass(frozen=True)
class ReplayRow:
    """The newest replay of a queue.

    Attributes:
        state: ``running``, ``waiting`` (the queue is full or paused), ``failing`` (see ``error``) or ``done``.
        share: the progress, 0 to 1.
        examined, put_in: messages examined, and routed to the queue.
        per_second: messages examined per second.
        seconds_left: an estimate; None if unknown.
        where: the filter that messages had to match; empty if there is none.
        error: the error of the last step.
    """

    queue: str
    state: str
    share: float
    examined: int
    put_in: int
    per_second: float
    seconds_left: float | None
    where: str
    error: str
    started_at: datetime | None
    changed_at: datetime | None


@dataclass(frozen=True)
class ReplayReport:
    """Replays, the running ones first."""

    replays: tuple[ReplayRow, ...]


@VIEWS.view("/replays", "replays.html")
async def list_replays(visit: AVisit) -> ReplayReport:
    """Return the newest replay of each queue."""
    cursors = await visit.broker.recent("replays", 1.0, visit.broker.client.replay_progress)
    return ReplayReport(tuple(sorted(map(_replay, cursors), key=lambda row: (row.state == "done", row.queue))))


def _replay(cursor: Mapping[str, Any]) -> ReplayRow:
    total, examined = cursor["end"] - cursor["start"], cursor["position"] - cursor["start"]
    rate, is_done = float(cursor["rate"]), cursor["done"]
    state = "failing" if cursor["error"] else "waiting" if cursor["waiting"] else "running"
    return ReplayRow(
        queue=cursor["queue"],
        state="done" if is_done else state,
        share=1.0 if is_done else _share(examined, total),
        examined=cursor["seen"],
        put_in=cursor["routed"],
        per_second=rate,
        seconds_left=None if is_done or rate <= 0 else (total - examined) / rate,
        where=cursor["selector"],
        error=cursor["error"],
        started_at=moment(cursor["started_at_ms"]),
        changed_at=moment(cursor["changed_at_ms"]),
    )


def _share(part: int, whole: int) -> float:
    return min(part / whole, 1.0) if whole > 0 else 1.0
