"""Calls about failures: pages, groups, retries, archiving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ....errors import RequestError
from ....protocol import messages as m
from ....protocol.messages.failure_messages import FailureGroup, FailureInfo, FailureQuery
from ....storage.clock import Clock
from ....storage.history.failures import failure
from ....storage.history.failures.failure import Failure, FailureFilterValues
from ....storage.history.failures.view import FailureView
from ....storage.records.failures import HOW, NO_FAILURE, TaskFailure
from ....storage.state.store_state import StoreState
from ...access.rights import Rights
from ..dispatch.contents import shown_failure
from ..dispatch.context import Context
from ..dispatch.registry import handles
from ..history_calls import attempt_id
from ..replay_calls import selector_of, stored_queue
from .bulk import Bulk, BulkOutcome, Bulks


@dataclass(frozen=True, slots=True)
class FailureCalls:
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
        page = await self._view.page(filters, _shows(rights), msg.limit, after, descending=descending)
        infos = (
            self._info(failure, page.texts.get(failure.facts.number, NO_FAILURE), msg.tracebacks)
            for failure in page.items
        )
        items = tuple(shown_failure(rights, info) for info in infos)
        next_cursor = None if page.next is None else failure.make_cursor(filters, page.next, descending=descending)
        return m.FailurePage(msg.rid, items, next_cursor)

    @handles(m.GroupFailures)
    async def group_failures(self, call: Context, msg: m.GroupFailures) -> m.FailureGroups:
        by, filters = failure.check_dimensions(msg.by), _filters(call, msg)
        failure.check_bucket(filters, msg.bucket_ms, self._clock.now_ms())
        groups, complete = await self._view.groups(filters, _shows(call.session.rights), by, msg.bucket_ms)
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
        bulk, until_ms = self._bulk(call, msg)
        bulk.target = msg.target
        outcome = await self._bulks.retry(bulk)
        if outcome.handled:
            text, where = "ran %d failed messages and %d acknowledged tasks of %s again", _names(msg.queues)
            if msg.target:
                where += f", in queue {msg.target!r},"
            call.audit(text, outcome.redriven, outcome.published, where)
        return m.FailuresRetried(
            msg.rid, outcome.redriven, outcome.published, outcome.already, outcome.expired, outcome.waiting,
            outcome.unmatched, outcome.collected, outcome.not_tasks, outcome.without_queue, outcome.paused,
            outcome.full, _next(bulk, outcome), until_ms, outcome.damaged, outcome.damage,
        )  # fmt: skip

    @handles(m.DismissFailures)
    async def dismiss_failures(self, call: Context, msg: m.DismissFailures) -> m.FailuresDismissed:
        bulk, until_ms = self._bulk(call, msg)
        outcome = await self._bulks.dismiss(bulk)
        if outcome.handled:
            text = "deleted %d failed messages and dismissed %d failures of %s"
            call.audit(text, outcome.deleted, outcome.dismissed, _names(msg.queues))
        return m.FailuresDismissed(msg.rid, outcome.deleted, outcome.dismissed, _next(bulk, outcome), until_ms)

    # ------------------------------------------------------------------ bulks
    def _bulk(self, call: Context, msg: m.RetryFailures | m.DismissFailures) -> tuple[Bulk, int]:
        """Return the work of a call, and the time up to which failures take part; later ones do not."""
        if msg.limit < 0:
            raise RequestError(f"a limit of {msg.limit} is not valid: give a number, or 0 for all", limit=msg.limit)
        filters = _filters(call, msg)
        until_ms = msg.until_ms or self._clock.now_ms()
        filters = filters._replace(until_ms=min(filters.until_ms, until_ms))
        after = failure.read_cursor(msg.next, filters, descending=False) if msg.next else None
        session, connection = call.session, call.session.connection
        return Bulk(filters, after, msg.limit, lambda: session.connection is connection), until_ms

    # ------------------------------------------------------------------ replies
    def _info(self, one: Failure, text: TaskFailure, tracebacks: bool) -> FailureInfo:
        place, facts = one
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


def _next(bulk: Bulk, done: BulkOutcome) -> str | None:
    return None if done.next is None else failure.make_cursor(bulk.filters, done.next, descending=False)


def _shows(rights: Rights) -> Callable[[str], bool]:
    return rights.may_watch


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
