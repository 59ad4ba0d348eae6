"""Decides each point of docs/contract.md for a history: the anomalies that a broker that keeps its promises can't have.

A rule is a generator of texts. It says nothing where the history leaves several explanations open: what a client that
was killed has sent may have arrived or not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from .events import History, Started
from .index import Index

Rule = Callable[[Index], Iterator[str]]
#: the rules of each point of the contract
RULES: dict[int, list[Rule]] = defaultdict(list)
#: points that also hold while a store is damaged, and the damage is reported
_WHILE_DAMAGED = (2, 7, 8, 13, 14, 15, 16)
_INTEGRITY = 15
#: what changed bits of a store may do, as numbers of a record
FLIPS = REPORTED, WITHOUT_EFFECT, UNDETECTED = ("flips reported", "flips without effect", "flips undetected")


class Anomaly(NamedTuple):
    """A broken promise: the number of its point, and what happened."""

    point: int
    text: str


def decides(point: int) -> Callable[[Rule], Rule]:
    """Register a rule of a point."""

    def register(rule: Rule) -> Rule:
        RULES[point].append(rule)
        return rule

    return register


def check(history: History) -> list[Anomaly]:
    """Return all anomalies of a history, in the order of the points."""
    from . import delivery_rules, flow_rules, message_rules, state_rules  # noqa: F401 - they register their rules

    index = Index(history)
    found = [Anomaly(point, text) for point in sorted(RULES) for rule in RULES[point] for text in rule(index)]
    if not index.is_damaged:
        return found
    if is_reported(history):
        return [anomaly for anomaly in found if anomaly.point in _WHILE_DAMAGED]
    return [Anomaly(_INTEGRITY, f"unreported damage: {text}") for _point, text in found]


def effect_of_damage(history: History, anomalies: Iterable[Anomaly]) -> str:
    """Return which of FLIPS the damage in a history is; its anomalies are those of :func:`check`."""
    if is_reported(history):
        return REPORTED
    return UNDETECTED if any(anomaly.point == _INTEGRITY for anomaly in anomalies) else WITHOUT_EFFECT


def summaries(seed: int, anomalies: Iterable[Anomaly]) -> list[str]:
    """Return a line for the anomalies of each point, in the form of the records in tests/reliability."""
    texts: dict[int, list[str]] = defaultdict(list)
    for point, text in anomalies:
        texts[point].append(text)
    return [
        f"{f'{len(found)} anomalies such as ' if found[1:] else ''}SEED={seed}, point {point}: {_first_line(found[0])}"
        for point, found in texts.items()
    ]


def _first_line(text: str) -> str:
    """Return the first line of an anomaly; of a traceback, that of its error."""
    lines = text.strip().splitlines()
    raised = [line for line in lines if line and not line.startswith((" ", "Traceback"))]
    return (raised or lines)[0][:200]


def is_reported(history: History) -> bool:
    """Whether ``store verify`` or a broker reported that a store is damaged."""
    refused = any(isinstance(event, Started) and event.error for event in history.events)
    return refused or bool(history.store.findings or history.store.refusal)
