"""Rules about what survives: the store itself (9), definitions (10), results (11), secrets (13), integrity (15)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from .checker import decides
from .events import CommitJob, Define, Forbidden, GetResult, Read, StartChord, Started, StoreResult
from .index import Call, Index


@decides(9)
def stores_open_after_any_end(index: Index) -> Iterator[str]:
    for event in index.all(Started):
        if event.error:
            yield f"{event.broker} refuses the store: {event.error}"
    if index.store.refusal:
        yield f"no broker opens the store: {index.store.refusal}"
    for finding in index.store.findings:
        yield f"the store has a finding: {finding}"


@decides(10)
def definitions_stay(index: Index) -> Iterator[str]:
    """Decide each definition as a register: a read returns a value that no later write had replaced before it began."""
    writes: dict[str, list[Call[Define]]] = defaultdict(list)
    for write in index.of(Define):
        if write.outcome != "refused":
            writes[write.operation.name].append(write)
    reads = [
        (call.operation.name, call.reply, call.called_at, call.returned_at)
        for call in index.of(Read)
        if call.is_returned
    ]
    reads += [(name, value, math.inf, math.inf) for name, value in index.store.definitions.items()]
    for name, value, since, until in reads:
        possible = possible_values(writes[name], since, until)
        if value not in possible:
            yield f"{name} is {value!r}, and was defined as {possible}"


def possible_values(writes: list[Call[Define]], since: float, until: float) -> list[Any]:
    """The values that a read in this interval may return."""
    before = [write for write in writes if write.returned_at < since]
    newest = max((write.called_at for write in before), default=-math.inf)
    values = [] if before else [None]
    values += [write.operation.value for write in writes if write.called_at < until and write.returned_at >= newest]
    return values


@decides(11)
def final_results_stay(index: Index) -> Iterator[str]:
    stored: dict[str, list[Call[StoreResult]]] = defaultdict(list)
    for call in index.of(StoreResult):
        stored[call.operation.task].append(call)
    reads: dict[str, list[tuple[float, float, Any]]] = defaultdict(list)
    for read in index.of(GetResult):
        if read.is_returned and not index.may_be_undone(read.returned_at):
            reads[read.operation.task].append((read.called_at, read.returned_at, read.reply))
    for task, result in index.store.results.items():
        reads[task].append((math.inf, math.inf, result))
    for task, found in reads.items():
        found.sort()
        values = [value for _since, _until, value in found if value is not None]
        if len(set(values)) > 1:
            yield f"the result of {task} changed: {values}"
        for value in set(values) - {call.operation.result for call in stored[task]}:
            yield f"the result of {task} is {value!r}, which nothing stored"
        known_at = min(
            (
                call.returned_at
                for call in stored[task]
                if call.is_returned and not index.may_be_undone(call.returned_at)
            ),
            default=math.inf,
        )
        known_at = min([known_at, *(until for _since, until, value in found if value is not None)])
        if any(since > known_at and value is None for since, _until, value in found):
            yield f"the result of {task} was stored, and is gone"


@decides(13)
def rights_are_checked(index: Index) -> Iterator[str]:
    for call in index.of(Forbidden):
        if call.is_returned:
            yield f"{call.client} may not {call.operation.action}, and did"
        learned = [secret for secret in call.operation.secrets if secret in str(call.reply)]
        if learned:
            yield f"{call.client} learned of {learned} by an attempt to {call.operation.action}"


@decides(15)
def messages_are_intact(index: Index) -> Iterator[str]:
    known = {key for call in index.of(CommitJob) for key in call.operation.keys}
    known |= index.publishes.keys() | {call.operation.callback for call in index.of(StartChord)}
    for key, deliveries in index.by_key.items():
        if key not in known:
            yield f"{key} was delivered, and nothing published it"
        digests = {call.operation.digest for call in index.publishes.get(key, ())}
        if digests and any(delivery.digest not in digests for delivery in deliveries):
            yield f"{key} was delivered with another body"
    for entry in index.store.entries:
        if entry.key not in known:
            yield f"{entry.key} is in {entry.queue}, and nothing published it"
