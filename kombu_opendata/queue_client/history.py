"""Calls that list messages and attempts of the history, and count both by time."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Unpack

from msgspec.structs import replace

from ..protocol import messages as m
from ..protocol.messages.history_messages import AttemptInfo, MessageInfo
from .base import Base
from .message_models import bodies_of_page
from .queries import AttemptCount, AttemptQuery, MessageCount, MessageQuery, request


@dataclass(frozen=True, slots=True)
class Bucket:
    """Count of one period."""

    start_ms: int
    count: int


class History(Base):
    """Calls about the history; :mod:`kombu_opendata.queue_client.queries` describes their arguments.

    Each call uses a separate connection, because a long list may take some time.
    """

    def list_messages(self, **query: Unpack[MessageQuery]) -> m.MessagePage:
        """Return a page of the stored messages, ordered by the time of their receipt; by default, newest first.

        Raises:
            LimitOutOfRange, InvalidFilter: an argument is not valid.
            CursorError: the cursor is not valid for this page; there is a class for each reason.
        """
        answer: m.MessagePage = self.calls.call_apart(request("list_messages", m.ListMessages, query, MessageQuery))
        return answer

    def list_attempts(self, **query: Unpack[AttemptQuery]) -> m.AttemptPage:
        """Return a page of the finished attempts, ordered by the time of their ends.

        Otherwise as :meth:`list_messages`.

        Attempts are kept for some time after their messages are collected. With ``bodies=True``, each has the body of
        its message if that is still stored; a page then ends early at 4 MiB. Bodies that would become larger are
        returned as bytes.
        """
        return _with_bodies(self.calls.call_apart(request("list_attempts", m.ListAttempts, query, AttemptQuery)))

    def iter_messages(self, **query: Unpack[MessageQuery]) -> Generator[MessageInfo, None, None]:
        """Iterate over all messages from a page on, requested page by page."""
        while True:
            page = self.list_messages(**query)
            yield from page.items
            if page.next is None:
                return
            query = {**query, "next": page.next, "prev": None}

    def iter_attempts(self, **query: Unpack[AttemptQuery]) -> Generator[AttemptInfo, None, None]:
        """Iterate over all attempts from a page on, requested page by page."""
        while True:
            page = self.list_attempts(**query)
            yield from page.items
            if page.next is None:
                return
            query = {**query, "next": page.next, "prev": None}

    def retrieve_message(self, id: int) -> MessageInfo | None:
        """Return a message's metadata and its state in each queue; None if it is not stored (any more)."""
        answer: m.MessagePage = self.calls.call_apart(m.RetrieveMessage(0, id))
        return next(iter(answer.items), None)

    def retrieve_attempt(self, id: str, *, bodies: bool = False) -> AttemptInfo | None:
        """Return an attempt by its id from a list, optionally with its message's body; None if it no longer exists.

        Raises:
            RequestError: it is not the id of an attempt.
        """
        return next(iter(_with_bodies(self.calls.call_apart(m.RetrieveAttempt(0, id, bodies))).items), None)

    def count_messages(self, **query: Unpack[MessageCount]) -> tuple[Bucket, ...]:
        """Return the number of stored messages that were received in each bucket of time, including zeros.

        Raises:
            InvalidFilter: there are too many buckets, or a time is not valid.
        """
        return _buckets(self.calls.call_apart(request("count_messages", m.CountMessages, query, MessageCount)))

    def count_attempts(self, **query: Unpack[AttemptCount]) -> tuple[Bucket, ...]:
        """Return the number of attempts that ended in each bucket of time; otherwise as :meth:`count_messages`."""
        return _buckets(self.calls.call_apart(request("count_attempts", m.CountAttempts, query, AttemptCount)))


def _with_bodies(page: m.AttemptPage) -> m.AttemptPage:
    """Replace the envelopes of a page by their bodies."""
    body_of = bodies_of_page()

    def opened(attempt: AttemptInfo) -> AttemptInfo:
        event = attempt.event
        if event is None or event.body is None:
            return attempt
        return replace(attempt, event=replace(event, body=body_of(event.body)))

    return m.AttemptPage(page.rid, tuple(map(opened, page.items)), page.next, page.prev)


def _buckets(answer: m.Counts) -> tuple[Bucket, ...]:
    starts = range(answer.start_ms, answer.start_ms + len(answer.counts) * answer.bucket_ms, answer.bucket_ms)
    return tuple(map(Bucket, starts, answer.counts))
