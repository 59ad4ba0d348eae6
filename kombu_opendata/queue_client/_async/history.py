"""History: what was sent and what became of it, in pages with filters. See :mod:`kombu_opendata.client.history`."""

from __future__ import annotations

from collections.abc import Iterable

from ...client import history
from ...client.history import AttemptInfo, Bucket, Headers, MessageInfo, Page, Time
from .base import AsyncBase


class AsyncHistory(AsyncBase):
    """Calls about the past. Filters that are None do not filter; of one filter any value will do."""

    async def list_messages(
        self,
        *,
        queues: Iterable[str] | None = None,
        statuses: Iterable[str] | None = None,
        headers: Headers | None = None,
        ids: Iterable[int] | None = None,
        gte: Time | None = None,
        lte: Time | None = None,
        gt: Time | None = None,
        lt: Time | None = None,
        order: str = "desc",
        limit: int = 100,
        next: str | None = None,
        prev: str | None = None,
    ) -> Page[MessageInfo]:
        """A page of the stored messages; see :func:`kombu_opendata.client.history.list_messages`."""
        return await self._calls.apply(
            history.list_messages,
            queues=queues, statuses=statuses, headers=headers, ids=ids, gte=gte, lte=lte, gt=gt, lt=lt,
            order=order, limit=limit, next=next, prev=prev,
        )  # fmt: skip

    async def list_attempts(
        self,
        *,
        queues: Iterable[str] | None = None,
        outcomes: Iterable[str] | None = None,
        headers: Headers | None = None,
        message_ids: Iterable[int] | None = None,
        consumers: Iterable[str] | None = None,
        manual: bool | None = None,
        gte: Time | None = None,
        lte: Time | None = None,
        gt: Time | None = None,
        lt: Time | None = None,
        order: str = "desc",
        limit: int = 100,
        next: str | None = None,
        prev: str | None = None,
    ) -> Page[AttemptInfo]:
        """A page of the attempts that ended; see :func:`kombu_opendata.client.history.list_attempts`."""
        return await self._calls.apply(
            history.list_attempts,
            queues=queues, outcomes=outcomes, headers=headers, message_ids=message_ids, consumers=consumers,
            manual=manual, gte=gte, lte=lte, gt=gt, lt=lt, order=order, limit=limit, next=next, prev=prev,
        )  # fmt: skip

    async def retrieve_message(self, id: int) -> MessageInfo | None:
        """A message and what it is in each of its queues; None if it is not stored (any more)."""
        return await self._calls.apply(history.retrieve_message, id)

    async def retrieve_attempt(self, id: str) -> AttemptInfo | None:
        """An attempt by the id that a list shows; None if the log does not have it (any more)."""
        return await self._calls.apply(history.retrieve_attempt, id)

    async def count_messages(
        self,
        *,
        gte: Time,
        lt: Time,
        bucket_seconds: float,
        queues: Iterable[str] | None = None,
        statuses: Iterable[str] | None = None,
        headers: Headers | None = None,
    ) -> tuple[Bucket, ...]:
        """How many messages were received, by time; see :func:`kombu_opendata.client.history.count_messages`."""
        return await self._calls.apply(
            history.count_messages,
            gte=gte, lt=lt, bucket_seconds=bucket_seconds, queues=queues, statuses=statuses, headers=headers,
        )  # fmt: skip

    async def count_attempts(
        self,
        *,
        gte: Time,
        lt: Time,
        bucket_seconds: float,
        queues: Iterable[str] | None = None,
        outcomes: Iterable[str] | None = None,
        headers: Headers | None = None,
        consumers: Iterable[str] | None = None,
        manual: bool | None = None,
    ) -> tuple[Bucket, ...]:
        """How many attempts ended, by time; see :func:`kombu_opendata.client.history.count_attempts`."""
        return await self._calls.apply(
            history.count_attempts,
            gte=gte, lt=lt, bucket_seconds=bucket_seconds, queues=queues, outcomes=outcomes, headers=headers,
            consumers=consumers, manual=manual,
        )  # fmt: skip
