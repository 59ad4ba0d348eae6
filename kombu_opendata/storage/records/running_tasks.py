"""Running tasks: tasks that a worker's session acknowledged at their start, until it reports their end.

===============  =========  ================================================
field            type       meaning
===============  =========  ================================================
version          u8         1
queues           u32        number of queues, each once
-- queue         ``Utf8``
-- count         u32        number of tasks
-- tasks         columns    message id u64, claimed at i64, started at i64,
                            waited ms u32, number of the attempt u16
===============  =========  ================================================

The format is defined here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

import msgspec

from . import columns, types

_HEAD = struct.Struct("<BI")
_COUNT = struct.Struct("<I")
_COLUMNS = "QqqIH"
#: the largest value of its field
MAX_WAITED_MS = (1 << 32) - 1


class RunningTask(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A task that runs.

    Attributes:
        claimed_at_ms: also the token of its message's lease.
        waited_ms: the time for which its message was ready before the start of the task.
        number: the number of the attempt, as in the history log.
    """

    message_id: int
    claimed_at_ms: int
    started_at_ms: int
    waited_ms: int
    number: int


def encode(tasks: Mapping[str, Iterable[RunningTask]]) -> bytes:
    """Encode a session's tasks, by queue."""
    parts = [types.pack_versioned(_HEAD, "queues", len(tasks))]
    for queue, queue_tasks in tasks.items():
        rows = list(queue_tasks)
        fields = (
            [row.message_id for row in rows],
            [row.claimed_at_ms for row in rows],
            [row.started_at_ms for row in rows],
            [row.waited_ms for row in rows],
            [row.number for row in rows],
        )
        parts += types.utf8_escaped(queue), _COUNT.pack(len(rows)), columns.pack_all(_COLUMNS, fields)
    return b"".join(parts)


def decode(key: bytes, value: bytes) -> dict[str, list[RunningTask]]:
    """Decode the tasks in ``value``, by queue."""
    (queues,) = types.read_versioned(_HEAD, key, value)
    offset = _HEAD.size
    tasks_by_queue: dict[str, list[RunningTask]] = {}
    for _ in range(queues):
        queue, start = types.read_utf8_escaped(key, value, offset)
        if queue in tasks_by_queue:
            raise types.corrupt(key, offset, "a queue that occurs twice")
        (count,) = types.read(_COUNT, key, value, start)
        fields, offset = columns.read_all(_COLUMNS, key, value, start + _COUNT.size, count)
        tasks_by_queue[queue] = list(map(RunningTask, *fields))
    types.check_end(key, value, offset)
    return tasks_by_queue
