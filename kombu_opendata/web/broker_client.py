"""Client of the web UI: calls have short timeouts, and fail immediately while the broker is unavailable."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from functools import partial
from typing import TypeVar

from ..client.connection_options import Options
from ..errors import ConnectionLost
from ..queue_client import AsyncQueueClient, QueueClient

T = TypeVar("T")
CONNECT_SECONDS = 3.0
CALL_SECONDS = 10.0
#: interval at which a long query checks that the broker is available
CHECK_SECONDS = 1.0
QUERIES = frozenset((
    "list_messages", "list_attempts", "retrieve_message", "retrieve_attempt", "count_attempts", "count_messages",
    "list_failures", "group_failures", "task",
))  # fmt: skip
#: duration after a failure for which calls fail immediately
AWAY_SECONDS = 1.0


class PageClient(AsyncQueueClient):
    """Client for requests of browsers, whose users wait for the response: each call ends with a result or an error.

    Attributes:
        used_at: the time of the last call; open views and jobs make calls, too.
    """

    def __init__(self, url: str, options: Options) -> None:
        seconds = min(options.connect_timeout, CONNECT_SECONDS)
        bounded = replace(
            options, name="opendata-queue web", connect_timeout=seconds, reconnect_timeout=0.0, close_timeout=1.0
        )
        super().__init__(url, **{option.name: getattr(bounded, option.name) for option in fields(bounded)})
        self.used_at = 0.0
        self._away_until = 0.0
        self._fault: ConnectionLost | None = None

    async def perform(
        self,
        name: str,
        threads: ThreadPoolExecutor,
        call: Callable[[QueueClient], T],
        undo: Callable[[QueueClient, T], object] | None = None,
    ) -> T:
        """Make a call, as in the base class.

        A query is cancelled when the broker becomes unavailable; a long call that changes something continues.

        Raises:
            ConnectionLost: the broker is unavailable, or does not answer.
        """
        perform = partial(super().perform, name, threads, call, undo)
        if threads is self.threads:
            return await self._bounded(perform)
        if name not in QUERIES:
            return await perform()
        self._began()
        apart = asyncio.ensure_future(perform())
        try:
            while not (await asyncio.wait({apart}, timeout=CHECK_SECONDS))[0]:
                await self.whoami()
            return apart.result()
        finally:
            apart.cancel()

    async def _bounded(self, perform: Callable[[], Awaitable[T]]) -> T:
        now = self._began()
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await perform()
        except TimeoutError:
            text = f"the broker has not answered for {CALL_SECONDS:g} s"
            self._away_until = now() + AWAY_SECONDS
            self._fault = ConnectionLost(text)
            raise self._fault from None
        except ConnectionLost as exc:
            self._away_until = now() + AWAY_SECONDS
            self._fault = exc
            if folder := exc.values.get("folder"):
                text = f"No broker runs for {folder}: start it with 'opendata-queue broker start {shlex.quote(folder)}'"
                self._fault = ConnectionLost(f"{text}, or the web UI with --start.", folder=folder)
            raise self._fault from exc

    def _began(self) -> Callable[[], float]:
        """Record the time of a call and return the clock."""
        now = self.blocking.connections.clock.monotonic
        self.used_at = now()
        if self._fault is not None and now() < self._away_until:
            raise ConnectionLost(self._fault.text, **self._fault.values)
        return now
