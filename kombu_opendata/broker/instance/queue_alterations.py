"""Changes of a queue's arguments by an operator: their validation, and their effects on its messages.

The effects are counted before the change is made, so that a change that loses messages can be refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from ...errors import RequestError
from ...protocol.messages import AlterQueue
from ...protocol.queue_arguments import BY_NAME, DROP_HEAD, QueueArguments
from ...readable_text import counted
from ...storage.clock import Clock, TimeSlice
from ...storage.commit.measurements import measure_bytes
from ...storage.read import queue_pages
from ...storage.read.settled_buckets import SettledBuckets
from ...storage.records.definitions import QueueOverrides
from ...storage.routing.queue_filters import QueueDefinition, filter_of, have_same_filter
from ...storage.routing.topology import Topology
from ...storage.slatedb.store_reads import Reads
from ...storage.state.queue_state import QueueState
from ...storage.state.settled_list import ListName
from ..model import argument_checks
from ..model.name_checks import check_storable
from ..model.queue import BrokerQueue

#: properties that can't be altered, by the names that users may use for them
_NATURE = frozenset(
    prefix + name for name in ("durable", "exclusive", "auto-delete", "auto_delete", "name") for prefix in ("", "x-")
)
#: maximum number of ready and delayed messages that are compared with a new filter
MAX_EXAMINED = 10_000
#: maximum number of settled messages that are counted
MAX_SETTLED = 100_000
_AT_ONCE = 256
_messages = partial(counted, word="message")


class Alteration(NamedTuple):
    """Overrides of a queue after a change, and the arguments that are then in effect."""

    overrides: QueueOverrides
    effective: dict[str, Any]
    parsed: QueueArguments


def alteration(queue: BrokerQueue, wanted: AlterQueue) -> Alteration:
    """Check a change of a queue's arguments, without making it; raise RequestError if it is not valid."""
    unset = set(wanted.unset)
    if both := sorted(unset & wanted.arguments.keys()):
        raise RequestError(f"{both[0]} is both set and unset: choose one", argument=both[0], queue=queue.name)
    if not (wanted.arguments or unset or wanted.reset):
        raise RequestError(f"queue {queue.name!r}: say which arguments to set or unset", queue=queue.name)
    for name in (*wanted.arguments, *sorted(unset)):
        _check_name(queue, name)
    for name, value in wanted.arguments.items():
        if value is not None:
            argument_checks.check(BY_NAME[name], value, f"queue {queue.name!r}", queue=queue.name)
    before = {} if wanted.reset else queue.overrides.arguments
    remaining = {name: value for name, value in before.items() if name not in unset}
    overrides = queue.overrides._replace(arguments={**remaining, **wanted.arguments})
    check_storable(dict(overrides.arguments), f"queue {queue.name!r}")
    effective = overrides.over(queue.properties.arguments)
    valid = argument_checks.valid(effective)  # an older version may have accepted other values
    return Alteration(overrides, effective, argument_checks.parse(queue.name, valid))


def _check_name(queue: BrokerQueue, name: str) -> None:
    about: dict[str, Any] = {"argument": name, "queue": queue.name}
    if name in _NATURE:
        raise RequestError(
            f"queue {queue.name!r}: {name!r} is the queue's nature and can't be altered: create another queue, and "
            "move the messages there",
            **about,
        )
    argument = BY_NAME.get(name)
    if argument is None:
        warnings = argument_checks.unknown("queue", queue.name, [name])
        raise RequestError(warnings[0] if warnings else f"queue {queue.name!r}: there is no argument {name!r}", **about)
    if argument.cannot_alter:
        raise RequestError(f"queue {queue.name!r}: {name} can't be altered: {argument.cannot_alter}", **about)
    if argument.stored_only and not queue.properties.stored:
        raise RequestError(
            f"queue {queue.name!r}: {name} has no effect on a queue that is not stored (it is not durable, or "
            "exclusive, or auto-delete)",
            **about,
        )


