"""Calls about the history: messages, attempts and failures."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack

from msgspec.structs import replace

from ..errors import BulkInterrupted, OpenDataError
from ..protocol import messages as m
from ..protocol.messages import AttemptInfo, FailureInfo, FailureQuery, MessageInfo
from .base import Base
from .message_models import bodies_of_page
from .queries import (
    AttemptCount,
    AttemptQuery,
    FailureFilters,
    FailureList,
    MessageCount,
    MessageQuery,
    bucket_ms,
    of_type,
    page_limit,
    request,
    texts,
)

D = TypeVar("D", m.FailuresRetried, m.FailuresDeleted)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Count of one period."""

    start_ms: int
    count: int


class HistoryQueries(Base):
    """Calls about the history and about unhandled failures: failed messages, and acknowledged tasks that failed.

    :mod:`kombu_opendata.queue_client.queries` describes their filters. Each call uses a separate connection, because a
    long list may take some time.
    """

    def list_messages(self, **query: Unpack[MessageQuery]) -> m.MessagePage:
        """Return a page of the stored messages, ordered by the time of their receipt; by default, newest first.

        Raises:
            LimitOutOfRange, InvalidFilter: an argument is not valid.
            CursorError: the cursor is not valid for this page; there is a class for each reason.
        """
        return self.calls.call_apart(request("list_messages", m.ListMessages, query, MessageQuery))

    def list_attempts(self, **query: Unpack[AttemptQuery]) -> m.AttemptPage:
        """Return a page of the finished attempts as :meth:`list_messages`, ordered by the time of their ends.

        Attempts are kept for some time after their messages are collected. With ``bodies=True``, each has the body of
        its message if that is still stored, and a page ends early at 4 MiB. A body that would exceed this limit when it
        is decoded is returned as bytes.
        """
        return _with_bodies(self.calls.call_apart(request("list_attempts", m.ListAttempts, query, AttemptQuery)))

    def iter_messages(self, **query: Unpack[MessageQuery]) -> Generator[MessageInfo, None, None]:
        """Iterate over the messages of the query's page and of all further pages."""
        yield from _items(self.list_messages, query)

    def iter_attempts(self, **query: Unpack[AttemptQuery]) -> Generator[AttemptInfo, None, None]:
        """Iterate over the attempts of the query's page and of all further pages."""
        yield from _items(self.list_attempts, query)

    def retrieve_message(self, id: int) -> MessageInfo | None:
        """Return a message's metadata and its state in each queue; None if it is not stored."""
        answer = self.calls.call_apart(m.RetrieveMessage(0, id))
        return next(iter(answer.items), None)

    def retrieve_attempt(self, id: str, *, bodies: bool = False) -> AttemptInfo | None:
        """Return an attempt by its id, optionally with its message's body; None if it no longer exists.

        Raises RequestError for a text that is no id of an attempt.
        """
        return next(iter(_with_bodies(self.calls.call_apart(m.RetrieveAttempt(0, id, bodies))).items), None)

    def count_messages(self, **query: Unpack[MessageCount]) -> tuple[Bucket, ...]:
        """Return the number of messages that were received in each bucket of time, including zeros.

        Raises InvalidFilter for too many buckets, or a time that is not valid.
        """
        return _buckets(self.calls.call_apart(request("count_messages", m.CountMessages, query, MessageCount)))

    def count_attempts(self, **query: Unpack[AttemptCount]) -> tuple[Bucket, ...]:
        """Return the number of attempts that ended in each bucket of time; otherwise as :meth:`count_messages`."""
        return _buckets(self.calls.call_apart(request("count_attempts", m.CountAttempts, query, AttemptCount)))

    # ------------------------------------------------------------ failures
    def list_failures(self, **query: Unpack[FailureList]) -> m.FailurePage:
        """Return a page of failures, ordered by the time of failure; by default, newest first.

        A page may have fewer than its limit if the search takes long; ``next`` is None only on the last page.

        Raises:
            LimitOutOfRange, InvalidFilter, SelectorError: an argument is not valid.
            CursorError: the cursor is not valid for this page; there is a class for each reason.
        """
        return self.calls.call_apart(request("list_failures", m.ListFailures, query, FailureList))

    def iter_failures(self, **query: Unpack[FailureList]) -> Generator[FailureInfo, None, None]:
        """Iterate over the failures of the query's page and of all further pages."""
        yield from _items(self.list_failures, query)

    def group_failures(
        self, by: Iterable[str], *, bucket_seconds: float = 0, **query: Unpack[FailureFilters]
    ) -> m.FailureGroups:
        """Return counts of failures with their first and last times, the largest first.

        Args:
            by: any of task, exception, queue, reason, worker.
            bucket_seconds: the length of the buckets of time in which each group is also counted; 0 means none. There
                are at most 1,000 buckets from ``gte`` on. ``over_time`` of a group has the count of each bucket by its
                start, in ms since the epoch; buckets without failures are omitted.

        Returns:
            The ``groups``, at most 1,000. Only the newest 500,000 failures are counted. ``complete`` is False if there
            are more failures or groups.
        """
        fields = {"by": texts("by", by), "bucket_ms": bucket_ms("bucket_seconds", bucket_seconds)}
        message = request("group_failures", m.GroupFailures, query, FailureFilters, **fields)
        return self.calls.call_apart(message)

    def retry_failures(
        self,
        target: str = "",
        *,
        limit: int = 0,
        progress: Callable[[m.FailuresRetried], object] | None = None,
        **query: Unpack[FailureFilters],
    ) -> m.FailuresRetried:
        """Retry failures, the oldest first; failures that occur during the call are excluded.

        A failed message becomes ready again, with no attempts and the same id. A task whose message was acknowledged is
        published as a new message with the same task id. Each failure is retried once, even if the call is interrupted
        and repeated.

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

    def delete_failures(
        self,
        *,
        limit: int = 0,
        progress: Callable[[m.FailuresDeleted], object] | None = None,
        **query: Unpack[FailureFilters],
    ) -> m.FailuresDeleted:
        """Delete failures; arguments are as in :meth:`retry_failures`. Their attempts stay in the history."""
        step = request("delete_failures", m.DeleteFailures, query, FailureFilters, limit=page_limit("limit", limit))
        return self._in_steps(step, m.FailuresDeleted(0), limit, progress)

    def _in_steps(self, step: FailureQuery[D], done: D, limit: int, progress: Callable[[D], object] | None) -> D:
        """Repeat the request until all is done; each reply has the position of the next step."""
        while True:
            try:
                done = done.plus(self.calls.call_apart(step))
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
            step = replace(step, next=done.next, until_ms=done.until_ms, limit=left)


def _items(list_page: Callable[..., Any], query: Any) -> Generator[Any, None, None]:
    """Iterate over the items of a list, requested page by page."""
    while True:
        page = list_page(**query)
        yield from page.items
        if page.next is None:
            return
        query = query_after(query, page.next)


def query_after(query: Any, next: str, cursor: str = "next") -> Any:
    """Return the query for the page after the one that has this ``next``; ``cursor`` is the argument for it."""
    return {name: value for name, value in query.items() if name != "prev"} | {cursor: next}


def _with_bodies(page: m.AttemptPage) -> m.AttemptPage:
    """Replace the envelopes of a page by their bodies."""
    body_of = bodies_of_page()

    def with_body(attempt: AttemptInfo) -> AttemptInfo:
        event = attempt.event
        if event is None or event.body is None:
            return attempt
        return replace(attempt, event=replace(event, body=body_of(event.body)))

    return m.AttemptPage(page.rid, tuple(map(with_body, page.items)), page.next, page.prev)


def _buckets(answer: m.Counts) -> tuple[Bucket, ...]:
    starts = range(answer.start_ms, answer.start_ms + len(answer.counts) * answer.bucket_ms, answer.bucket_ms)
    return tuple(map(Bucket, starts, answer.counts))
