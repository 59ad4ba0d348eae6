"""The clients of the broker, and what they were told a moment ago."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import fields
from time import monotonic
from typing import Any, TypeVar, cast

from ..queue_client import AsyncQueueClient
from ..queue_client.queue_models import AllMetrics
from ..url import parse
from .settings import WebSettings

T = TypeVar("T")


class Broker:
    """The broker as one user sees it: a client, and answers that all open pages of this user share.

    Attributes:
        expects_standby: whether it should have a standby: there was one, or the URL names more than one broker.
        lease_counts: when counters were noted, and how many leases had expired in each queue.
        metrics: the figures of all queues, as the broker told them last.
    """

    def __init__(self, client: AsyncQueueClient, *, expects_standby: bool = False) -> None:
        self.client = client
        self.expects_standby = expects_standby
        self.lease_counts: deque[tuple[float, dict[str, int]]] = deque()
        self.metrics: AllMetrics | None = None
        self._answers: dict[Hashable, tuple[float, asyncio.Future[Any]]] = {}

    async def recent(self, key: Hashable, seconds: float, ask: Callable[[], Awaitable[T]]) -> T:
        """An answer that is at most so old. Who asks while another asks the same gets the same answer."""
        now = monotonic()
        at, future = self._answers.get(key, (0.0, None))
        if future is None or (future.done() and now - at > seconds):
            future = asyncio.ensure_future(ask())
            future.add_done_callback(_retrieved)
            self._answers = {name: one for name, one in self._answers.items() if now - one[0] < 60}
            self._answers[key] = (now, future)
        try:
            return cast(T, await asyncio.shield(future))
        except Exception:
            self._answers.pop(key, None)
            raise

    async def close(self) -> None:
        """End the connections."""
        await self.client.close()


def _retrieved(future: asyncio.Future[Any]) -> None:
    """An error is told to whoever waits; it is no mistake if nobody does any more."""
    if not future.cancelled():
        future.exception()


class Brokers:
    """The broker as each user sees it."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._by_user: dict[str, Broker] = {}

    def of(self, user: str) -> Broker:
        """The broker as this user sees it. It is connected when it is first asked."""
        if user not in self._by_user:
            options = {one.name: getattr(self._settings.options, one.name) for one in fields(self._settings.options)}
            options |= {"name": "opendata-queue web"}
            several = bool(parse(self._settings.url).others)
            self._by_user[user] = Broker(AsyncQueueClient(self._settings.url, **options), expects_standby=several)
        return self._by_user[user]

    async def close(self) -> None:
        """End all connections."""
        for broker in self._by_user.values():
            await broker.close()
        self._by_user.clear()
