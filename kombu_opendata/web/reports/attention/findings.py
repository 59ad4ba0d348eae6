"""Order of all findings, the most severe first: a pure function. docs/web.md has the thresholds."""

from __future__ import annotations

from .broker_rules import broker_findings
from .finding import SEVERITIES, AttentionFinding
from .queue_rules import queue_findings
from .seen import Seen
from .task_rules import task_findings

#: order of kinds within one severity
_ORDER = (
    "store_stalled", "not_active", "store_full", "memory_full", "not_consumed", "hanging", "failing", "growing",
)  # fmt: skip


def findings(seen: Seen) -> list[AttentionFinding]:
    """Return the findings, the most severe first."""
    unsorted = [*broker_findings(seen), *queue_findings(seen), *task_findings(seen)]
    return sorted(unsorted, key=_rank)


def _rank(one: AttentionFinding) -> tuple[int, int, str, float, str]:
    order = _ORDER.index(one.kind) if one.kind in _ORDER else len(_ORDER)
    return SEVERITIES.index(one.severity), order, one.kind, -one.weight, one.subject
