"""Findings about the broker and its store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....readable_text import age, counted, number
from .finding import AttentionFinding
from .seen import Seen

#: a store that has accepted no writes for this time is stalled
STALLED_SECONDS = 2.0
#: share of a limit from which it is nearly reached
NEARLY = 0.9
#: duration for which an early removal of settled messages is reported
REMOVED_SECONDS = 3600.0
#: waiting dead letters that are a finding: normally the next commit publishes them
DEAD_LETTERS = 100
#: clocks that differ by more make ages and deadlines wrong
CLOCK_SECONDS = 5.0


def broker_findings(seen: Seen) -> Iterator[AttentionFinding]:
    """Yield the findings about the broker and its store."""
    if abs(seen.clock_ahead_seconds) >= CLOCK_SECONDS:
        relation = "ahead of" if seen.clock_ahead_seconds > 0 else "behind"
        text = f" is {age(abs(seen.clock_ahead_seconds))} {relation} the clock of the web UI's host: ages are wrong."
        yield AttentionFinding("clock", "warn", "", "The broker's clock", text, "store")
    if not seen.status:
        return
    yield from _process(seen.status, seen)
    instances = seen.status.get("instances", {})
    for name, report in instances.items():
        where = f" of instance {name}" if len(instances) > 1 else ""
        yield from _instance(report, where, seen)


def _process(status: dict[str, Any], seen: Seen) -> Iterator[AttentionFinding]:
    if status.get("state", "active") != "active":
        text = f" is {status['state']}: another broker takes its place, or it is starting."
        yield AttentionFinding("not_active", "bad", "", "The broker", text, "store")
    memory = status.get("memory") or {}
    used, limit = memory.get("resident_bytes", 0), memory.get("limit_bytes", 0)
    if memory.get("is_full"):
        text = f" has reached its limit of {limit >> 20:,} MiB: publishers wait until consumers have caught up."
        yield AttentionFinding("memory_full", "bad", "", "The broker's memory", text, "store")
    elif limit and used > NEARLY * limit:
        text = f" is at {used / limit:.0%} of its limit, at which publishers wait."
        yield AttentionFinding("memory", "warn", "", "The broker's memory", text, "store")
    if seen.expects_standby and not status.get("standbys"):
        text = " is connected: no broker takes over if this broker's host fails."
        yield AttentionFinding("no_standby", "warn", "", "No standby", text, "store")
    open_now, most = status.get("connections", 0), status.get("connections_limit", 0)
    if most and open_now > NEARLY * most:
        text = f": {number(open_now)} of {number(most)}; beyond, clients are refused."
        yield AttentionFinding(
            "connections", "warn", "The broker has nearly all of its ", "connections", text, "workers"
        )


def _instance(report: dict[str, Any], where: str, seen: Seen) -> Iterator[AttentionFinding]:
    stalled = report.get("stalled_seconds", 0.0)
    if stalled >= STALLED_SECONDS:
        text = f"{where} has taken no writes for {age(stalled)}: publishes wait or are refused."
        yield AttentionFinding("store_stalled", "bad", "", "The store", text, "store")
    letters = report.get("dead_letters", {}).get("waiting", 0)
    if letters >= DEAD_LETTERS:
        text = f"{where} {'waits' if letters == 1 else 'wait'} to be published: see whether their queues are full."
        yield AttentionFinding("dead_letters", "warn", "", counted(letters, "dead letter"), text, "store", {}, letters)
    yield from _disk(report.get("disk", {}), where, seen)


def _disk(disk: dict[str, Any], where: str, seen: Seen) -> Iterator[AttentionFinding]:
    size, limit = disk.get("size_bytes", 0), disk.get("limit_bytes", 0)
    since = seen.now.timestamp() - disk.get("removed_at_ms", 0) / 1000
    if disk.get("is_stuck"):
        text = f"{where} is larger than its limit, and there is nothing settled to remove: consume, purge or give room."
        yield AttentionFinding("store_full", "bad", "", "The store", text, "store")
    elif disk.get("removed_early") and since < REMOVED_SECONDS:
        text = f"{where} is at its limit: {counted(disk['removed_early'], 'settled message')} removed early."
        yield AttentionFinding("removed_early", "warn", "", "The store", text, "store")
    elif limit and size > NEARLY * limit:
        text = f"{where} is at {size / limit:.0%} of its limit: soon the oldest settled messages are removed early."
        yield AttentionFinding("store_large", "warn", "", "The store", text, "store")
