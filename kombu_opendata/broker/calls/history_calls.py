"""Calls about message history: pages of messages and attempts, single records, counts by time."""

from __future__ import annotations

from ...errors import PreconditionFailed
from ...protocol import messages as m
from ...storage.history import query
from ...storage.history.service import History
from .dispatch.contents import shown_attempt, shown_message
from .dispatch.context import Context, check_range
from .dispatch.registry import Calls, handles


class HistoryCalls(Calls):
    """The calls that read the history."""

    _all: History

    @property
    def _history(self) -> History:
        if not self._all.enabled:
            raise PreconditionFailed("this broker keeps no history: start it with its history on")
        return self._all

    # ------------------------------------------------------------------ lists
    @handles(m.ListMessages)
    async def list_messages(self, call: Context, msg: m.ListMessages) -> m.MessagePage:
        history = self._history
        filters = query.check_filters(
            queues=msg.queues, statuses=msg.statuses, headers=msg.headers, ids=msg.ids,
            gte=msg.gte, lte=msg.lte, gt=msg.gt, lt=msg.lt,
        )  # fmt: skip
        paging = query.check_paging(
            query.MESSAGES, filters, order=msg.order, limit=msg.limit, after=msg.next, before=msg.prev
        )
        page = await history.list_messages(filters, paging)
        rights = call.session.rights
        items = [info for item in page.items if (info := shown_message(rights, item)) is not None]
        return m.MessagePage(msg.rid, tuple(items), page.next, page.prev)

    @handles(m.ListAttempts)
    async def list_attempts(self, call: Context, msg: m.ListAttempts) -> m.AttemptPage:
        history = self._history
        filters = query.check_filters(
            queues=msg.queues, outcomes=msg.outcomes, headers=msg.headers, ids=msg.ids, consumers=msg.consumers,
            manual=msg.manual, states=msg.states, exceptions=msg.exceptions,
            gte=msg.gte, lte=msg.lte, gt=msg.gt, lt=msg.lt,
        )  # fmt: skip
        paging = query.check_paging(
            query.ATTEMPTS, filters, order=msg.order, limit=msg.limit, after=msg.next, before=msg.prev
        )
        page = await history.list_attempts(filters, paging, bodies=msg.bodies, tracebacks=msg.tracebacks)
        rights = call.session.rights
        items = [info for item in page.items if (info := shown_attempt(rights, item)) is not None]
        return m.AttemptPage(msg.rid, tuple(items), page.next, page.prev)

    # ------------------------------------------------------------------ single records
    @handles(m.RetrieveMessage)
    async def retrieve_message(self, call: Context, msg: m.RetrieveMessage) -> m.MessagePage:
        history = self._history
        check_range("a message id", msg.id, 0, (1 << 63) - 1)
        record = await history.message(msg.id)
        info = shown_message(call.session.rights, record) if record is not None else None
        return m.MessagePage(msg.rid, () if info is None else (info,))

    @handles(m.RetrieveAttempt)
    async def retrieve_attempt(self, call: Context, msg: m.RetrieveAttempt) -> m.AttemptPage:
        record = await self._history.attempt(query.attempt_number(msg.id), bodies=msg.bodies)
        info = shown_attempt(call.session.rights, record) if record is not None else None
        return m.AttemptPage(msg.rid, () if info is None else (info,))

    # ------------------------------------------------------------------ counts
    @handles(m.CountMessages)
    async def count_messages(self, call: Context, msg: m.CountMessages) -> m.Counts:
        history, buckets = self._history, query.check_buckets(msg.gte, msg.lt, msg.bucket_ms)
        filters = query.check_filters(
            queues=msg.queues, statuses=msg.statuses, headers=msg.headers, ids=msg.ids, gte=msg.gte, lt=msg.lt
        )
        return m.Counts(msg.rid, *buckets[:2], await history.count_messages(filters, buckets))

    @handles(m.CountAttempts)
    async def count_attempts(self, call: Context, msg: m.CountAttempts) -> m.Counts:
        history, buckets = self._history, query.check_buckets(msg.gte, msg.lt, msg.bucket_ms)
        filters = query.check_filters(
            queues=msg.queues, outcomes=msg.outcomes, headers=msg.headers, ids=msg.ids, consumers=msg.consumers,
            manual=msg.manual, states=msg.states, exceptions=msg.exceptions, gte=msg.gte, lt=msg.lt,
        )  # fmt: skip
        return m.Counts(msg.rid, *buckets[:2], await history.count_attempts(filters, buckets))
