"""Calls about failures: pages, groups, retries, archiving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...protocol import messages as m
from ...protocol.messages import FailureGroup, FailureInfo, FailureQuery
from ...storage.clock import Clock
from ...storage.history import failure
from ...storage.history.failure import Failure, FailureFilterValues
from ...storage.history.failure_view import FailureView
from ...storage.history.query import attempt_id
from ...storage.records.failures import HOW
from ...storage.state.store_state import StoreState
from .dispatch.contents import shown_failure
from .dispatch.context import Context
from .dispatch.registry import Calls, handles
from .failure_bulk import Bulk, Bulks
from .replay_calls import check_limit, selector_of, stored_queue


class FailureCalls(Calls):
    """The calls about the failures of one instance."""

    _view: FailureView
    _state: StoreState
    _bulks: Bulks
    _clock: Clock

    @handles(m.ListFailures)
    async def list_failures(self, call: Context, msg: m.ListFailures) -> m.FailurePage:
        descending = failure.check_page(msg.order, msg.limit)
        filters, rights = _filters(call, msg), call.session.rights
        after = failure.read_cursor(msg.next, filters, descending=descending) if msg.next else None
        page = await self._view.page(filters, rights.may_watch, msg.limit, after, descending=descending)
        items = tuple(shown_failure(rights, self._info(failure, msg.tracebacks)) for failure in page.items)
        return m.FailurePage(msg.rid, items, page.next)

    @handles(m.GroupFailures)
    async def group_failures(self, call: Context, msg: m.GroupFailures) -> m.FailureGroups:
        by, filters = failure.check_dimensions(msg.by), _filters(call, msg)
        failure.check_bucket(filters, msg.bucket_ms, self._clock.now_ms())
        groups, complete = await self._view.groups(filters, call.session.rights.may_watch, by, msg.bucket_ms)
        reply_groups = [
            FailureGroup(
                group.values, group.count, group.acknowledged, group.first_at_ms, group.last_at_ms, group.over_time
            )
            for group in groups
        ]
        return m.FailureGroups(msg.rid, tuple(reply_groups), complete)

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

    @handles(m.DismissFailures)
    async def delete_failures(self, call: Context, msg: m.DismissFailures) -> m.FailuresDismissed:
        bulk = self._bulk(call, msg)
        reply = bulk.deleted
        await self._bulks.delete(bulk)
        if bulk.handled:
            text = "deleted %d failed messages and %d acknowledged failures of %s"
            call.audit(text, reply.deleted, reply.dismissed, _names(msg.queues))
        reply.next = _next(bulk)
        return reply

    def _bulk(self, call: Context, msg: m.RetryFailures | m.DismissFailures) -> Bulk:
        """Return the work of a call. Failures after the start of the first call do not take part."""
        check_limit(msg.limit)
        filters = _filters(call, msg)
        until_ms = msg.until_ms or self._clock.now_ms()
        filters = filters._replace(until_ms=min(filters.until_ms, until_ms))
        after = failure.read_cursor(msg.next, filters, descending=False) if msg.next else None
        session, connection = call.session, call.session.connection
        bulk = Bulk(filters, after, msg.limit, lambda: session.connection is connection)
        bulk.retried.rid = bulk.deleted.rid = msg.rid
        bulk.retried.until_ms = bulk.deleted.until_ms = until_ms
        return bulk

    # ------------------------------------------------------------------ replies
    def _info(self, failure: Failure, tracebacks: bool) -> FailureInfo:
        place, facts, text = failure
        handled = self._state.handled.find(facts.number)
        return FailureInfo(
            place.message_id, place.queue, place.kind, facts.task, facts.task_id, facts.reason, facts.exception,
            text.error, facts.worker, place.at_ms, place.attempts,
            attempt_id(facts.number) if facts.number >= 0 else "", facts.runtime_us / 1000,
            text.traceback if tracebacks else "",
            *(("", 0, -1) if handled is None else (HOW[handled.how], handled.at_ms, handled.message_id or -1)),
        )  # fmt: skip


def _names(queues: Sequence[str]) -> str:
    """Return the queues of a call, for the audit log."""
    if not queues:
        return "all queues"
    suffix = f" and {len(queues) - 3} more" if len(queues) > 3 else ""
    return f"queue{'s'[: len(queues) - 1]} {', '.join(map(repr, queues[:3]))}{suffix}"


def _next(bulk: Bulk) -> str | None:
    return None if bulk.next is None else failure.make_cursor(bulk.filters, bulk.next, descending=False)


def _filters(call: Context, msg: FailureQuery[Any]) -> FailureFilterValues:
    """Return the filters of a call.

    Raises:
        NotFound: a queue does not exist.
        InvalidFilter, SelectorError: a value is not valid.
    """
    for name in msg.queues:
        call.queue(name)
    return failure.check_filters(
        queues=msg.queues, kinds=msg.kinds, tasks=msg.tasks, exceptions=msg.exceptions, reasons=msg.reasons,
        workers=msg.workers, ids=msg.ids, task_ids=msg.task_ids, selector=selector_of(msg.selector), gte=msg.gte,
        lte=msg.lte, handled=getattr(msg, "handled", False),
    )  # fmt: skip
