"""Calls that list, group, retry and dismiss failures."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeVar, Unpack

from ..client.calls import failure_queries
from ..client.calls.failure_queries import Dismissed, FailureFilters, FailureList, Retried
from ..client.calls.history_queries import Page
from ..errors import OpenDataError
from ..protocol import messages as m
from ..protocol.messages.failure_messages import FailureInfo
from .base import Base

D = TypeVar("D", Retried, Dismissed)


class Failures(Base):
    """Calls about unhandled failures: failed messages, and acknowledged tasks that failed.

    :class:`kombu_opendata.client.calls.failure_queries.FailureFilters` describes the filters.
    """

    def list_failures(self, **asked: Unpack[FailureList]) -> Page[FailureInfo]:
        """Return a page of failures, ordered by the time of failure; by default, newest first.

        A page may have fewer than its limit if the search takes long; ``next`` is None only on the last page.

        Raises:
            LimitOutOfRange, InvalidFilter, SelectorError: an argument is not valid.
            CursorError: the cursor is not valid for this page; there is a class for each reason.
            NotFound: there is no such queue.
        """
        answer: m.FailurePage = self.calls.call_apart(failure_queries.list_request(asked))
        return Page(answer.items, answer.next, None)

    def iter_failures(self, **asked: Unpack[FailureList]) -> Generator[FailureInfo, None, None]:
        """Iterate over all failures from a page on, requested page by page."""
        while True:
            page = self.list_failures(**asked)
            yield from page.items
            if page.next is None:
                return
            asked = {**asked, "next": page.next}

    def group_failures(
        self, by: Iterable[str], *, bucket_seconds: float = 0, **asked: Unpack[FailureFilters]
    ) -> m.FailureGroups:
        """Return counts of failures with their first and last times, the largest first.

        Args:
            by: any of task, exception, queue, reason, worker.
            bucket_seconds: also count failures over time, in ``over_time`` of each group: by the start of the bucket in
                ms since the epoch, without zeros. The limit is 1,000 buckets from ``gte`` on.

        Returns:
            ``groups``, and ``complete``: True if all failures were counted and all groups are listed. The newest
            500,000 failures are counted, and at most 1,000 groups are listed.
        """
        answer: m.FailureGroups = self.calls.call_apart(failure_queries.group_request(by, bucket_seconds, asked))
        return answer

    def retry_failures(
        self,
        target: str = "",
        *,
        limit: int = 0,
        progress: Callable[[Retried], object] | None = None,
        **asked: Unpack[FailureFilters],
    ) -> Retried:
        """Retry failures, the oldest first; failures that occur during the call are excluded.

        A failed message becomes available again, with no attempts and the same id. A task whose message was
        acknowledged is published again: as a new message with a new task id, whose ``parent_id`` is the old one and
        which keeps ``root_id``. Each failure is retried once, even if the call is interrupted and repeated.

        Args:
            target: the queue that receives the messages; by default, their own.
            limit: the maximum number of failures; 0 means all.
            progress: called after each step with the counts so far.

        Raises:
            BulkInterrupted: an error occurred after some failures were retried; the values have the counts.
        """
        request = failure_queries.retry_request(target, limit, asked)
        return self._in_steps(request, Retried(), limit, progress)

    def dismiss_failures(
        self, *, limit: int = 0, progress: Callable[[Dismissed], object] | None = None, **asked: Unpack[FailureFilters]
    ) -> Dismissed:
        """Delete failed messages and dismiss acknowledged failures; arguments are as in :meth:`retry_failures`.

        The attempts of dismissed failures stay in the history.
        """
        request = failure_queries.dismiss_request(limit, asked)
        return self._in_steps(request, Dismissed(), limit, progress)

    def _in_steps(
        self,
        request: m.RetryFailures | m.DismissFailures | None,
        done: D,
        limit: int,
        progress: Callable[[D], object] | None,
    ) -> D:
        """Repeat the request until all is done; each reply has the position of the next step."""
        while request is not None:
            try:
                answer: m.FailuresRetried | m.FailuresDismissed = self.calls.call_apart(request)
            except OpenDataError as exc:
                raise failure_queries.interrupted(exc, done) from exc
            done = done.plus(answer)
            if progress is not None:
                progress(done)
            request = failure_queries.following(request, answer, done, limit)
        return done