@dataclass(slots=True)
class Findings:
    """Effects of a change, in numbers of messages."""

    waiting: int  # ready and delayed messages
    dropped: int = 0  # the oldest ready and delayed messages, which exceed the new maximum and are dropped
    excess: int = 0  # messages that exceed the maximum and stay, because the queue refuses new messages instead
    examined: int = 0  # messages that were compared with the new filter
    unmatched: int = 0  # examined messages that the filter does not match
    done: int = 0  # done messages past the new retention, which are deleted
    failed: int = 0  # failed messages past the new retention, which are deleted
    notes: list[str] = field(default_factory=list)  # the effects in sentences

    @property
    def counts(self) -> dict[str, int]:
        """Numbers by name."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "notes"}

    @property
    def lost(self) -> int:
        """Number of messages that the change deletes."""
        return self.dropped + self.done + self.failed


@dataclass(frozen=True, slots=True)
class AlteredMessages:
    """Counts of the effects of changes in the queues of one instance."""

    _store: Reads
    _buckets: SettledBuckets
    _topology: Topology
    _clock: Clock

    async def find(self, queue: BrokerQueue, after: Alteration, *, is_read: bool) -> Findings:
        """Count the effects of a change.

        Compares messages with a new filter only if the user may read their headers.
        """
        now, then = queue.arguments, after.parsed
        findings = Findings(len(queue.messages))
        if then.max_length_bytes >= 0 and not queue.messages.counts_bytes:
            await measure_bytes(self._store, queue.messages)
        if is_read and not have_same_filter(queue.effective, after.effective):
            await self._compare_filter(queue, after, findings)
        if queue.properties.stored:
            findings.done = await self._outdated(queue, "done", now.done_retention_seconds, then.done_retention_seconds)
            findings.failed = await self._outdated(
                queue, "failed", now.failed_retention_seconds, then.failed_retention_seconds
            )
        findings.waiting = len(queue.messages)
        self._count_excess(queue, then, findings)  # last, as there must be no await between this and the change
        findings.notes = list(_notes(findings, now, then))
        return findings

    def _count_excess(self, queue: BrokerQueue, then: QueueArguments, findings: Findings) -> None:
        now = queue.arguments
        has_same_maximum = (now.max_length, now.max_length_bytes) == (then.max_length, then.max_length_bytes)
        if has_same_maximum and now.overflow == then.overflow:
            return
        excess = beyond(queue.messages, then.max_length, then.max_length_bytes)
        if then.overflow == DROP_HEAD:
            findings.dropped = excess
        else:
            findings.excess = excess

    async def _compare_filter(self, queue: BrokerQueue, after: Alteration, findings: Findings) -> None:
        """Compare the oldest ready and delayed messages with the queue's new bindings and filter."""
        bindings = self._topology.definition_of(queue.name).bindings[1:]
        selector = QueueDefinition(queue.name, bindings, filter_of(after.effective)).selector
        position, pace = -1, TimeSlice()
        while findings.examined < MAX_EXAMINED and not queue.deleting:
            states = queue_pages.AVAILABLE, queue_pages.DELAYED
            rows, position = await queue.page(states, position, _AT_ONCE)
            for headers in await queue.headers([(row.id, row.priority) for row in rows]):
                if headers is not None:
                    findings.examined += 1
                    findings.unmatched += not selector.matches(headers)
                    if pace.is_over:
                        await pace.rest()
            if position < 0:
                return
            await pace.rest()

    async def _outdated(self, queue: BrokerQueue, which: ListName, before: int, after: int) -> int:
        """Count the settled messages past a shorter retention; both are in seconds, 0 means indefinitely."""
        if not after or 0 < before <= after:
            return 0
        stored, limit, count = queue.state(), self._clock.now_ms() - 1000 * after, 0
        log = stored.settled_list(which)
        for number in range(log.first, log.tail + 1):
            rows = await self._buckets.read(stored, which, number)
            outdated = sum(row.settled_at_ms <= limit for row in rows)
            count += outdated
            if outdated < len(rows) or count >= MAX_SETTLED or queue.deleting:
                break
        return count


def beyond(messages: QueueState, max_length: int, max_bytes: int) -> int:
    """Return the number of the oldest ready and delayed messages that exceed these maxima (-1: no maximum)."""
    by_number = max(len(messages) - max_length, 0) if max_length >= 0 else 0
    excess_bytes = messages.available_bytes - max_bytes if max_bytes >= 0 else 0
    by_size = 0
    for sizes in _sizes(messages):
        if excess_bytes <= 0:
            break
        if (total := sum(sizes)) < excess_bytes:
            excess_bytes -= total
            by_size += len(sizes)
            continue
        for size in sizes:
            if excess_bytes <= 0:
                break
            excess_bytes -= size
            by_size += 1
    return max(by_number, by_size)


def _sizes(messages: QueueState) -> Iterator[list[int]]:
    """Yield the sizes of the ready and delayed messages by bucket, the oldest first."""
    for number in sorted(messages.buckets.keys() | messages.cold.sizes.keys()):
        if number in messages.buckets:
            yield [entry.size for _id, entry in sorted(messages.buckets[number].available.items())]
        else:
            yield list(messages.cold.sizes[number])


def _notes(findings: Findings, now: QueueArguments, then: QueueArguments) -> Iterator[str]:
    """Yield the findings as sentences."""
    if findings.waiting and now.message_ttl_ms != then.message_ttl_ms:
        yield f"{_messages(findings.waiting)} that wait keep their deadlines: x-message-ttl counts for new messages"
    if findings.dropped:
        fate = "become dead letters" if then.dead_letter_exchange is not None else "are deleted"
        yield f"{_messages(findings.dropped)} exceed the new maximum and {fate}, the oldest first"
    if findings.excess:
        yield f"the queue is full: {_messages(findings.excess)} exceed its new maximum and stay; publishes are refused"
    if findings.unmatched:
        first = "first " if findings.examined < findings.waiting else ""
        yield (
            f"of the {first}{_messages(findings.examined)} that wait, {findings.unmatched:,} do not match the queue's "
            "filter or bindings any more; they stay"
        )
    for which, count in (("archived", findings.done), ("failed", findings.failed)):
        if count:
            suffix = " or more" if count >= MAX_SETTLED else ""
            yield f"{count:,}{suffix} {which} messages are past the new retention: the next collection deletes them"
