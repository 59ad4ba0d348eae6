"""View of failures that are not handled yet: groups, a list, and their times."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import Query
from msgspec import structs
from pydantic import BaseModel, ConfigDict, Field

from ...masking import Masking
from ...protocol.messages import FailureInfo
from ...queue_client.queries import FailureFilters
from ..actions.failure_actions import NONE, without_none
from ..reports.paging import Bar
from ..reports.wire_structs import WireStruct, copied
from ..request_context import AVisit
from ..user_clients import UserBroker
from .queue import check_filter
from .view import Context, Views

VIEWS = Views("failures")
#: the fields by which failures can be grouped
GROUPS = ("task", "exception", "queue", "reason", "worker")
#: rows of a page
PAGE = 50
#: number of bars of the chart, and its span if the request has none
BARS, CHART_HOURS = 48, 24
#: maximum age of the requested failures: a century
MAX_HOURS = 24 * 36525


class FailureSelection(BaseModel):
    """Filters of failures; an empty value means all, and :data:`.NONE` those without such a value.

    ``hours`` is their maximum age; 0 means any.
    """

    model_config = ConfigDict(frozen=True)
    task: str = ""
    exception: str = ""
    queue: str = ""
    reason: str = ""
    worker: str = ""
    where: str = ""
    hours: Annotated[float, Field(ge=0, le=MAX_HOURS)] = 0

    def also(self, values: dict[str, str]) -> FailureSelection:
        """Return these filters with further values."""
        return self.model_copy(update={name: value or NONE for name, value in values.items()})

    def filters(self) -> FailureFilters:
        """Return the filters for the client's calls."""
        arguments: Any = {f"{name}s": [without_none(value)] for name in GROUPS if (value := getattr(self, name))}
        if self.where:
            arguments["where"] = self.where
        if self.hours:
            arguments["gte"] = self._since()
        filters: FailureFilters = arguments
        return filters

    def _since(self) -> datetime:
        return datetime.now(UTC) - timedelta(hours=self.hours)

    def subject(self) -> dict[str, Any]:
        """Return the parameters of an action on these failures."""
        parameters: dict[str, Any] = {f"{name}s": [value] for name in GROUPS if (value := getattr(self, name))}
        since = self._since().isoformat(timespec="seconds") if self.hours else None
        return parameters | {"where": self.where, "since": since}


class FailureListQuery(FailureSelection):
    """The parameters of the view.

    ``by`` has the grouping fields, separated by commas; ``after`` is the cursor of a page.
    """

    by: str = "task,exception"
    after: str | None = None


@dataclass(frozen=True)
class FailureGroupRow:
    """Failures that have the same values of the grouping fields; ``selection`` selects them."""

    values: tuple[str, ...]
    count: int
    acknowledged: int
    first_at: datetime | None
    last_at: datetime | None
    selection: FailureSelection


@dataclass(frozen=True)
class Failures:
    """A page of failures and the groups of all.

    Attributes:
        by: the grouping fields.
        is_complete: whether all are counted; at least the newest 500,000 are.
        next: the cursor of the next page; None on the last one.
        bars: the times of failures in the last day, or in the requested number of hours.
    """

    selection: FailureSelection
    by: tuple[str, ...]
    groups: tuple[Annotated[FailureGroupRow, WireStruct()], ...]
    total: int
    is_complete: bool
    rows: tuple[Annotated[FailureInfo, WireStruct()], ...]
    next: str | None
    bars: tuple[Bar, ...]


async def _show(visit: AVisit, query: Annotated[FailureListQuery, Query()]) -> Context:
    """Return the failures; a filter that is not valid is ignored."""
    check = check_filter(query.where)
    valid = query if check.is_valid else query.model_copy(update={"where": ""})
    return {"report": await list_failures(visit, valid), "check": check, "where": query.where, "choices": GROUPS}


@VIEWS.view("/failed", "failed.html", api="/failures", page=_show)
async def list_failures(
    visit: AVisit, query: Annotated[FailureListQuery, Query()]
) -> Annotated[Failures, WireStruct()]:
    """Return a page of failures, the newest first, the groups of all failures, and the times of the failures.

    ``by`` has some of task, exception, queue, reason and worker, separated by commas; ``hours`` limits the result to
    the last hours.
    """
    selection = FailureSelection(**query.model_dump(exclude={"by", "after"}))
    return await failures(visit.broker, visit.site.masking, selection, tuple(query.by.split(",")), query.after)


async def failures(
    broker: UserBroker,
    masking: Masking,
    selection: FailureSelection,
    by: tuple[str, ...] = ("task", "exception"),
    after: str | None = None,
) -> Failures:
    """Return a page of failures, the newest first, the groups of all, and their times."""
    client = broker.client
    by = tuple(name for name in GROUPS if name in by) or ("task", "exception")
    filters = selection.filters()
    grouped = await broker.recent(("groups", selection, by), 2.0, lambda: client.group_failures(by, **filters))
    page = await client.list_failures(**filters, limit=PAGE, next=after or None)
    return Failures(
        selection=selection,
        by=by,
        groups=tuple(
            copied(FailureGroupRow, group, selection=selection.also(dict(zip(by, group.values, strict=True))))
            for group in grouped.groups
        ),
        total=sum(group.count for group in grouped.groups),
        is_complete=grouped.complete,
        rows=tuple(structs.replace(failure, error=masking.text(failure.error)) for failure in page.items),
        next=page.next,
        bars=await broker.recent(("bars", selection), 10.0, lambda: _bars(broker, selection)),
    )


async def _bars(broker: UserBroker, selection: FailureSelection) -> tuple[Bar, ...]:
    size = max(round(3600 * (selection.hours or CHART_HOURS) / BARS), 1)
    first = (int(time.time()) // size + 1 - BARS) * size
    filters = selection.filters()
    filters["gte"] = datetime.fromtimestamp(first, UTC)
    grouped = await broker.client.group_failures(["queue"], bucket_seconds=size, **filters)
    counts = Counter[int]()
    for group in grouped.groups:
        counts.update(group.over_time)
    starts = range(first, first + BARS * size, size)
    return tuple(Bar(datetime.fromtimestamp(start, UTC), counts[1000 * start]) for start in starts)
