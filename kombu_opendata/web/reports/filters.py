"""Filter checks, and explanations of matches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import SelectorError
from ...masking import Masking
from ...selectors.selector import Explanation, compile_selector
from ..brokers import UserBroker


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


async def explain(
    broker: UserBroker, masking: Masking, *, queue: str = "", id: int, where: str = ""
) -> MatchExplanation:
    """Explain why a filter, or a queue's filter, matches a stored message or not.

    Raises:
        NotFound: there is no such queue or message.
        SelectorError: the filter is not valid.
    """
    report = _masked(await broker.client.explain("" if where else queue, id=id, filter=where), masking)
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
