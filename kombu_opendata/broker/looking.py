"""Calls of the queue client that only look: peek, a message by its id, pages by state, queues, where one would go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import RequestError
from ..protocol import messages as m
from ..protocol import queue_messages as q
from ..protocol.envelope import headers_in
from ..storage import looking
from ..storage.looking import AVAILABLE, DELAYED, Row
from ..storage.settled_log import LISTS
from .arguments import check_short
from .model.queue import BrokerQueue
from .pace import Pace, encoded
from .reading import PAGE_BYTES, check_quantity

if TYPE_CHECKING:
    from .handlers import Handlers
    from .instance import Instance

MAX_PAGE = 1000
#: buckets that one look for a message by its id reads
_MAX_READS = 128
#: queues that are looked at before others get their turn
_QUEUES_AT_ONCE = 5


def wire_row(instance: Instance, row: Row) -> q.StateRow:
    """A row as a client sees it: Kombu's priority, the holder's name."""
    holder = ""
    if row.session:
        session = instance.sessions.get(row.session)
        holder = session.name if session is not None else instance.timed.name_of(row.session)
    times = row.token, row.lease_until_ms
    priority = 255 - row.priority if row.state not in LISTS else 0
    return row.id, row.state, priority, row.visible_at_ms, row.attempts, *times, holder, row.settled_at_ms


# ---------------------------------------------------------------------- peek
def peek(self: Handlers, msg: q.Peek) -> None:
    check_quantity(msg.limit, MAX_PAGE)
    queue = self._queue(msg.queue)
    self.instance.background.run(self.session, msg.rid, _peek(self, msg, queue))


async def _peek(self: Handlers, msg: q.Peek, queue: BrokerQueue) -> None:
    rows, after = await queue.waiting((AVAILABLE, DELAYED), msg.after, msg.limit)
    found: list[tuple[q.StateRow, int, bytes]] = []
    size = 0
    for row in rows:
        waiting = await queue.peek(row.id)
        if waiting is None:
            continue  # settled meanwhile
        received, envelope = waiting
        found.append((wire_row(self.instance, row), received, envelope))
        size += len(envelope)
        if size >= PAGE_BYTES:
            break
    self.instance.outbox.reply(self.session, q.Peeked(msg.rid, found, size >= PAGE_BYTES or after >= 0))


# ---------------------------------------------------------------------- by state
def list_by_state(self: Handlers, msg: q.ListByState) -> None:
    check_quantity(msg.limit, MAX_PAGE)
    if msg.state not in looking.STATES:
        raise RequestError(f"a message's state is one of {', '.join(looking.STATES)}, not {msg.state!r}")
    queue = self._queue(msg.queue)
    self.instance.background.run(self.session, msg.rid, _list(self, msg, queue))


async def _list(self: Handlers, msg: q.ListByState, queue: BrokerQueue) -> None:
    rows, after = await queue.page(msg.state, msg.after, msg.limit)
    self.instance.outbox.reply(
        self.session, q.StatePage(msg.rid, [wire_row(self.instance, row) for row in rows], after)
    )


# ---------------------------------------------------------------------- by id
def get_message(self: Handlers, msg: q.GetMessage) -> None:
    if not 0 <= msg.id < 1 << 63:
        raise RequestError(f"message id {msg.id} is out of range", message_id=msg.id)
    queues = [self._queue(msg.queue)] if msg.queue else None
    self.instance.background.run(self.session, msg.rid, _get(self, msg, queues))


async def _get(self: Handlers, msg: q.GetMessage, queues: list[BrokerQueue] | None) -> None:
    engine = self.engine
    envelope = await engine.payloads.read(msg.id)
    about = await engine.pages.metadata_of(msg.id)
    if about is None and envelope is not None:
        await engine.commits.checkpoint()  # a staged row that came into its queue just now
        about = await engine.pages.metadata_of(msg.id)
    if queues is None:
        queues = await _queues_of(self, msg.id)
    states: list[tuple[str, Row]] = []
    received = about.received_at_ms if about is not None else 0
    left = _MAX_READS
    for place, queue in enumerate(queues):
        if place % _QUEUES_AT_ONCE == _QUEUES_AT_ONCE - 1:
            await asyncio.sleep(0)
        row, envelope, left = await queue.locate(msg.id, envelope, received, left)
        if row is not None:
            states.append((queue.name, row))
    if not states and left > 0 and envelope is not None:
        await engine.commits.checkpoint()  # it may have left its last queue just now
        envelope = None if msg.queue else await engine.payloads.read(msg.id)
    headers: dict[str, str] = {}
    if about is not None:
        headers = about.headers
    elif envelope is not None:
        headers = headers_in(envelope, 255 - states[0][1].priority if states else 0) or {}
    self.instance.outbox.reply(
        self.session,
        q.FoundMessage(
            msg.rid,
            envelope,
            headers,
            about.created_at_ms if about is not None else 0,
            received,
            about.visible_at_ms if about is not None else 0,
            [(name, wire_row(self.instance, row)) for name, row in states],
            left > 0,
        ),
    )


async def _queues_of(self: Handlers, id: int) -> list[BrokerQueue]:
    """The queues that a message may be in: those that its history names; without that, all."""
    queues, history = self.instance.queues, self.engine.history
    record = await history.message(id) if history.enabled else None
    if record is not None and record.queues:
        return [queues[status.queue] for status in record.queues if status.queue in queues]
    return list(queues.values())


# ---------------------------------------------------------------------- queues and routes
def list_queues(self: Handlers, msg: q.ListQueues) -> None:
    self.instance.background.run(self.session, msg.rid, _list_queues(self, msg.rid))


async def _list_queues(self: Handlers, rid: int) -> None:
    listed = q.QueueList(rid, [], [])
    async for queue in Pace().over(list(self.instance.queues.values())):
        if not queue.deleting:
            listed.queues.append(encoded((queue.name, *queue.properties, len(queue.consumers))))
            listed.created_at_ms.append(queue.counts.created_at_ms)
    self.instance.outbox.reply(self.session, listed)


def ask_routes(self: Handlers, msg: q.AskRoutes) -> None:
    """Route a message that is never stored."""
    check_short(msg.routing_key, "routing key")
    envelope = m.Publish(0, 0, msg.exchange, msg.routing_key, msg.envelope, msg.texts, 0, 0)
    self.instance.outbox.reply(self.session, q.Routed(msg.rid, [queue.name for queue in self.targets(envelope)]))


HANDLERS: dict[type, Callable[[Any, Any], None]] = {
    q.Peek: peek, q.ListByState: list_by_state, q.GetMessage: get_message, q.ListQueues: list_queues,
    q.AskRoutes: ask_routes,
}  # fmt: skip
