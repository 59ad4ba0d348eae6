"""Failures: lists and groups, running them again, dismissing them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TypeVar, Unpack

from ...client.calls import failure_queries
from ...client.calls.failure_queries import Dismissed, FailureFilters, FailureList, Retried
from ...client.calls.history_queries import Page
from ...errors import OpenDataError
from ...protocol import messages as m
from ...protocol.messages.failure_messages import FailureInfo
from .base import AsyncBase

D = TypeVar("D", Retried, Dismissed)


class AsyncFailures(AsyncBase):
    """Calls about what failed and was not handled yet: failed messages, and acknowledged tasks that failed.

    :class:`kombu_opendata.client.calls.failure_queries.FailureFilters` describes the filters.
    """

    async def list_failures(self, **asked: Unpack[FailureList]) -> Page[FailureInfo]:
        """A page of failures, ordered by the time when they failed; by default, newest first.

        A page may have fewer than its limit if the search takes long; ``next`` is None only on the last one.

        Raises:
            LimitOutOfRange, InvalidFilter, SelectorError: an argument is not valid.
            CursorError: the cursor is not valid for this page; there is a class for each reason.
            NotFound: there is no such queue.
        """
        answer: m.FailurePage = await self._calls.call_apart(failure_queries.list_request(asked))
        return Page(answer.items, answer.next, None)

    async def iter_failures(self, **asked: Unpack[FailureList]) -> AsyncGenerator[FailureInfo, None]:
        """All failures from a page on, requested page by page."""
        while True:
            page = await self.list_failures(**asked)
            for failure in page.items:
                yield failure
            if page.next is None:
                return
            asked = {**asked, "next": page.next}

    async def group_failures(
        self, by: Iterable[str], *, bucket_seconds: float = 0, **asked: Unpack[FailureFilters]
    ) -> m.FailureGroups:
        """Counts of failures with first and last time, the largest first.

        Args:
            by: any of task, exception, queue, reason, worker.
            bucket_seconds: count them over time as well, in ``over_time`` of each group: by the start of the bucket in
                ms since the epoch, without zeros. There may be 1,000 buckets from ``gte`` on.

        Returns:
            ``groups``, and ``complete``: whether all failures were counted and all groups are there. The newest 500,000
            are counted, and there are at most 1,000 groups.
        """
        answer: m.FailureGroups = await self._calls.call_apart(failure_queries.group_request(by, bucket_seconds, asked))
        return answer

    async def retry_failures(
        self,
        target: str = "",
        *,
        limit: int = 0,
        progress: Callable[[Retried], object] | None = None,
        **asked: Unpack[FailureFilters],
    ) -> Retried:
        """Run failures again, the oldest first; those that come meanwhile are left out.

        A failed message becomes available again, with no attempts and the same id. A task whose message was
        acknowledged is published again: as a new message with a new task id, whose ``parent_id`` is the old one and
        which keeps ``root_id``. Each failure runs again once, also if the call is interrupted and made again.

        Args:
            target: the queue that gets them; by default, their own.
            limit: the most failures; 0 means all.
            progress: is called after each step with what was done so far.

        Raises:
            BulkInterrupted: an error came after some were done; the values have the counts.
        """
        request = failure_queries.retry_request(target, limit, asked)
        return await self._in_steps(request, Retried(), limit, progress)

    async def dismiss_failures(
        self, *, limit: int = 0, progress: Callable[[Dismissed], object] | None = None, **asked: Unpack[FailureFilters]
    ) -> Dismissed:
        """Delete failed messages, and dismiss acknowledged failures; the rest is as in :meth:`retry_failures`.

        The attempts of dismissed failures stay in the history.
        """
        request = failure_queries.dismiss_request(limit, asked)
        return await self._in_steps(request, Dismissed(), limit, progress)

    async def _in_steps(
        self,
        request: m.RetryFailures | m.DismissFailures | None,
        done: D,
        limit: int,
        progress: Callable[[D], object] | None,
    ) -> D:
        """Repeat the request until all is done; each answer says where the next one begins."""
        while request is not None:
            try:
                answer: m.FailuresRetried | m.FailuresDismissed = await self._calls.call_apart(request)
            except OpenDataError as exc:
                raise failure_queries.interrupted(exc, done) from exc
            done = done.plus(answer)
            if progress is not None:
                progress(done)
            request = failure_queries.following(request, answer, done, limit)
        return done
