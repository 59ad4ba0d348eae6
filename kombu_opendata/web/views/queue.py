"""Views of one queue: arguments, metrics, bindings and consumers, its messages by state, and filters for them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Annotated, Any, Literal

from msgspec import structs

from ...errors import AccessRefused, OpenDataError, SelectorError
from ...json_values import moment
from ...masking import Masking
from ...protocol.messages import PartitionInfo
from ...queue_client.administration import Worker
from ...queue_client.message_models import MessageState
from ...queue_client.queues import Binding, QueueInfo
from ...selectors.selector import Explanation, compile_selector
from ..rendering import STATE_NAMES
from ..reports.message_rows import MessageRow, id_of, infos_of, row_of
from ..reports.paging import Paged
from ..reports.queue_metrics import QueueMetricsObject, with_failures
from ..reports.wire_structs import WireStruct
from ..request_context import AVisit
from ..user_clients import UserBroker
from .view import Context, Views

VIEWS = Views("queues")
#: rows of a page
PAGE = 50
#: limits of a search, beyond which it is incomplete
MOST_SEARCHED, SEARCH_SECONDS = 20_000, 2.0
State = Literal["ready", "delayed", "in_flight", "running", "done", "archived"]
_BROKER_STATES = {name: state for state, name in STATE_NAMES.items()}
#: tabs by name: the state of their messages
TABS: dict[str, State] = {
    "ready": "ready", "delayed": "delayed", "flight": "in_flight", "running": "running", "done": "done",
    "archived": "archived",
}  # fmt: skip


@dataclass(frozen=True)
class QueueReport:
    """A queue.

    Attributes:
        bindings: the bindings that route messages to it.
        consumers: the names of its consumers; none for users who may not see the workers.
    """

    info: QueueInfo
    metrics: QueueMetricsObject
    bindings: tuple[Binding, ...]
    consumers: tuple[str, ...]


@dataclass(frozen=True)
class MessageRows:
    """A page of messages.

    Attributes:
        after: continues the list; None means there are no more.
        searched: the number of messages that a filter was applied to; 0 without a filter.
        is_complete: whether the search reached the end of the list.
    """

    rows: tuple[MessageRow, ...]
    after: int | str | None
    searched: int = 0
    is_complete: bool = True


async def _show(visit: AVisit, name: str, tab: str = "ready", where: str = "", after: str = "") -> Context:
    """Return a queue and a page of one of its tabs."""
    tab = tab if tab in TABS or tab == "failed" else "ready"
    check = check_filter(where)
    context: Context = {"report": await get_queue(visit, name), "tab": tab, "where": where, "check": check}
    context |= {"messages": None, "failures": None, "next": None}
    if not check.is_valid:
        return context
    if tab == "failed":
        page = await visit.broker.client.list_failures(queues=[name], where=where, limit=PAGE, next=after or None)
        mask = visit.site.masking.text
        failures = [structs.replace(failure, error=mask(failure.error)) for failure in page.items]
        return context | {"failures": failures, "next": page.next}
    messages = await list_messages(visit, name, TABS[tab], where, id_of(after))
    return context | {"messages": messages, "next": messages.after}


@VIEWS.view("/queue", "queue.html", page=_show)
async def get_queue(visit: AVisit, name: str) -> Annotated[QueueReport, WireStruct()]:
    """Return a queue with its metrics, bindings and consumers."""
    broker = visit.broker
    [metrics] = await with_failures(broker, [await broker.client.metrics(name)])
    info = await broker.client.get_queue(name)
    bindings = await broker.recent("bindings", 1.0, broker.client.list_bindings)
    workers: list[Worker] = []
    with suppress(AccessRefused):
        workers = await broker.recent("workers", 2.0, broker.client.workers)
    consumers = tuple(worker.name for worker in workers if name in worker.consumers)
    return QueueReport(info, metrics, tuple(binding for binding in bindings if binding.queue == name), consumers)


@VIEWS.api.get("/messages")
async def list_messages(
    visit: AVisit, queue: str, state: State = "ready", where: str = "", after: int | None = None
) -> MessageRows:
    """Return a page of the messages of a queue in one state that match a filter; for failures, see ``/failures``."""
    broker = visit.broker
    if state == "running":
        return await _running(broker, queue)
    broker_state: Any = _BROKER_STATES.get(state, state)
    if where:
        return await _search(broker, queue, broker_state, where, after)
    page = await broker.client.list_by_state(queue, broker_state, limit=PAGE, after=after)
    infos = await infos_of(broker, (message.id for message in page.messages), queue)
    return MessageRows(tuple(row_of(message, infos.get(message.id)) for message in page.messages), page.after)


async def _search(broker: UserBroker, queue: str, state: Any, where: str, after: int | None) -> MessageRows:
    """Return the messages whose metadata matches a filter; the web UI applies it, and ends a long search early."""
    selector = compile_selector(where)
    began, searched = monotonic(), 0
    rows: list[MessageRow] = []
    while True:
        page = await broker.client.list_by_state(queue, state, limit=500, after=after)
        infos = await infos_of(broker, (message.id for message in page.messages), queue)
        for message in page.messages:
            searched += 1
            info = infos.get(message.id)
            if info is not None and selector.matches(info.headers):
                rows.append(row_of(message, info))
        after = page.after
        is_over = len(rows) >= PAGE or searched >= MOST_SEARCHED or monotonic() - began > SEARCH_SECONDS
        if after is None or is_over:
            return MessageRows(tuple(rows), after, searched, after is None)


async def _running(broker: UserBroker, queue: str) -> MessageRows:
    """Return the messages whose tasks run, from the history."""
    page = await broker.client.list_messages(queues=[queue], statuses=["running"], limit=PAGE)
    rows = []
    for info in page.items:
        status = next(status for status in info.queues if status.queue == queue)
        state = MessageState(info.id, queue, "running", 0, status.attempts, holder=status.consumer)
        rows.append(row_of(state, info))
    return MessageRows(tuple(rows), None, is_complete=page.next is None)


# ---------------------------------------------------------------------- partitions
@dataclass(frozen=True)
class PartitionReport:
    """A page of the partitions of a queue.

    Attributes:
        by: the expression that partitions it; empty if it has no partitions.
        limited_by: the limit at which the whole queue is; empty if there is none.
        opens_at: the end of that limit; None if it is unknown.
    """

    queue: str
    by: str
    limited_by: str
    opens_at: datetime | None
    order: str
    search: str
    partitions: Paged[Annotated[PartitionInfo, WireStruct()]]


@VIEWS.view("/partitions", "partitions.html")
async def list_partitions(
    visit: AVisit,
    queue: str,
    order: Literal["backlog", "in_flight", "oldest", "key"] = "backlog",
    search: str = "",
    page: int = 1,
) -> PartitionReport:
    """Return a page of the partitions of a queue, with their limits."""
    page = min(max(page, 1), 10_000)
    found = await visit.broker.client.list_partitions(
        queue, order=order, search=search, offset=(page - 1) * PAGE, limit=PAGE
    )
    pages = max(1, -(-found.matching // PAGE))
    rows = Paged(tuple(found.partitions), found.matching, page, pages)
    return PartitionReport(queue, found.by, found.limited_by, moment(found.opens_at_ms), order, search, rows)


# ---------------------------------------------------------------------- filters
@dataclass(frozen=True)
class FilterCheck:
    """The validity of a filter, with the error and its position."""

    is_valid: bool
    fault: str = ""
    line: int = 0
    column: int = 0


def check_filter(where: str) -> FilterCheck:
    """Check a filter, without contacting the broker."""
    if not where.strip():
        return FilterCheck(True)
    try:
        compile_selector(where)
    except SelectorError as exc:
        return FilterCheck(False, str(exc), exc.values.get("line", 0), exc.values.get("column", 0))
    return FilterCheck(True)


@dataclass(frozen=True)
class MatchExplanation:
    """Explanation why a filter matches a message or not.

    Attributes:
        lines: the filter's parts with their values and the headers that they read, indented by nesting.
        report: the broker's report, with masked headers.
    """

    matches: bool
    lines: tuple[str, ...]
    report: dict[str, Any]


async def _show_check(visit: AVisit, where: str = "") -> Context:
    return {"check": check_filter(where), "where": where}


@VIEWS.view("/filters/check", "filter_check.html", page=_show_check)
async def filter_is_valid(where: str = "") -> FilterCheck:
    """Check that a filter is valid."""
    return check_filter(where)


async def _show_explanation(visit: AVisit, id: str = "", queue: str = "", where: str = "") -> Context:
    """Return the explanation, or the error in its place."""
    if (message := id_of(id)) is None:
        return {"report": None, "fault": "Give the number of a message."}
    try:
        return {"report": await explain_filter(visit, message, queue, where)}
    except OpenDataError as exc:
        return {"report": None, "fault": str(exc)}


@VIEWS.view("/filters/explain", "filter_explained.html", page=_show_explanation)
async def explain_filter(visit: AVisit, id: int, queue: str = "", where: str = "") -> MatchExplanation:
    """Explain why a filter, or a queue's filter, matches a stored message or not."""
    answer = await visit.broker.client.explain("" if where else queue, id=id, filter=where)
    report = _masked(answer, visit.site.masking)
    filter = report.get("filter")
    lines = str(Explanation.from_dict(filter)).split("\n") if filter else ["The queue has no filter."]
    return MatchExplanation(bool(report.get("matches")), tuple(lines), report)


def _masked(report: Any, masking: Masking) -> Any:
    """Return a report in which the headers of each explanation are masked; missing ones stay missing."""
    if isinstance(report, list):
        return [_masked(item, masking) for item in report]
    if not isinstance(report, dict):
        return report
    masked = {name: _masked(value, masking) for name, value in report.items()}
    if isinstance(headers := report.get("headers"), dict):
        masked["headers"] = headers | masking.value(
            {name: value for name, value in headers.items() if value is not None}
        )
    return masked
