"""Records of sessions: leases, last publish, progress of a removal, running tasks. All survive a restart of the broker.

===============  =========  ================================================================
leases           type       the messages that are leased to a consumer's session
===============  =========  ================================================================
consumer         ``Utf8``   the consumer's name
at               u64        the time of writing, ms since the epoch; highest bit: an
                            owner follows the queues
groups           u16        number of queues that follow, each once
-- queue         ``Utf8``
-- count         u32        number of message ids; highest bit: deadlines follow, too
-- message ids   u64 each
-- deadlines     i64 each   expiry of each message, ms since the epoch; 0 means never
owner            ``Utf8``   the name of the session's user
===============  =========  ================================================================

===============  =========  ================================================================
producer         type       the last publish, which identifies repeated publishes
===============  =========  ================================================================
last sequence    u64        the producer's number of its last stored publish
last message id  u64        the message id in the reply to that publish
last queues      u32        number of queues that received it; highest bit: holes follow
at               i64        the time of storage, ms since the epoch
size             u8         of the holes in bytes, 1 to 128; only if there are any
holes            bytes      little endian, the last byte is not 0: bit n stands for
                            the number n below the last one
===============  =========  ================================================================

A *hole* is a number below the last one whose publish was not stored: it was refused, unroutable, or routed to transient
queues only. Several publishes may be in flight, so later ones may be stored after a refused one, which must not count
as stored when it is sent again. A client has at most :data:`WINDOW` numbers from its oldest unconfirmed publish to its
newest, so older holes are dropped.

===============  =========  ================================================================
removal          type       the progress of the last purge, deletion of a queue, redrive, move or copy
===============  =========  ================================================================
version          u8         1
flags            u8         1: the call is done
call             u64        the number of the client's call
messages         u64        number removed, moved or copied so far
at               i64        the time of the last step, ms since the epoch
===============  =========  ================================================================

A client that loses its connection repeats the call and receives the total count.

===============  =========  ================================================================
running tasks    type       tasks that the session acknowledged at their start, until it reports their end
===============  =========  ================================================================
version          u8         1
queues           u32        number of queues, each once
-- queue         ``Utf8``
-- count         u32        number of tasks; highest bit: their partitions follow, too
-- tasks         columns    message id u64, claimed at i64, started at i64,
                            waited ms u32, number of the attempt u16
-- partitions    u32 each   of the queue; 0: none
===============  =========  ================================================================

The formats are defined here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ...errors import RequestError
from . import field_types

_AT = struct.Struct("<Q")
_COUNT = struct.Struct("<I")
_HIGHEST_BIT, _OWNER_FOLLOWS = 1 << 31, 1 << 63
_PRODUCER = struct.Struct("<QQIq")
_SIZE = struct.Struct("<B")
#: number of a session's last publishes that are tracked individually
WINDOW = 1024
_MASK = (1 << WINDOW) - 1
_REMOVAL = struct.Struct("<BBQQq")
_TASKS = struct.Struct("<BI")
_TASK_COLUMNS = "QqqIH"
#: the largest value of its field
MAX_WAITED_MS = (1 << 32) - 1


# ---- leases
class SessionLeases(NamedTuple):
    """The messages that are leased to a session.

    Attributes:
        consumer: the name of the consumer.
        at_ms: the time of writing.
        held: message ids by queue.
        deadlines: by queue, if any of its messages expires: the expiry of each message in ``held``, 0 means never. The
            RFC's rows in flight have no deadline.
        owner: the name of the user who alone may resume the session; empty if the broker had no users, or was of a
            version that did not store it.
    """

    consumer: str
    at_ms: int
    held: Mapping[str, Sequence[int]]
    deadlines: Mapping[str, Sequence[int]] = {}
    owner: str = ""


def encode_leases(leases: SessionLeases) -> bytes:
    if not 0 <= leases.at_ms < _OWNER_FOLLOWS:
        raise RequestError(f"{leases.at_ms} is no time of a session's leases")
    parts = [
        field_types.utf8(leases.consumer),
        _AT.pack(leases.at_ms | (_OWNER_FOLLOWS if leases.owner else 0)),
        field_types.array_count(len(leases.held), "queues"),
    ]
    for queue, ids in leases.held.items():
        deadlines = leases.deadlines.get(queue, ())
        count = len(ids) | (_HIGHEST_BIT if deadlines else 0)
        parts += field_types.utf8(queue), field_types.pack(_COUNT, "count of messages", count)
        parts += field_types.pack_column("Q", ids), field_types.pack_column("q", deadlines)
    if leases.owner:
        parts.append(field_types.utf8(leases.owner))
    return b"".join(parts)


def decode_leases(key: bytes, value: bytes) -> SessionLeases:
    consumer, offset = field_types.read_utf8(key, value, 0)
    (at_ms,) = field_types.read(_AT, key, value, offset)
    offset += _AT.size
    (groups,) = field_types.read(field_types.COUNT, key, value, offset)
    offset += field_types.COUNT.size
    ids_by_queue: dict[str, list[int]] = {}
    deadlines: dict[str, list[int]] = {}
    for _ in range(groups):
        queue, start = field_types.read_utf8(key, value, offset)
        if queue in ids_by_queue:
            raise field_types.corrupt(key, offset, "a queue that occurs twice")
        (count,) = field_types.read(_COUNT, key, value, start)
        with_deadlines, count = count & _HIGHEST_BIT, count & ~_HIGHEST_BIT
        ids, offset = field_types.read_column("Q", key, value, start + _COUNT.size, count)
        ids_by_queue[queue] = ids.tolist()
        if with_deadlines:
            times, offset = field_types.read_column("q", key, value, offset, count)
            deadlines[queue] = times.tolist()
    owner = ""
    if at_ms & _OWNER_FOLLOWS:
        owner, offset = field_types.read_utf8(key, value, offset)
    field_types.check_end(key, value, offset)
    return SessionLeases(consumer, at_ms & ~_OWNER_FOLLOWS, ids_by_queue, deadlines, owner)


# ---- the last publish
class Producer(NamedTuple):
    """The last publish of a session."""

    last_sequence: int
    last_message_id: int
    last_queues: int
    at_ms: int
    holes: int = 0

    def has(self, sequence: int) -> bool:
        below = self.last_sequence - sequence
        return below >= 0 and not (self.holes >> below) & 1

    def after(self, sequence: int, message_id: int, queues: int, at_ms: int) -> Producer:
        """Return the record with this publish added."""
        ahead = sequence - self.last_sequence
        if ahead <= 0:
            return self._replace(at_ms=at_ms, holes=self.holes & ~(1 << -ahead))
        skipped = (1 << min(ahead, WINDOW)) - 2
        holes = (self.holes << min(ahead, WINDOW) | skipped) & _MASK
        return Producer(sequence, message_id, queues, at_ms, holes)


#: the record before a session's first publish
NO_PUBLISH = Producer(0, 0, 0, 0)
_PRODUCER_FIELDS = ", ".join(Producer._fields[:4])


def encode_producer(producer: Producer) -> bytes:
    """Encode `producer`, which may be a plain tuple of the same fields."""
    sequence, message_id, queues, at_ms, holes = producer
    if not holes:
        return field_types.pack(_PRODUCER, _PRODUCER_FIELDS, sequence, message_id, queues, at_ms)
    if not 0 <= holes <= _MASK:
        raise RequestError(f"holes {holes:#x} are over {WINDOW} bits")
    raw = holes.to_bytes((holes.bit_length() + 7) // 8, "little")
    fixed = field_types.pack(_PRODUCER, _PRODUCER_FIELDS, sequence, message_id, queues | _HIGHEST_BIT, at_ms)
    return fixed + _SIZE.pack(len(raw)) + raw


def decode_producer(key: bytes, value: bytes) -> Producer:
    sequence, message_id, queues, at_ms = field_types.read(_PRODUCER, key, value, 0)
    end, holes = _PRODUCER.size, 0
    if queues & _HIGHEST_BIT:
        (size,) = field_types.read(_SIZE, key, value, end)
        raw = value[end + 1 : end + 1 + size]
        if not 1 <= size <= WINDOW // 8 or len(raw) != size or not raw[-1]:
            raise field_types.corrupt(key, end, f"holes of {size} bytes where {len(raw)} are left")
        end, holes = end + 1 + size, int.from_bytes(raw, "little")
    field_types.check_end(key, value, end)
    return Producer(sequence, message_id, queues & ~_HIGHEST_BIT, at_ms, holes)


# ---- removals
class Removal(NamedTuple):
    """The progress of a call that removes, moves or copies messages."""

    call: int
    messages: int
    at_ms: int
    is_over: bool


def encode_removal(removal: Removal) -> bytes:
    call, messages, at_ms, is_over = removal
    return field_types.pack_versioned(_REMOVAL, "flags, call, messages, at", int(is_over), call, messages, at_ms)


def decode_removal(key: bytes, value: bytes) -> Removal:
    flags, call, messages, at_ms = field_types.read_all_versioned(_REMOVAL, key, value)
    field_types.check_flags(key, 1, flags, 1)
    return Removal(call, messages, at_ms, bool(flags))


# ---- running tasks
class RunningTask(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A task that runs.

    Attributes:
        claimed_at_ms: also the token of its message's lease.
        waited_ms: the time for which its message was ready before the start of the task.
        number: the number of the attempt, as in the history log.
        partition: the number of the queue's partition in which it has a slot; 0 if there is none.
    """

    message_id: int
    claimed_at_ms: int
    started_at_ms: int
    waited_ms: int
    number: int
    partition: int = 0


