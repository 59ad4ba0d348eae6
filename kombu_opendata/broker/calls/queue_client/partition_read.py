"""Reads by groups: the groups are the partitions of the queue, and the messages of one are read in the order of ids.

A partition is free if none of its messages is in flight. A delayed message blocks the later messages of its partition.
Only one search of a queue runs at a time, so two readers never share a partition. Other reads do not wait for a search.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import chain, zip_longest
from weakref import WeakKeyDictionary

from ....errors import PreconditionFailed, RequestError
from ....protocol import messages as m
from ....protocol.queue_arguments import PARTITION_BY
from ....storage.clock import TimeSlice
from ....storage.state.partitions import Partition
from ...delivery.outbox import Outbox
from ...model.queue import BrokerQueue
from ...model.sessions import Session
from .claimed_messages import Claimed, Claiming, ClaimOutcome

#: all messages of the first group, then all of the next group
FILL = "fill"
#: one message of each group in turn
ROUND_ROBIN = "round_robin"
#: only the first message of each group
HEAD = "head"
ORDERS = (FILL, ROUND_ROBIN, HEAD)
#: maximum number of partitions that one search considers
MAX_PARTITIONS = 10_000


def check(queue: BrokerQueue, msg: m.Read) -> None:
    """Check a Read by groups.

    Raises:
        RequestError: the order is unknown, or there is a condition.
        PreconditionFailed: the queue is not partitioned by the header.
    """
    if msg.grouped not in ORDERS:
        raise RequestError(f"messages of groups come in the order {', '.join(ORDERS)}, not {msg.grouped[:80]!r}")
    if msg.selector or msg.equal:
        raise RequestError("a read by groups takes no condition: it would skip earlier messages of a group")
    partitions = queue.messages.partitions
    if partitions is None or partitions.rules.by != msg.group_header:
        raise PreconditionFailed(
            f"the groups of queue {queue.name!r} are its partitions, which it does not have by {msg.group_header!r}: "
            f"alter its {PARTITION_BY}",
            queue=queue.name,
            argument=PARTITION_BY,
        )


class PartitionReads:
    """Searches for messages of free partitions in the queues of one instance."""

    def __init__(self, uses: Claiming, outbox: Outbox) -> None:
        self._uses, self._outbox = uses, outbox
        self._locks: WeakKeyDictionary[BrokerQueue, asyncio.Lock] = WeakKeyDictionary()

    async def search(self, session: Session, queue: BrokerQueue, msg: m.Read) -> Claimed:
        """Search once; claims messages of free partitions."""
        async with self._locks.setdefault(queue, asyncio.Lock()):
            lines = await self._lines(queue, msg)
            claimed = Claimed(self._uses, session, queue, msg)
            line_of = {id: number for number, line in enumerate(lines) for id in line}
            blocked_lines: set[int] = set()
            for id in _in_order(msg.grouped, lines):
                if line_of[id] in blocked_lines:
                    continue
                outcome = await claimed.claim(id)
                if outcome is ClaimOutcome.TAKEN:  # the later messages of the group must wait
                    blocked_lines.add(line_of[id])
                if outcome is ClaimOutcome.OVER or claimed.is_enough:
                    break
            self._outbox.schedule()
            return claimed

    async def _lines(self, queue: BrokerQueue, msg: m.Read) -> list[list[int]]:
        """Return the ids of each free partition, in the fair order of the partitions."""
        lines: list[list[int]] = []
        partitions, now, piece = queue.messages.partitions, self._uses.clock.now_ms(), TimeSlice()
        if partitions is None:
            return lines
        found = 0
        for partition in list(partitions.in_turn(MAX_PARTITIONS)):
            if partition.in_flight or partition.running:
                continue
            line = await self._line(queue, partition, 1 if msg.grouped == HEAD else msg.quantity, now)
            if line:
                lines.append(line)
                found += len(line) if msg.grouped == FILL else 1
            if found >= msg.quantity:
                break
            await piece.pause()
        if partitions.misplaced:
            queue.repartition()
        return lines

    async def _line(self, queue: BrokerQueue, partition: Partition, count: int, now: int) -> list[int]:
        """Return the first ready messages of a partition, by id, up to the first delayed one."""
        messages, ids = queue.messages, list[int]()
        for lowest, number in sorted(messages.buckets_in(partition)):
            if len(ids) >= count and lowest > ids[count - 1]:
                break
            if number in messages.cold:
                await queue.load_bucket(number)
            bucket = messages.buckets.get(number)
            ids = sorted([*ids, *(bucket.available if bucket is not None else ())])
        line: list[int] = []
        for id in ids[:count]:
            entry = messages.available.get(id)
            if entry is None or not entry.is_visible(now):
                break
            line.append(id)
        return line


def _in_order(order: str, lines: list[list[int]]) -> Iterator[int]:
    if order == HEAD:
        return (line[0] for line in lines)
    if order == ROUND_ROBIN:
        return (id for layer in zip_longest(*lines) for id in layer if id is not None)
    return chain.from_iterable(lines)
