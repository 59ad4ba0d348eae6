"""History on the broker's side: pages of messages and attempts, single ones, counts by time.

What is asked for is checked in the handler; a task then reads, a few milliseconds at a time, while everything else
goes on.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ..errors import OpenDataError, PreconditionFailed, RequestError
from ..protocol import messages as m
from ..protocol.history_messages import StoredAttempt, StoredEvent, StoredMessage
from ..storage.history import query
from ..storage.history.candidates import AttemptRecord, MessageRecord
from ..storage.history.query import Filters

if TYPE_CHECKING:
    from ..storage.history.service import History
    from .connection import Connection
    from .handlers import Handlers

log = logging.getLogger(__name__)

_ATTEMPT = "attempt-"
_ATTEMPT_ID = re.compile(f"{_ATTEMPT}([0-9a-f]{{1,15}})")


def _history(self: Handlers) -> History:
    history = self.engine.history
    if not history.enabled:
        raise PreconditionFailed("this broker keeps no history: start it with its history on")
    return history


def _answer(self: Handlers, rid: int, work: Awaitable[Any]) -> None:
    """Answer when the work is done."""
    task = self.instance.loop.create_task(_finish(self, rid, work, self.session.connection))
    self.instance.background.add(task)
    task.add_done_callback(self.instance.background.discard)


async def _finish(self: Handlers, rid: int, work: Awaitable[Any], asked_on: Connection | None) -> None:
    try:
        answer = await work
    except OpenDataError as exc:
        answer = m.Failed(rid, exc.code, exc.text, exc.values)
    except Exception as exc:
        log.exception("a call for history failed")
        answer = m.Failed(rid, OpenDataError.code, f"the broker failed at this call: {exc!r}; see its log", {})
    if self.session.connection is asked_on:  # after a reconnect the client has asked again
        self.instance.reply(self.session, answer)


# ---------------------------------------------------------------------- lists
def list_messages(self: Handlers, msg: m.ListMessages) -> None:
    history, filters = _history(self), _message_filters(msg)
    paging = query.check_paging(
        query.MESSAGES, filters, order=msg.order, limit=msg.limit, after=msg.next, before=msg.prev
    )

    async def work() -> m.MessagePage:
        page = await history.list_messages(filters, paging)
        return m.MessagePage(msg.rid, [stored_message(one) for one in page.items], page.next, page.prev)

    _answer(self, msg.rid, work())


def list_attempts(self: Handlers, msg: m.ListAttempts) -> None:
    history, filters = _history(self), _attempt_filters(msg)
    paging = query.check_paging(
        query.ATTEMPTS, filters, order=msg.order, limit=msg.limit, after=msg.next, before=msg.prev
    )

    async def work() -> m.AttemptPage:
        page = await history.list_attempts(filters, paging, bodies=msg.bodies)
        return m.AttemptPage(msg.rid, [stored_attempt(one) for one in page.items], page.next, page.prev)

    _answer(self, msg.rid, work())


def _message_filters(msg: m.ListMessages) -> Filters:
    return query.check_filters(
        queues=msg.queues, statuses=msg.statuses, headers=msg.headers, ids=msg.ids,
        gte=msg.gte, lte=msg.lte, gt=msg.gt, lt=msg.lt,
    )  # fmt: skip


def _attempt_filters(msg: m.ListAttempts) -> Filters:
    return query.check_filters(
        queues=msg.queues, outcomes=msg.outcomes, headers=msg.headers, ids=msg.ids, consumers=msg.consumers,
        manual=msg.manual, gte=msg.gte, lte=msg.lte, gt=msg.gt, lt=msg.lt,
    )  # fmt: skip


# ---------------------------------------------------------------------- single ones
def retrieve_message(self: Handlers, msg: m.RetrieveMessage) -> None:
    history = _history(self)
    if not 0 <= msg.id < 1 << 63:
        raise RequestError(f"{msg.id} is no message id", value=msg.id)

    async def work() -> m.MessagePage:
        found = await history.message(msg.id)
        return m.MessagePage(msg.rid, [] if found is None else [stored_message(found)])

    _answer(self, msg.rid, work())


def retrieve_attempt(self: Handlers, msg: m.RetrieveAttempt) -> None:
    history, number = _history(self), attempt_number(msg.id)

    async def work() -> m.AttemptPage:
        found = await history.attempt(number, bodies=msg.bodies)
        return m.AttemptPage(msg.rid, [] if found is None else [stored_attempt(found)])

    _answer(self, msg.rid, work())


def attempt_number(id: str) -> int:
    """The number of an attempt in the log.

    Raises:
        RequestError: not an attempt's id.
    """
    found = _ATTEMPT_ID.fullmatch(id)
    if found is None:
        raise RequestError(f"{id[:80]!r} is no attempt's id: give the id that a list shows", id=id[:80])
    return int(found[1], 16)


# ---------------------------------------------------------------------- counts
def count_messages(self: Handlers, msg: m.CountMessages) -> None:
    history, buckets = _history(self), query.check_buckets(msg.gte, msg.lt, msg.bucket_ms)
    filters = query.check_filters(
        queues=msg.queues, statuses=msg.statuses, headers=msg.headers, ids=msg.ids, gte=msg.gte, lt=msg.lt
    )

    async def work() -> m.Counts:
        return m.Counts(msg.rid, *buckets[:2], await history.count_messages(filters, buckets))

    _answer(self, msg.rid, work())


def count_attempts(self: Handlers, msg: m.CountAttempts) -> None:
    history, buckets = _history(self), query.check_buckets(msg.gte, msg.lt, msg.bucket_ms)
    filters = query.check_filters(
        queues=msg.queues, outcomes=msg.outcomes, headers=msg.headers, ids=msg.ids, consumers=msg.consumers,
        manual=msg.manual, gte=msg.gte, lt=msg.lt,
    )  # fmt: skip

    async def work() -> m.Counts:
        return m.Counts(msg.rid, *buckets[:2], await history.count_attempts(filters, buckets))

    _answer(self, msg.rid, work())


# ---------------------------------------------------------------------- what is shown
def stored_message(one: MessageRecord) -> StoredMessage:
    data = one.metadata
    times = data.created_at_ms, data.received_at_ms, data.visible_at_ms
    return StoredMessage(data.message_id, *times, data.retention_seconds, data.headers, list(one.queues))


def stored_attempt(one: AttemptRecord) -> StoredAttempt:
    event = None
    if one.event is not None:
        data = one.event.metadata
        times = data.created_at_ms, data.received_at_ms, data.visible_at_ms
        event = StoredEvent(*times, data.headers, one.event.envelope)
    return StoredAttempt(f"{_ATTEMPT}{one.number:x}", *one[1:-1], event)


HANDLERS: dict[type, Callable[[Any, Any], None]] = {
    m.ListMessages: list_messages, m.ListAttempts: list_attempts, m.RetrieveMessage: retrieve_message,
    m.RetrieveAttempt: retrieve_attempt, m.CountMessages: count_messages, m.CountAttempts: count_attempts,
}  # fmt: skip