def encode_running_tasks(tasks: Mapping[str, Iterable[RunningTask]]) -> bytes:
    parts = [field_types.pack_versioned(_TASKS, "queues", len(tasks))]
    for queue, queue_tasks in tasks.items():
        rows = list(map(msgspec.structs.astuple, queue_tasks))
        *columns, partitions = zip(*rows, strict=True) if rows else ((),) * (len(_TASK_COLUMNS) + 1)
        count = len(rows) | (_HIGHEST_BIT if any(partitions) else 0)
        parts += field_types.utf8_escaped(queue), _COUNT.pack(count)
        parts.append(field_types.pack_columns(_TASK_COLUMNS, columns))
        if any(partitions):
            parts.append(field_types.pack_column("I", partitions))
    return b"".join(parts)


def decode_running_tasks(key: bytes, value: bytes) -> dict[str, list[RunningTask]]:
    (queues,) = field_types.read_versioned(_TASKS, key, value)
    offset = _TASKS.size
    tasks_by_queue: dict[str, list[RunningTask]] = {}
    for _ in range(queues):
        queue, start = field_types.read_utf8_escaped(key, value, offset)
        if queue in tasks_by_queue:
            raise field_types.corrupt(key, offset, "a queue that occurs twice")
        (count,) = field_types.read(_COUNT, key, value, start)
        with_partitions, count = count & _HIGHEST_BIT, count & ~_HIGHEST_BIT
        columns, offset = field_types.read_columns(_TASK_COLUMNS, key, value, start + _COUNT.size, count)
        if with_partitions:
            partitions, offset = field_types.read_column("I", key, value, offset, count)
            columns = [*columns, partitions]
        tasks_by_queue[queue] = list(map(RunningTask, *columns))
    field_types.check_end(key, value, offset)
    return tasks_by_queue
