"""Reads by groups: messages with the same value of a header are delivered in the order of their ids.

A group is blocked while one of its messages is in flight; otherwise it is free. A delayed message blocks the later
messages of its group. Only one search of a queue runs at a time, so two readers never share a group. Reads without
groups do not wait for a search.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import chain, islice, zip_longest
from weakref import WeakKeyDictionary

from ....errors import PreconditionFailed, RequestError
from ....protocol import messages as m
from ....storage.clock import TimeSlice
from ....storage.read import queue_pages
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
#: maximum number of messages that one search reads
MAX_SEARCHED = 10_000
#: limit for the messages in flight, because the search for their groups takes time for each of them
MAX_IN_FLIGHT = 100_000
#: messages that are read in one turn of the event loop
_AT_ONCE = 1024
#: the group of messages without the header
_NO_GROUP = ""
#: number of cached groups above which those of deleted messages are removed from the cache
_REMEMBERED = 4 * MAX_SEARCHED


class GroupCache:
    """A cache of the groups of a queue's messages."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._header = ""
        self._groups: dict[int, str] = {}

    async def find(self, queue: BrokerQueue, header: str, rows: list[tuple[int, int]]) -> list[str | None]:
        """Return the groups of messages, given as (id, stored priority); None for a deleted message."""
        if header != self._header:
            self._header, self._groups = header, {}
        groups, piece = self._groups, TimeSlice()
        unknown = [row for row in rows if row[0] not in groups]
        for at in range(0, len(unknown), _AT_ONCE):
            part = unknown[at : at + _AT_ONCE]
            for (id, _priority), headers in zip(part, await queue.headers(part), strict=True):
                if headers is not None:
                    groups[id] = headers.get(header, _NO_GROUP)
            await piece.pause()
        row_groups = [groups.get(id) for id, _priority in rows]
        if len(groups) > _REMEMBERED + len(queue.messages.in_flight):
            self._groups = {id: group for id, group in groups.items() if queue.messages.find(id) is not None}
        return row_groups


def check(msg: m.Read) -> None:
    """Check a Read by groups; raise RequestError if the order is unknown, or there is a condition."""
    if msg.grouped not in ORDERS:
        raise RequestError(f"messages of groups come in the order {', '.join(ORDERS)}, not {msg.grouped[:80]!r}")
    if msg.selector or msg.equal:
        raise RequestError("a read by groups takes no condition: it would skip earlier messages of a group")


class GroupedReads:
    """Searches for messages of free groups in the queues of one instance."""

    def __init__(self, uses: Claiming, outbox: Outbox) -> None:
        self._uses, self._outbox = uses, outbox
        self._groups: WeakKeyDictionary[BrokerQueue, GroupCache] = WeakKeyDictionary()

    async def search(self, session: Session, queue: BrokerQueue, msg: m.Read) -> Claimed:
        """Search once; claims messages of free groups."""
        groups = self._groups.setdefault(queue, GroupCache())
        async with groups.lock:
            lines = await self._lines(queue, msg, groups)
            return await self._claim(session, queue, msg, lines)

    async def _lines(self, queue: BrokerQueue, msg: m.Read, groups: GroupCache) -> list[list[int]]:
        """Return the ids of each free group, in order; the groups are ordered by their first id."""
        if len(queue.messages.in_flight) > MAX_IN_FLIGHT:
            text = f"queue {queue.name!r} has over {MAX_IN_FLIGHT} messages in flight, too many to read it by groups"
            raise PreconditionFailed(text, queue=queue.name)
        in_flight = [(id, entry.priority) for id, entry in queue.messages.in_flight.items()]
        blocked = set(await groups.find(queue, msg.group_header, in_flight))
        lines: dict[str, list[int]] = {}
        searched, after, piece = 0, -1, TimeSlice()
        while searched < MAX_SEARCHED and not _is_enough(msg, lines):
            rows, after = await queue.page((queue_pages.AVAILABLE, queue_pages.DELAYED), after, _AT_ONCE)
            row_groups = await groups.find(queue, msg.group_header, [(row.id, row.priority) for row in rows])
            for row, group in zip(rows, row_groups, strict=True):
                if group is None or group in blocked:
                    continue
                if row.state == queue_pages.DELAYED:
                    blocked.add(group)
                else:
                    lines.setdefault(group, []).append(row.id)
            searched += len(rows)
            if after < 0:
                break
            await piece.pause()
        return list(lines.values())

    async def _claim(self, session: Session, queue: BrokerQueue, msg: m.Read, lines: list[list[int]]) -> Claimed:
        """Lease messages in order; skip the rest of a group after a message that can't be leased."""
        claimed = Claimed(self._uses, session, queue, msg)
        line_of = {id: number for number, line in enumerate(lines) for id in line}
        blocked_lines: set[int] = set()
        for id in _in_order(msg.grouped, lines):
            if line_of[id] in blocked_lines:
                continue
            outcome = await claimed.claim(id)
            if outcome is ClaimOutcome.TAKEN:
                blocked_lines.add(line_of[id])
            if outcome is ClaimOutcome.OVER or claimed.is_enough:
                break
        self._outbox.schedule()
        return claimed


def _is_enough(msg: m.Read, lines: dict[str, list[int]]) -> bool:
    """Return True if later messages can't change the choice."""
    if msg.grouped == FILL:
        return any(len(line) >= msg.quantity for line in islice(lines.values(), 1))
    return len(lines) >= msg.quantity


def _in_order(order: str, lines: list[list[int]]) -> Iterator[int]:
    if order == HEAD:
        return (line[0] for line in lines)
    if order == ROUND_ROBIN:
        return (id for layer in zip_longest(*lines) for id in layer if id is not None)
    return chain.from_iterable(lines)
