"""The rows of the benchmark's table and their targets, from `rows.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

OURS, RABBITMQ, REDIS = "ours", "rabbitmq", "redis"
QUORUM = "quorum"
"""RabbitMQ with quorum queues: the node of `RABBITMQ`."""
ALWAYS = "always"
"""A Redis that syncs its file before it answers."""

# Series of our own broker that rows are compared with.
EMPTY, TWO, ONE, UNTRACED, PLAIN = "empty", "two", "one", "untraced", "plain"

TITLES = {
    OURS: "ours",
    RABBITMQ: "RabbitMQ",
    REDIS: "Redis",
    QUORUM: "RabbitMQ quorum",
    ALWAYS: "Redis `always`",
    EMPTY: "an empty queue",
    TWO: "two processes",
    ONE: "one producer",
    UNTRACED: "no tracing",
    PLAIN: "plain messages or queues",
}


@dataclass(frozen=True)
class Target:
    """A bound of our median: in the row's unit, or a multiple of the median of the series `against`."""

    comparison: str
    bound: float
    against: str = ""

    def __str__(self) -> str:
        return f"{self.comparison} {self.bound:g}" + (f" × {TITLES[self.against]}" if self.against else "")

    def is_met(self, value: float) -> bool:
        """Compare a median, or a ratio of two, with the bound."""
        return value >= self.bound if self.comparison == "≥" else value <= self.bound


@dataclass(frozen=True)
class Row:
    """One measured quantity: its key, the text that names it, its unit and its targets."""

    key: str
    work: str
    unit: str
    targets: tuple[Target, ...] = ()

    @property
    def workload(self) -> str:
        return self.key.partition(".")[0]


def targets_of(text: str) -> tuple[Target, ...]:
    """Parse the targets of a row."""
    words = (target.split() for target in text.split(";") if target)
    return tuple(Target(comparison, float(bound), *against) for comparison, bound, *against in words)


def _read() -> tuple[Row, ...]:
    rows = tomllib.loads(Path(__file__).with_name("rows.toml").read_text(encoding="utf-8"))
    return tuple(Row(key, work, unit, targets_of("".join(targets))) for key, (work, unit, *targets) in rows.items())


ROWS = _read()
WORKLOADS = (*dict.fromkeys(row.workload for row in ROWS), "curves")
"""Values of ``--only``: the part of a row's key before the dot, and ``curves``, which has no rows."""
