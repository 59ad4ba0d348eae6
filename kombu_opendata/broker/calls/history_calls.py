"""History: pages of messages and attempts, single ones, counts by time.

What is asked for is checked in the handler; a task then reads, a few milliseconds at a time, while everything else
goes on.
"""

from __future__ import annotations

import re

from ...errors import PreconditionFailed, RequestError
from ...protocol import messages as m
from ...protocol.history_messages import StoredAttempt, StoredEvent, StoredMessage
from ...storage.history.lists import query
from ...storage.history.lists.candidates import AttemptRecord, MessageRecord
from ...storage.history.lists.query import Filters
from ...storage.history.service import History
from .context import Context
from .registry import handles

_ATTEMPT = "attempt-"
_ATTEMPT_ID = re.compile(f"{_ATTEMPT}([0-9a-f]{{1,15}})")


class HistoryCalls:
    """Pages of messages and attempts, single ones, counts by time."""

    def __init__(self, history: History) -> None:
        self._all = history

    @property
    def _history(self) -> History:
        if not self._all.enabled:
            raise PreconditionFailed("this broker keeps no history: start it with its history on")
        return self._all

    # ------------------------------------------------------------------ lists
    @handles(m.ListMessages, query=True)
    def list_messages(self, call: Context, msg: m.ListMessages) -> None:
        history, filters = self._history, _message_filters(msg)
        paging = query.check_paging(
            query.MESSAGES, filters, order=msg.order, limit=msg.limit, after=msg.next, before=msg.prev
        )

        async def work() -> m.MessagePage:
            page = await history.list_messages(filters, paging)
            return m.MessagePage(msg.rid, [stored_message(one) for one in page.items], page.next, page.prev)

        call.run(msg.rid, work())

    @handles(m.ListAttempts, query=True)
    def list_attempts(self, call: Context, msg: m.ListAttempts) -> None:
        history, filters = self._history, _attempt_filters(msg)
        paging = query.check_paging(
            query.ATTEMPTS, filters, order=msg.order, limit=msg.limit, after=msg.next, before=msg.prev
        )

        async def work() -> m.AttemptPage:
            page = await history.list_attempts(filters, paging, bodies=msg.bodies)
            return m.AttemptPage(msg.rid, [stored_attempt(one) for one in page.items], page.next, page.prev)

        call.run(msg.rid, work())

    # ------------------------------------------------------------------ single ones
    @handles(m.RetrieveMessage, query=True)
    def retrieve_message(self, call: Context, msg: m.RetrieveMessage) -> None:
        history = self._history
        if not 0 <= msg.id < 1 << 63:
            raise RequestError(f"{msg.id} is no message id", value=msg.id)

        async def work() -> m.MessagePage:
            found = await history.message(msg.id)
            return m.MessagePage(msg.rid, [] if found is None else [stored_message(found)])

        call.run(msg.rid, work())

    @handles(m.RetrieveAttempt, query=True)
    def retrieve_attempt(self, call: Context, msg: m.RetrieveAttempt) -> None:
        history, number = self._history, attempt_number(msg.id)

        async def work() -> m.AttemptPage:
            found = await history.attempt(number, bodies=msg.bodies)
            return m.AttemptPage(msg.rid, [] if found is None else [stored_attempt(found)])

        call.run(msg.rid, work())

    # ------------------------------------------------------------------ counts
    @handles(m.CountMessages, query=True)
    def count_messages(self, call: Context, msg: m.CountMessages) -> None:
        history, buckets = self._history, query.check_buckets(msg.gte, msg.lt, msg.bucket_ms)
        filters = query.check_filters(
            queues=msg.queues, statuses=msg.statuses, headers=msg.headers, ids=msg.ids, gte=msg.gte, lt=msg.lt
        )

        async def work() -> m.Counts:
            return m.Counts(msg.rid, *buckets[:2], await history.count_messages(filters, buckets))

        call.run(msg.rid, work())

    @handles(m.CountAttempts, query=True)
    def count_attempts(self, call: Context, msg: m.CountAttempts) -> None:
        history, buckets = self._history, query.check_buckets(msg.gte, msg.lt, msg.bucket_ms)
        filters = query.check_filters(
            queues=msg.queues, outcomes=msg.outcomes, headers=msg.headers, ids=msg.ids, consumers=msg.consumers,
            manual=msg.manual, gte=msg.gte, lt=msg.lt,
        )  # fmt: skip

        async def work() -> m.Counts:
            return m.Counts(msg.rid, *buckets[:2], await history.count_attempts(filters, buckets))

        call.run(msg.rid, work())


# ---------------------------------------------------------------------- checking
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


def attempt_number(id: str) -> int:
    """The number of an attempt in the log.

    Raises:
        RequestError: not an attempt's id.
    """
    found = _ATTEMPT_ID.fullmatch(id)
    if found is None:
        raise RequestError(f"{id[:80]!r} is no attempt's id: give the id that a list shows", id=id[:80])
    return int(found[1], 16)


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
