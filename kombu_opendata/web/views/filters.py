"""Checks of filters, and explanations of matches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import OpenDataError, SelectorError
from ...masking import Masking
from ...selectors.selector import Explanation, compile_selector
from ..reports.message_rows import id_of
from ..visit import AVisit
from .view import Context, Views

VIEWS = Views("queues")


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
    """An explanation of the match of a queue's filter, or of a given filter, with a message.

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
