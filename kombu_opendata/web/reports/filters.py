"""Filters: whether one is valid, and why a message matches or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import SelectorError
from ...masking import Masking
from ...selectors.explain import Explanation
from ...selectors.selector import compile_selector
from ..brokers import UserBroker


@dataclass(frozen=True)
class FilterCheck:
    """Whether a filter is valid; otherwise what is wrong, and where."""

    is_valid: bool
    fault: str = ""
    line: int = 0
    column: int = 0


def check_filter(where: str) -> FilterCheck:
    """Whether a filter is valid. Nothing is asked of the broker."""
    if not where.strip():
        return FilterCheck(True)
    try:
        compile_selector(where)
    except SelectorError as exc:
        return FilterCheck(False, str(exc), exc.values.get("line", 0), exc.values.get("column", 0))
    return FilterCheck(True)


@dataclass(frozen=True)
class MatchExplanation:
    """Why a queue gets a message or not, or a filter matches it or not.

    Attributes:
        lines: the filter's parts with their values and the headers that they read, indented by nesting.
        report: as the broker gave it, with masked headers.
    """

    matches: bool
    lines: tuple[str, ...]
    report: dict[str, Any]


async def explain(
    broker: UserBroker, masking: Masking, *, queue: str = "", id: int, where: str = ""
) -> MatchExplanation:
    """Why a filter, or that of a queue, matches a stored message or not.

    Raises:
        NotFound: there is no such queue or message.
        SelectorError: the filter is not valid.
    """
    report = _masked(await broker.client.explain("" if where else queue, id=id, filter=where), masking)
    filter = report.get("filter")
    lines = str(Explanation.from_dict(filter)).split("\n") if filter else ["The queue has no filter."]
    return MatchExplanation(bool(report.get("matches")), tuple(lines), report)


def _masked(report: Any, masking: Masking) -> Any:
    """A report in which the headers of each explanation are masked; those that are missing stay so."""
    if isinstance(report, list):
        return [_masked(one, masking) for one in report]
    if not isinstance(report, dict):
        return report
    found = {name: _masked(value, masking) for name, value in report.items()}
    if isinstance(seen := report.get("headers"), dict):
        found["headers"] = seen | masking.value({name: value for name, value in seen.items() if value is not None})
    return found
