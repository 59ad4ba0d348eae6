# Made by tools/unasync.py from ../_async/history_queries.py: change that one, then run the script.
"""History: lists of messages and of the attempts to work on them, counts of both by time."""

from __future__ import annotations

from collections.abc import Generator
from typing import Unpack

from ...client.calls import history_queries
from ...client.calls.history_items import AttemptInfo, Bucket, MessageInfo, Page, attempts_of, buckets_of, messages_of
from ...client.calls.history_queries import AttemptCount, AttemptQuery, MessageCount, MessageQuery
from ...protocol.history_messages import RetrieveAttempt, RetrieveMessage
from ..models import body_of
from .base import Base


class History(Base):
    """Calls about what happened; :mod:`kombu_opendata.client.calls.history_queries` describes their arguments.

    Each runs on a connection that nothing else uses meanwhile: a list over much may take its time.
    """

    def list_messages(self, **asked: Unpack[MessageQuery]) -> Page[MessageInfo]:
        """A page of the stored messages, by when the broker received them; newest first, if not asked otherwise.

        Raises:
            LimitOutOfRange, InvalidFilter: what is asked for does not exist.
            CursorError: not a cursor for this page; there is a class for each reason.
        """
        return messages_of(self._calls.call_apart(history_queries.list_messages_request(asked)))

    def list_attempts(self, **asked: Unpack[AttemptQuery]) -> Page[AttemptInfo]:
        """A page of the attempts that ended, by when they did; as :meth:`list_messages`.

        They stay for some time when their messages are collected. With ``bodies=True`` each has its message's body,
        while that is stored; a page ends before its limit where it has more than 4 MiB.
        """
        return attempts_of(self._calls.call_apart(history_queries.list_attempts_request(asked)), body_of)

    def iter_messages(self, **asked: Unpack[MessageQuery]) -> Generator[MessageInfo, None, None]:
        """All messages from a page on, page by page."""
        while True:
            page = self.list_messages(**asked)
            for message in page.items:
                yield message
            if page.next is None:
                return
            asked = {**asked, "next": page.next, "prev": None}

    def iter_attempts(self, **asked: Unpack[AttemptQuery]) -> Generator[AttemptInfo, None, None]:
        """All attempts from a page on, page by page."""
        while True:
            page = self.list_attempts(**asked)
            for attempt in page.items:
                yield attempt
            if page.next is None:
                return
            asked = {**asked, "next": page.next, "prev": None}

    def retrieve_message(self, id: int) -> MessageInfo | None:
        """A message's metadata and what it is in each queue; None if it is not stored (any more)."""
        items = messages_of(self._calls.call_apart(RetrieveMessage(0, id))).items
        return items[0] if items else None

    def retrieve_attempt(self, id: str, *, bodies: bool = False) -> AttemptInfo | None:
        """An attempt by the id that a list shows, with its message's body on request; None if it is there no more.

        Raises:
            RequestError: not an attempt's id.
        """
        items = attempts_of(self._calls.call_apart(RetrieveAttempt(0, id, bodies)), body_of).items
        return items[0] if items else None

    def count_messages(self, **asked: Unpack[MessageCount]) -> tuple[Bucket, ...]:
        """How many of the stored messages were received in each stretch of time, zeros included.

        Raises:
            InvalidFilter: too many buckets, or no time.
        """
        return buckets_of(self._calls.call_apart(history_queries.count_messages_request(asked)))

    def count_attempts(self, **asked: Unpack[AttemptCount]) -> tuple[Bucket, ...]:
        """How many attempts ended in each stretch of time; as :meth:`count_messages`."""
        return buckets_of(self._calls.call_apart(history_queries.count_attempts_request(asked)))
