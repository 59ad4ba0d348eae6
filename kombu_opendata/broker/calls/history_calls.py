"""Calls about the history (messages, attempts, counts by time), and about failures: list, group, retry, delete."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from ...errors import PreconditionFailed
from ...protocol import messages as m
from ...protocol.messages import FailureGroup, FailureInfo, FailureQuery
from ...storage.clock import Clock
from ...storage.history import failure, query
from ...storage.history.failure import Failure, FailureFilterValues
from ...storage.history.failure_view import FailureView
from ...storage.history.query import attempt_id
from ...storage.history.service import History
from ...storage.records.failures import HOW
from ...storage.state.store_state import StoreState
from .contents import shown_attempt, shown_failure, shown_message
from .dispatch import BrokerCalls, Context, check_range, handles
from .failure_bulk import Bulk, Bulks
from .replay_calls import check_limit, selector_of, stored_queue

_GROUP_FIELDS = attrgetter(*FailureGroup.__struct_fields__)


class HistoryCalls(BrokerCalls):
    """Calls about the history, and about failures."""

    _all: History
    _failures: FailureView
    _state: StoreState
    _bulks: Bulks
    _clock: Clock

    @property
    def _history(self) -> History:
        if not self._all.enabled:
            raise PreconditionFailed("this broker keeps no history: start it with its history on")
        return self._all

    @handles(m.ListMessages)
    async def list_messages(self, call: Context, msg: m.ListMessages) -> m.MessagePage:
        history = self._history
        filters = _history_filters(msg)
        paging = _paging(query.MESSAGES, filters, msg)
        page = await history.list_messages(filters, paging)
        rights = call.session.rights
        items = [info for item in page.items if (info := shown_message(rights, item)) is not None]
        return m.MessagePage(msg.rid, tuple(items), page.next, page.prev)

    @handles(m.ListAttempts)
    async def list_attempts(self, call: Context, msg: m.ListAttempts) -> m.AttemptPage:
        history = self._history
        filters = _history_filters(msg)
        paging = _paging(query.ATTEMPTS, filters, msg)
        page = await history.list_attempts(filters, paging, bodies=msg.bodies, tracebacks=msg.tracebacks)
        rights = call.session.rights
        items = [info for item in page.items if (info := shown_attempt(rights, item)) is not None]
        return m.AttemptPage(msg.rid, tuple(items), page.next, page.prev)

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

    @handles(m.CountMessages)
    async def count_messages(self, call: Context, msg: m.CountMessages) -> m.Counts:
        history, buckets = self._history, query.check_buckets(msg.gte, msg.lt, msg.bucket_ms)
        filters = _history_filters(msg)
        return m.Counts(msg.rid, *buckets[:2], await history.count_messages(filters, buckets))

    @handles(m.CountAttempts)
    async def count_attempts(self, call: Context, msg: m.CountAttempts) -> m.Counts:
        history, buckets = self._history, query.check_buckets(msg.gte, msg.lt, msg.bucket_ms)
        filters = _history_filters(msg)
        return m.Counts(msg.rid, *buckets[:2], await history.count_attempts(filters, buckets))

    @handles(m.ListFailures)
    async def list_failures(self, call: Context, msg: m.ListFailures) -> m.FailurePage:
        descending = query.check_page(msg.order, msg.limit)
        filters, rights = _failure_filters(call, msg), call.session.rights
        after = failure.read_cursor(msg.next, filters, descending=descending) if msg.next else None
        page = await self._failures.page(filters, rights.may_watch, msg.limit, after, descending=descending)
        items = tuple(shown_failure(rights, self._info(failure, msg.tracebacks)) for failure in page.items)
        return m.FailurePage(msg.rid, items, page.next)

    @handles(m.GroupFailures)
    async def group_failures(self, call: Context, msg: m.GroupFailures) -> m.FailureGroups:
        by, filters = failure.check_dimensions(msg.by), _failure_filters(call, msg)
        failure.check_bucket(filters, msg.bucket_ms, self._clock.now_ms())
        groups, complete = await self._failures.groups(filters, call.session.rights.may_watch, by, msg.bucket_ms)
        return m.FailureGroups(msg.rid, tuple(FailureGroup(*_GROUP_FIELDS(group)) for group in groups), complete)

    @handles(m.RetryFailures)
    async def retry_failures(self, call: Context, msg: m.RetryFailures) -> m.FailuresRetried:
        if msg.target:
            stored_queue(call, msg.target)
        bulk = self._bulk(call, msg)
        bulk.target, reply = msg.target, bulk.retried
        await self._bulks.retry(bulk)
        if bulk.handled:
            text, where = "ran %d failed messages and %d acknowledged tasks of %s again", _names(msg.queues)
            if msg.target:
                where += f", in queue {msg.target!r},"
            call.audit(text, reply.redriven, reply.published, where)
        reply.next = _next(bulk)
        return reply

    @handles(m.DeleteFailures)
    async def delete_failures(self, call: Context, msg: m.DeleteFailures) -> m.FailuresDeleted:
        bulk = self._bulk(call, msg)
        reply = bulk.deleted
        await self._bulks.delete(bulk)
        if bulk.handled:
            text = "deleted %d failed messages and %d acknowledged failures of %s"
            call.audit(text, reply.deleted, reply.dismissed, _names(msg.queues))
        reply.next = _next(bulk)
        return reply

    def _bulk(self, call: Context, msg: m.RetryFailures | m.DeleteFailures) -> Bulk:
        """Return the state of a call. Failures after the start of the first call are not handled."""
        check_limit(msg.limit)
        filters = _failure_filters(call, msg)
        until_ms = msg.until_ms or self._clock.now_ms()
        filters = filters._replace(until_ms=min(filters.until_ms, until_ms))
        after = failure.read_cursor(msg.next, filters, descending=False) if msg.next else None
        session, connection = call.session, call.session.connection
        bulk = Bulk(filters, after, msg.limit, lambda: session.connection is connection)
        bulk.retried.rid = bulk.deleted.rid = msg.rid
        bulk.retried.until_ms = bulk.deleted.until_ms = until_ms
        return bulk

    def _info(self, failure: Failure, tracebacks: bool) -> FailureInfo:
        place, facts, text = failure
        handled = self._state.handled.find(facts.number)
        return FailureInfo(
            message_id=place.message_id,
            queue=place.queue,
            kind=place.kind,
            task=facts.task,
            task_id=facts.task_id,
            reason=facts.reason,
            exception=facts.exception,
            error=text.error,
            worker=facts.worker,
            failed_at_ms=place.at_ms,
            attempts=place.attempts,
            attempt=attempt_id(facts.number) if facts.number >= 0 else "",
            runtime_ms=facts.runtime_us / 1000,
            traceback=text.traceback if tracebacks else "",
            handled="" if handled is None else HOW[handled.how],
            handled_at_ms=0 if handled is None else handled.at_ms,
            retried_as=-1 if handled is None else handled.message_id or -1,
        )


def _history_filters(msg: m.WireMessage) -> query.ListFilters:
    """Return the filters of a call. Raises InvalidFilter if a value is not valid."""
    values: dict[str, Any] = {name: getattr(msg, name) for name in msg.__struct_fields__ if name in query.FILTERS}
    return query.check_filters(**values)


def _paging(kind: str, filters: query.ListFilters, msg: m.ListMessages | m.ListAttempts) -> query.Paging:
    return query.check_paging(kind, filters, order=msg.order, limit=msg.limit, after=msg.next, before=msg.prev)


def _names(queues: Sequence[str]) -> str:
    """Return the queues of a call, for the audit log."""
    if not queues:
        return "all queues"
    noun = "queue" if len(queues) == 1 else "queues"
    suffix = f" and {len(queues) - 3} more" if len(queues) > 3 else ""
    return f"{noun} {', '.join(map(repr, queues[:3]))}{suffix}"


def _next(bulk: Bulk) -> str | None:
    return None if bulk.next is None else failure.make_cursor(bulk.filters, bulk.next, descending=False)


def _failure_filters(call: Context, msg: FailureQuery[Any]) -> FailureFilterValues:
    """Return the filters of a call.

    Raise NotFound for an unknown queue, and InvalidFilter or SelectorError for an invalid value.
    """
    for name in msg.queues:
        call.queue(name)
    names = (name for name in FailureQuery.__struct_fields__ if name not in ("rid", "selector"))
    values: dict[str, Any] = {name: getattr(msg, name) for name in names}
    handled = getattr(msg, "handled", False)
    return failure.check_filters(**values, selector=selector_of(msg.selector), handled=handled)
