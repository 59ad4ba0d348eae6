"""Calls that list, group, retry and dismiss failures."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeVar, Unpack

from msgspec.structs import replace

from ..errors import BulkInterrupted, OpenDataError
from ..protocol import messages as m
from ..protocol.messages.failure_messages import FailureInfo
from .base import Base
from .queries import FailureFilters, FailureList, bucket_ms, of_type, page_limit, request, texts

D = TypeVar("D", m.FailuresRetried, m.FailuresDismissed)


class Failures(Base):
    """Calls about unhandled failures: failed messages, and acknowledged tasks that failed.

    :class:`kombu_opendata.queue_client.queries.FailureFilters` describes the filters.
    """

    def list_failures(self, **query: Unpack[FailureList]) -> m.FailurePage:
        """Return a page of failures, ordered by the time of failure; by default, newest first.

        A page may have fewer than its limit if the search takes long; ``next`` is None only on the last page.

        Raises:
            LimitOutOfRange, InvalidFilter, SelectorError: an argument is not valid.
            CursorError: the cursor is not valid for this page; there is a class for each reason.
            NotFound: there is no such queue.
        """
        answer: m.FailurePage = self.calls.call_apart(request("list_failures", m.ListFailures, query, FailureList))
        return answer

    def iter_failures(self, **query: Unpack[FailureList]) -> Generator[FailureInfo, None, None]:
        """Iterate over all failures from a page on, requested page by page."""
        while True:
            page = self.list_failures(**query)
            yield from page.items
            if page.next is None:
                return
            query = {**query, "next": page.next}

    def group_failures(
        self, by: Iterable[str], *, bucket_seconds: float = 0, **query: Unpack[FailureFilters]
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
        fields = {"by": texts("by", by), "bucket_ms": bucket_ms("bucket_seconds", bucket_seconds)}
        message = request("group_failures", m.GroupFailures, query, FailureFilters, **fields)
        answer: m.FailureGroups = self.calls.call_apart(message)
        return answer

    def retry_failures(
        self,
        target: str = "",
        *,
        limit: int = 0,
        progress: Callable[[m.FailuresRetried], object] | None = None,
        **query: Unpack[FailureFilters],
    ) -> m.FailuresRetried:
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
        fields = {"target": of_type("target", target, str), "limit": page_limit("limit", limit)}
        step = request("retry_failures", m.RetryFailures, query, FailureFilters, **fields)
        return self._in_steps(step, m.FailuresRetried(0), limit, progress)

    def dismiss_failures(
        self,
        *,
        limit: int = 0,
        progress: Callable[[m.FailuresDismissed], object] | None = None,
        **query: Unpack[FailureFilters],
    ) -> m.FailuresDismissed:
        """Delete failed messages and dismiss acknowledged failures; arguments are as in :meth:`retry_failures`.

        The attempts of dismissed failures stay in the history.
        """
        step = request("dismiss_failures", m.DismissFailures, query, FailureFilters, limit=page_limit("limit", limit))
        return self._in_steps(step, m.FailuresDismissed(0), limit, progress)

    def _in_steps(
        self,
        request: m.RetryFailures | m.DismissFailures,
        done: D,
        limit: int,
        progress: Callable[[D], object] | None,
    ) -> D:
        """Repeat the request until all is done; each reply has the position of the next step."""
        while True:
            try:
                done = done.plus(self.calls.call_apart(request))
            except OpenDataError as exc:
                if not done.handled:
                    raise
                text = f"interrupted after {done.handled:,} ({exc.text}); call it again to continue with the rest"
                raise BulkInterrupted(text, reason=exc.code, **done.values) from exc
            if progress is not None:
                progress(done)
            if done.next is None or done.values.get("full") or 0 < limit <= done.handled:
                return done
            left = limit - done.handled if limit else 0
            request = replace(request, next=done.next, until_ms=done.until_ms, limit=left)
