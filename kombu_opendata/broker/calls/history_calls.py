"""Calls about message history: pages of messages and attempts, single records, counts by time."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import PreconditionFailed, RequestError
from ...protocol import messages as m
from ...protocol.messages.history_messages import AttemptInfo, EventInfo, MessageInfo, QueueStatus
from ...storage.history.lists import query
from ...storage.history.lists.candidates import AttemptRecord, MessageRecord
from ...storage.history.service import History
from ...storage.records import failures
from .dispatch.contents import shown_attempt, shown_message
from .dispatch.context import Context
from .dispatch.registry import handles

_ATTEMPT = "attempt-"
_ATTEMPT_ID = re.compile(f"{_ATTEMPT}([0-9a-f]{{1,15}})")


@dataclass(frozen=True, slots=True)
class HistoryCalls:
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
        items = [info for item in page.items if (info := shown_message(rights, stored_message(item))) is not None]
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
        items = [info for item in page.items if (info := shown_attempt(rights, stored_attempt(item))) is not None]
        return m.AttemptPage(msg.rid, tuple(items), page.next, page.prev)

    # ------------------------------------------------------------------ single records
    @handles(m.RetrieveMessage)
    async def retrieve_message(self, call: Context, msg: m.RetrieveMessage) -> m.MessagePage:
        history = self._history
        if not 0 <= msg.id < 1 << 63:
            raise RequestError(f"{msg.id} is not a message id", value=msg.id)
        record = await history.message(msg.id)
        info = shown_message(call.session.rights, stored_message(record)) if record is not None else None
        return m.MessagePage(msg.rid, () if info is None else (info,))

    @handles(m.RetrieveAttempt)
    async def retrieve_attempt(self, call: Context, msg: m.RetrieveAttempt) -> m.AttemptPage:
        record = await self._history.attempt(attempt_number(msg.id), bodies=msg.bodies)
        info = shown_attempt(call.session.rights, stored_attempt(record)) if record is not None else None
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


def attempt_number(id: str) -> int:
    """Return the number of an attempt in the log.

    Raises:
        RequestError: the text is not an attempt's id.
    """
    match = _ATTEMPT_ID.fullmatch(id)
    if match is None:
        raise RequestError(f"{id[:80]!r} is not an attempt's id: give an id from a list of attempts", id=id[:80])
    return int(match[1], 16)


def attempt_id(number: int) -> str:
    """Return the id of the attempt with this number in the log."""
    return f"{_ATTEMPT}{number:x}"


# ---------------------------------------------------------------------- records as replies
def stored_message(one: MessageRecord) -> MessageInfo:
    data = one.metadata
    times = data.created_at_ms, data.received_at_ms, data.visible_at_ms
    queues = tuple(QueueStatus(*status) for status in one.queues)
    return MessageInfo(data.message_id, *times, data.retention_seconds, data.headers, queues)


def stored_attempt(one: AttemptRecord) -> AttemptInfo:
    event = None
    if one.event is not None:
        data = one.event.metadata
        times = data.created_at_ms, data.received_at_ms, data.visible_at_ms
        event = EventInfo(*times, data.headers, one.event.envelope, one.event.error)
    failure = one.failure or failures.NO_FAILURE
    return AttemptInfo(
        attempt_id(one.number), one.message_id, one.queue, one.consumer, one.claimed_at_ms, one.ended_at_ms,
        one.attempt, one.outcome, one.requeued, one.manual, event,
        one.state, one.runtime_us / 1000, one.pid, one.exception, failure.error, failure.traceback,
    )  # fmt: skip
