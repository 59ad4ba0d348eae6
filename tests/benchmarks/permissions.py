"""Checking the rights of a publish, in this process: CPU time alone, without a broker around it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from kombu_opendata.broker.access.file_format import Patterns
from kombu_opendata.broker.access.rights import Rights
from kombu_opendata.broker.calls.dispatch.required_rights import publish
from kombu_opendata.cli.administration.users import celery_pattern
from kombu_opendata.protocol.messages import Publish

from .results import Results
from .targets import OURS
from .workloads import Sizes

QUEUES = 100
CALLS = 200_000
NEW_NAMES = 20_000


def publishes(names: list[str]) -> list[Publish]:
    """As Celery publishes: to the default exchange, with the queue's name as the routing key."""
    return [Publish(0, 1, "", name, b"", {}, 0, 1) for name in names]


def microseconds(pattern: str, given: list[Publish], calls: int) -> float:
    """CPU time for each check, for a user with this pattern."""
    rights = Rights("user", "default", Patterns(pattern, pattern, pattern))
    call: Any = SimpleNamespace(session=SimpleNamespace(rights=rights))
    start = time.process_time()
    for number in range(calls):
        publish(call, given[number % len(given)])
    return (time.process_time() - start) / calls * 1e6


def measure(sizes: Sizes, results: Results) -> None:
    """Adds one sample of each row per round."""
    names = [f"queue-{number}" for number in range(QUEUES)]
    new = [f"new-{number}" for number in range(NEW_NAMES)]
    celery = celery_pattern(tuple(names))
    for _ in range(sizes.rounds):
        results.add("permissions.publish", OURS, microseconds(celery, publishes(names), CALLS))
        results.add("permissions.all", OURS, microseconds(".*", publishes(names), CALLS))
        results.add("permissions.new", OURS, microseconds("^new-|^amq[.]results$", publishes(new), NEW_NAMES))
