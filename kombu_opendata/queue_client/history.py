"""Calls that list messages and attempts of the history, and count both by time."""

from __future__ import annotations

from collections.abc import Generator
from typing import Unpack

from ..client.calls import history_queries
from ..client.calls.history_queries import (
    AttemptCount,
    AttemptQuery,
    Bucket,
    MessageCount,
    MessageQuery,
    Page,
    attempts_of,
    buckets_of,
    messages_of,
)  # fmt: skip
from ..protocol.messages.history_messages import AttemptInfo, MessageInfo, RetrieveAttempt, RetrieveMessage
from .base import Base
from .message_models import bodies_of_page


class History(Base):
    """Calls about the history; :mod:`kombu_opendata.client.calls.history_queries` describes their arguments.

    Each call uses a separate connection, because a long list may take some time.
    """

    def list_messages(self, **asked: Unpack[MessageQuery]) -> Page[MessageInfo]:
        """Return a page of the stored messages, ordered by the time of their receipt; by default, newest first.

        Raises:
            LimitOutOfRange, InvalidFilter: an argument is not valid.
            CursorError: the cursor is not valid for this page; there is a class for each reason.
        """
        return messages_of(self.calls.call_apart(history_queries.list_messages_request(asked)))

    def list_attempts(self, **asked: Unpack[AttemptQuery]) -> Page[AttemptInfo]:
        """Return a page of the finished attempts, ordered by the time of their ends.

        Otherwise as :meth:`list_messages`.

        Attempts are kept for some time after their messages are collected. With ``bodies=True``, each has the body of
        its message if that is still stored; a page then ends early at 4 MiB. Bodies that would become larger are
        returned as bytes.
        """
        return attempts_of(self.calls.call_apart(history_queries.list_attempts_request(asked)), bodies_of_page())

    def iter_messages(self, **asked: Unpack[MessageQuery]) -> Generator[MessageInfo, None, None]:
        """Iterate over all messages from a page on, requested page by page."""
        while True:
            page = self.list_messages(**asked)
            yield from page.items
            if page.next is None:
                return
            asked = {**asked, "next": page.next, "prev": None}

    def iter_attempts(self, **asked: Unpack[AttemptQuery]) -> Generator[AttemptInfo, None, None]:
        """Iterate over all attempts from a page on, requested page by page."""
        while True:
            page = self.list_attempts(**asked)
            yield from page.items
            if page.next is None:
                return
            asked = {**asked, "next": page.next, "prev": None}

    def retrieve_message(self, id: int) -> MessageInfo | None:
        """Return a message's metadata and its state in each queue; None if it is not stored (any more)."""
        items = messages_of(self.calls.call_apart(RetrieveMessage(0, id))).items
        return items[0] if items else None

    def retrieve_attempt(self, id: str, *, bodies: bool = False) -> AttemptInfo | None:
        """Return an attempt by its id from a list, optionally with its message's body; None if it no longer exists.

        Raises:
            RequestError: it is not the id of an attempt.
        """
        items = attempts_of(self.calls.call_apart(RetrieveAttempt(0, id, bodies)), bodies_of_page()).items
        return items[0] if items else None

    def count_messages(self, **asked: Unpack[MessageCount]) -> tuple[Bucket, ...]:
        """Return the number of stored messages that were received in each bucket of time, including zeros.

        Raises:
            InvalidFilter: there are too many buckets, or a time is not valid.
        """
        return buckets_of(self.calls.call_apart(history_queries.count_messages_request(asked)))

    def count_attempts(self, **asked: Unpack[AttemptCount]) -> tuple[Bucket, ...]:
        """Return the number of attempts that ended in each bucket of time; otherwise as :meth:`count_messages`."""
        return buckets_of(self.calls.call_apart(history_queries.count_attempts_request(asked)))
