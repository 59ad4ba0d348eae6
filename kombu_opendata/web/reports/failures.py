"""What failed and was not handled yet: groups, a list, and when tasks failed."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import Field

from ...client.calls.failure_queries import FailureFilters
from ...masking import Masking
from ...queue_client.message_models import moment
from ..brokers import UserBroker
from ..no_value import NONE, without_none

#: what failures can be grouped by
GROUPS = ("task", "exception", "queue", "reason", "worker")
#: rows of a page
PAGE = 50
#: the chart has so many bars; it goes back as far as failures are asked for, else for a day
BARS, CHART_HOURS = 48, 24
#: how long ago failures may be asked for: a century
Hours = Annotated[float, Field(ge=0, le=24 * 36525)]


@dataclass(frozen=True)
class Asked:
    """Which failures; nothing means all, and :data:`.NONE` those without such a value.

    ``hours`` is how long ago they failed at most; 0 means any time.
    """

    task: str = ""
    exception: str = ""
    queue: str = ""
    reason: str = ""
    worker: str = ""
    where: str = ""
    hours: float = 0

    def also(self, values: dict[str, str]) -> Asked:
        """Those of them that have these values, too."""
        more: dict[str, Any] = {name: value or NONE for name, value in values.items()}
        return replace(self, **more)

    def filters(self) -> FailureFilters:
        """For the client's calls."""
        given: Any = {f"{name}s": [without_none(value)] for name in GROUPS if (value := getattr(self, name))}
        if self.where:
            given["where"] = self.where
        if self.hours:
            given["gte"] = self._since()
        found: FailureFilters = given
        return found

    def _since(self) -> datetime:
        return datetime.now(UTC) - timedelta(hours=self.hours)

    def subject(self) -> dict[str, Any]:
        """For an action on them."""
        found: dict[str, Any] = {f"{name}s": [value] for name in GROUPS if (value := getattr(self, name))}
        since = self._since().isoformat(timespec="seconds") if self.hours else None
        return found | {"where": self.where, "since": since}


@dataclass(frozen=True)
class FailureGroupRow:
    """Failures that have the same values of what they are grouped by; ``asked`` selects them."""

    values: tuple[str, ...]
    count: int
    acknowledged: int
    first_at: datetime | None
    last_at: datetime | None
    asked: Asked


@dataclass(frozen=True)
class FailureRow:
    """A failure; see :class:`.FailureInfo`."""

    message_id: int
    queue: str
    kind: str
    task: str
    task_id: str
    reason: str
    exception: str
    error: str
    worker: str
    failed_at: datetime | None
    attempts: int


@dataclass(frozen=True)
class Bar:
    """How many failed from ``start`` to the next bar."""

    start: datetime
    count: int


@dataclass(frozen=True)
class Failures:
    """A page of failures and the groups of all.

    Attributes:
        by: what they are grouped by.
        is_complete: whether all are counted; the newest 500,000 are.
        next: the cursor of the next page; None on the last one.
        bars: when those of the last day failed, or of as many hours as are asked for.
    """

    asked: Asked
    by: tuple[str, ...]
    groups: tuple[FailureGroupRow, ...]
    total: int
    is_complete: bool
    rows: tuple[FailureRow, ...]
    next: str | None
    bars: tuple[Bar, ...]


async def failures(
    broker: UserBroker,
    masking: Masking,
    asked: Asked,
    by: tuple[str, ...] = ("task", "exception"),
    after: str | None = None,
) -> Failures:
    """A page of failures, the newest first, the groups of all, and when they failed.

    Raises:
        SelectorError: the filter is not valid.
        CursorError: the cursor is not valid for this page.
        NotFound: there is no such queue.
    """
    client = broker.client
    by = tuple(name for name in GROUPS if name in by) or ("task", "exception")
    filters = asked.filters()
    found = await broker.recent(("groups", asked, by), 2.0, lambda: client.group_failures(by, **filters))
    page = await client.list_failures(**filters, limit=PAGE, next=after)
    groups = tuple(
        FailureGroupRow(
            one.values, one.count, one.acknowledged, moment(one.first_at_ms), moment(one.last_at_ms),
            asked.also(dict(zip(by, one.values, strict=True))),
        )
        for one in found.groups
    )  # fmt: skip
    rows = tuple(
        FailureRow(
            one.message_id, one.queue, one.kind, one.task, one.task_id, one.reason, one.exception,
            masking.text(one.error), one.worker, moment(one.failed_at_ms), one.attempts,
        )
        for one in page.items
    )  # fmt: skip
    total = sum(one.count for one in groups)
    bars = await broker.recent(("bars", asked), 10.0, lambda: _bars(broker, asked))
    return Failures(asked, by, groups, total, found.complete, rows, page.next, bars)


async def _bars(broker: UserBroker, asked: Asked) -> tuple[Bar, ...]:
    size = max(round(3600 * (asked.hours or CHART_HOURS) / BARS), 1)
    first = (int(time.time()) // size + 1 - BARS) * size
    filters = asked.filters()
    filters["gte"] = datetime.fromtimestamp(first, UTC)
    found = await broker.client.group_failures(["queue"], bucket_seconds=size, **filters)
    counts = Counter[int]()
    for group in found.groups:
        counts.update(group.over_time)
    starts = range(first, first + BARS * size, size)
    return tuple(Bar(datetime.fromtimestamp(start, UTC), counts[1000 * start]) for start in starts)
