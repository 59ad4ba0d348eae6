"""What failed and was not handled yet: groups, a list, and when tasks failed."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import Field

from ...client.calls.failure_queries import FailureFilters
from ...errors import PreconditionFailed
from ...queue_client.message_models import moment
from ..brokers import Broker
from ..masking import Masking

#: what failures can be grouped by
GROUPS = ("task", "exception", "queue", "reason", "worker")
#: rows of a page
PAGE = 50
#: how far the chart goes back, and the time of one bar
CHART_HOURS, BAR_MINUTES = 24, 30
#: how long ago failures may be asked for: a century
Hours = Annotated[float, Field(ge=0, le=24 * 36525)]
#: what a task's run that failed is reported as
_FAILED = ("raised", "timed_out", "lost", "rejected")


@dataclass(frozen=True)
class Asked:
    """Which failures; nothing means all. ``hours`` is how long ago they failed at most; 0 means any time."""

    task: str = ""
    exception: str = ""
    queue: str = ""
    reason: str = ""
    worker: str = ""
    where: str = ""
    hours: float = 0

    def also(self, values: dict[str, str]) -> Asked:
        """Those of them that have these values, too."""
        more: dict[str, Any] = {**values}
        return replace(self, **more)

    def filters(self) -> FailureFilters:
        """For the client's calls."""
        given: Any = {f"{name}s": [value] for name in GROUPS if (value := getattr(self, name))}
        if self.where:
            given["where"] = self.where
        if self.hours:
            given["gte"] = datetime.now(UTC) - timedelta(hours=self.hours)
        found: FailureFilters = given
        return found

    def subject(self) -> dict[str, Any]:
        """For an action on them."""
        found: dict[str, Any] = {**self.filters()}
        since = found.pop("gte", None)
        return found | ({} if since is None else {"since": since.isoformat(timespec="seconds")})


@dataclass(frozen=True)
class Group:
    """Failures that have the same values of what they are grouped by.

    Attributes:
        asked: selects them, and others if one of the values is empty: no filter means "without an exception".
        is_exact: whether ``asked`` selects nothing else, so that an action may take it.
    """

    values: tuple[str, ...]
    count: int
    acknowledged: int
    first_at: datetime | None
    last_at: datetime | None
    asked: Asked
    is_exact: bool


@dataclass(frozen=True)
class Failure:
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
    """How many tasks failed in some minutes from ``start`` on, handled meanwhile or not."""

    start: datetime
    count: int


@dataclass(frozen=True)
class Failures:
    """A page of failures and the groups of all.

    Attributes:
        by: what they are grouped by.
        is_complete: whether all are counted; the newest 500,000 are.
        next: the cursor of the next page; None on the last one.
        bars: of the last day; empty if the broker keeps no history.
    """

    asked: Asked
    by: tuple[str, ...]
    groups: tuple[Group, ...]
    total: int
    is_complete: bool
    rows: tuple[Failure, ...]
    next: str | None
    bars: tuple[Bar, ...]


async def failures(
    broker: Broker,
    masking: Masking,
    asked: Asked,
    by: tuple[str, ...] = ("task", "exception"),
    after: str | None = None,
) -> Failures:
    """A page of failures, the newest first, the groups of all, and when tasks failed.

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
        Group(
            one.values, one.count, one.acknowledged, moment(one.first_at_ms), moment(one.last_at_ms),
            asked.also(dict(zip(by, one.values, strict=True))), all(one.values),
        )
        for one in found.groups
    )  # fmt: skip
    rows = tuple(
        Failure(
            one.message_id, one.queue, one.kind, one.task, one.task_id, one.reason, one.exception,
            masking.text(one.error), one.worker, moment(one.failed_at_ms), one.attempts,
        )
        for one in page.items
    )  # fmt: skip
    total = sum(one.count for one in groups)
    bars = await broker.recent(("bars", asked), 10.0, lambda: _bars(broker, asked))
    return Failures(asked, by, groups, total, found.complete, rows, page.next, bars)


async def _bars(broker: Broker, asked: Asked) -> tuple[Bar, ...]:
    size = 60 * BAR_MINUTES
    end = (int(time.time()) // size + 1) * size
    given: Any = {
        "queues": [asked.queue] if asked.queue else None,
        "exceptions": [asked.exception] if asked.exception else None,
        "headers": {"task": asked.task} if asked.task else None,
        "consumers": [asked.worker] if asked.worker else None,
    }
    try:
        counts = await broker.client.count_attempts(
            states=[asked.reason] if asked.reason in _FAILED else _FAILED,
            gte=datetime.fromtimestamp(end - 3600 * CHART_HOURS, UTC), lt=datetime.fromtimestamp(end, UTC),
            bucket_seconds=size, **given,
        )  # fmt: skip
    except PreconditionFailed:
        return ()
    return tuple(Bar(datetime.fromtimestamp(one.start_ms / 1000, UTC), one.count) for one in counts)
