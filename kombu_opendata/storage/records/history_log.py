"""History log: events of messages between two checkpoints, in order; each record is a chunk of it.

The key has two numbers: of the chunk's first attempt that ended, and of the first of its other rows. Attempts are
numbered from 0 through all chunks; the other rows (published, routed, left) have a common numbering, too.

==================  =======  =====================================================
field               type     meaning
==================  =======  =====================================================
version             u8       1; 2 if an attempt has a task's report
names               u32      number of names
published           u32      number of ranges of new messages
routed              u32      number of queues that received messages
left                u32      number that left a queue without an attempt's end
attempts            u32      number of attempts that ended
names               each     ``Utf8``: queues and consumers
published           each     a range: first message id u64, count u32
routed              each     queue u32 (a name's number), ranges u32, the ranges
left                each     message id u64, at i64, queue u32, reason u8
attempts            columns  message id u64, claimed at i64, ended at i64, queue
                             u32, consumer u32, number u16, outcome u8
reports             columns  in version 2, one for each attempt: state u8, runtime
                             in µs u64, process id u32, exception's type u32 (the
                             name's number)
==================  =======  =====================================================

An outcome of 128 or more was caused by an operator's call. A state of 128 or more has a record of details
(:mod:`.failures`); 0 means that the outcome of a task was not reported. The format is defined here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from ...protocol.task_reports import STATES
from . import field_types

ACKED, FAILED, REJECTED, EXPIRED, RELEASED, REDRIVEN, REQUEUED = range(7)
#: outcomes by number; a message that was rejected and requeued has a separate number
OUTCOMES = ("acked", "failed", "rejected", "expired", "released", "redriven", "rejected")
#: a bit of an outcome: an operator caused it
MANUAL = 0x80
#: a bit of a task's state: its error is in a record
DETAILED = 0x80
#: reasons for which a message left a queue without a claim, by number
REASONS = ("removed", "expired", "dropped", "moved")

_HEAD = struct.Struct("<BIIIII")
_RANGE = struct.Struct("<QI")
_GROUP = struct.Struct("<II")
_LEFT = struct.Struct("<QqIB")
#: most messages of one range; chunks are much smaller
_MAX_RANGE = 1 << 20
_COLUMNS = "QqqIIHB"
_REPORTS = "BQII"
#: all columns, by version
_ALL_COLUMNS = {1: _COLUMNS, 2: _COLUMNS + _REPORTS}
_ATTEMPT_BYTES = {
    version: sum(field_types.COLUMN_BYTES[code] for code in codes) for version, codes in _ALL_COLUMNS.items()
}
_TIME = struct.Struct("<q")

#: the status of a message in its queue after an attempt with this outcome; after the others it is ready again
SETTLED_BY = {ACKED: "done", FAILED: "failed", REJECTED: "failed"}


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """An attempt that ended. ``number`` counts the message's attempts; ``outcome`` may have the bit ``MANUAL``.

    The last four fields are a worker's report of its task: ``state`` may have the bit ``DETAILED``.
    """

    message_id: int
    queue: str
    consumer: str
    claimed_at_ms: int
    ended_at_ms: int
    number: int
    outcome: int
    state: int = 0
    runtime_us: int = 0
    pid: int = 0
    exception: str = ""


class Left(msgspec.Struct, frozen=True, gc=False):
    """A message that left a queue without an attempt; ``reason`` is an index of ``REASONS``."""

    message_id: int
    queue: str
    at_ms: int
    reason: int


class ChunkRows(NamedTuple):
    """The rows of a chunk. ``published`` has the ids of new messages; ``routed`` the ids of messages by queue."""

    published: list[int]
    routed: dict[str, list[int]]
    left: list[Left]
    attempts: list[Attempt]

    @property
    def others(self) -> int:
        """The number of rows that are not attempts."""
        return len(self.published) + sum(map(len, self.routed.values())) + len(self.left)


def encode(rows: ChunkRows) -> bytes:
    names: dict[str, int] = {}

    def number(name: str) -> int:
        return names.setdefault(name, len(names))

    def numbers(column: Sequence[str]) -> list[int]:
        for name in dict.fromkeys(column):
            number(name)
        return [names[name] for name in column]

    published = _ranges(rows.published)
    parts = [_RANGE.pack(*id_range) for id_range in published]
    for queue, ids in rows.routed.items():
        ranges = _ranges(ids)
        parts.append(_GROUP.pack(number(queue), len(ranges)))
        parts += [_RANGE.pack(*id_range) for id_range in ranges]
    parts += [_LEFT.pack(row.message_id, row.at_ms, number(row.queue), row.reason) for row in rows.left]
    fields = list(zip(*map(structs.astuple, rows.attempts), strict=True)) or [()] * len(Attempt.__struct_fields__)
    message_ids, queues, consumers, claims, ends, counts, outcomes, states, runtimes, pids, exceptions = fields
    version = 2 if any(states) else 1
    in_order = [message_ids, claims, ends, numbers(queues), numbers(consumers), counts, outcomes]
    if version == 2:
        in_order += (states, runtimes, pids, numbers(exceptions))
    parts.append(field_types.pack_columns(_ALL_COLUMNS[version], in_order))
    sizes = (len(names), len(published), len(rows.routed), len(rows.left), len(rows.attempts))
    return b"".join(
        [field_types.pack(_HEAD, "version, counts", version, *sizes), *map(field_types.utf8_escaped, names), *parts]
    )


def _ranges(ids: Iterable[int]) -> list[tuple[int, int]]:
    """Return runs of consecutive ids: (first, count)."""
    runs: list[tuple[int, int]] = []
    first = following = -1
    for id in ids:
        if id != following:
            if first >= 0:
                runs.append((first, following - first))
            first = id
        following = id + 1
    if first >= 0:
        runs.append((first, following - first))
    return runs


def decode(key: bytes, value: bytes) -> ChunkRows:
    version, name_count, published, groups, left_count, attempts = _head(key, value)
    names, offset = field_types.read_many(field_types.read_utf8_escaped, key, value, _HEAD.size, name_count)
    new, offset = _read_ranges(key, value, offset, published)
    routed: dict[str, list[int]] = {}
    for _ in range(groups):
        queue, count = field_types.read(_GROUP, key, value, offset)
        ids, end = _read_ranges(key, value, offset + _GROUP.size, count)
        routed[_name(key, offset, names, queue)] = ids
        offset = end
    left_rows: list[Left] = []
    for _ in range(left_count):
        id, at, queue, reason = field_types.read(_LEFT, key, value, offset)
        if reason >= len(REASONS):
            raise field_types.corrupt(key, offset, f"reason {reason}")
        left_rows.append(Left(id, _name(key, offset, names, queue), at, reason))
        offset += _LEFT.size
    attempt_rows, offset = _read_attempts(key, value, offset, attempts, names, version)
    field_types.check_end(key, value, offset)
    return ChunkRows(new, routed, left_rows, attempt_rows)


def _head(key: bytes, value: bytes) -> tuple[int, ...]:
    head = field_types.read(_HEAD, key, value, 0)
    if head[0] not in _ALL_COLUMNS:
        field_types.check_version(key, head[0])
    return head


def attempts_of(key: bytes, value: bytes) -> int:
    """Return the number of attempts of the chunk in ``value``, without decoding the rest."""
    return _head(key, value)[5]


def ended_at(key: bytes, value: bytes, index: int) -> int:
    """Return the end of one of the attempts in ``value``, without decoding the rest."""
    head = _head(key, value)
    count = head[5]
    start = len(value) - count * _ATTEMPT_BYTES[head[0]] + 16 * count  # after the columns of message ids and claims
    return int(field_types.read(_TIME, key, value, start + 8 * index)[0])


def attempt_at(key: bytes, value: bytes, index: int) -> Attempt:
    """Return one of the attempts in ``value``, without decoding the others."""
    head = _head(key, value)
    version, named, count = head[0], head[1], head[5]
    if not 0 <= index < count:
        raise field_types.corrupt(key, 0, f"attempt {index} of {count}")
    names, _end = field_types.read_many(field_types.read_utf8_escaped, key, value, _HEAD.size, named)
    column = len(value) - count * _ATTEMPT_BYTES[version]
    fields: list[int] = []
    for code in _ALL_COLUMNS[version]:
        size = field_types.COLUMN_BYTES[code]
        fields += field_types.read_column(code, key, value, column + index * size, 1)[0]
        column += count * size
    id, claim_time, end_time, queue, consumer, number, outcome, *report = fields
    if outcome & ~MANUAL >= len(OUTCOMES):
        raise field_types.corrupt(key, 0, f"outcome {outcome}")
    queue_name, consumer_name = (_name(key, 0, names, number) for number in (queue, consumer))
    attempt = Attempt(id, queue_name, consumer_name, claim_time, end_time, number, outcome)
    if not report:
        return attempt
    state, runtime, pid, exception = report
    _check_state(key, 0, state)
    exception_name = _name(key, 0, names, exception)
    return structs.replace(attempt, state=state, runtime_us=runtime, pid=pid, exception=exception_name)


def _check_state(key: bytes, offset: int, state: int) -> None:
    if state & ~DETAILED >= len(STATES):
        raise field_types.corrupt(key, offset, f"task state {state}")


def _name(key: bytes, offset: int, names: list[str], number: int) -> str:
    if number >= len(names):
        raise field_types.corrupt(key, offset, f"name {number} of {len(names)}")
    return names[number]


def _read_ranges(key: bytes, value: bytes, offset: int, count: int) -> tuple[list[int], int]:
    ids: list[int] = []
    for _ in range(count):
        first, length = field_types.read(_RANGE, key, value, offset)
        if length > _MAX_RANGE:
            raise field_types.corrupt(key, offset, f"a range of {length} messages")
        ids += range(first, first + length)
        offset += _RANGE.size
    return ids, offset


def _read_attempts(
    key: bytes, value: bytes, offset: int, count: int, names: list[str], version: int
) -> tuple[list[Attempt], int]:
    if not count:
        return [], offset
    start = offset
    (ids, claim_times, end_times, queues, consumers, numbers, outcomes), offset = field_types.read_columns(
        _COLUMNS, key, value, offset, count
    )
    if max(max(queues), max(consumers)) >= len(names):
        raise field_types.corrupt(key, start, f"an attempt with a name above {len(names)}")
    if max(outcome & ~MANUAL for outcome in outcomes) >= len(OUTCOMES):
        raise field_types.corrupt(key, start, "an unknown outcome")
    consumer_names = [names[number] for number in consumers]
    queue_names = [names[number] for number in queues]
    fields: list[Sequence[Any]] = [ids, queue_names, consumer_names, claim_times, end_times, numbers, outcomes]
    if version == 2:
        start = offset
        (states, runtimes, pids, exceptions), offset = field_types.read_columns(_REPORTS, key, value, offset, count)
        _check_state(key, start, max(state & ~DETAILED for state in states))
        if max(exceptions) >= len(names):
            raise field_types.corrupt(key, start, f"an exception with a name above {len(names)}")
        fields += [states, runtimes, pids, [names[number] for number in exceptions]]
    return list(map(Attempt, *fields)), offset
