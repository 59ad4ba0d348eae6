"""The page's client: no call waits long, and while the broker is away, calls fail at once."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from ..client.connection_options import Options
from ..errors import ConnectionLost
from ..protocol.messages import WhoAmI
from ..protocol.messages.failure_messages import GroupFailures, ListFailures
from ..protocol.messages.history_messages import (
    CountAttempts,
    CountMessages,
    ListAttempts,
    ListMessages,
    RetrieveAttempt,
    RetrieveMessage,
)
from ..queue_client import AsyncQueueClient
from ..queue_client.async_calls import AsyncCalls

CONNECT_SECONDS = 3.0
CALL_SECONDS = 10.0
#: a query that takes longer asks so often whether the broker is there
ASK_SECONDS = 1.0
QUERIES = (
    ListMessages, ListAttempts, RetrieveMessage, RetrieveAttempt, CountAttempts, CountMessages, ListFailures,
    GroupFailures,
)  # fmt: skip
#: after a failure, calls fail at once for so long
AWAY_SECONDS = 1.0


class BoundedCalls(AsyncCalls):
    """Calls that end in time, each with an answer or an error."""

    used_at = 0.0
    _away_until = 0.0
    _fault: ConnectionLost | None = None

    async def call(self, message: Any) -> Any:
        """As the base's.

        Raises:
            ConnectionLost: the broker is away, or does not answer.
        """
        now = self._began()
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await super().call(message)
        except TimeoutError:
            text = f"the broker has not answered for {CALL_SECONDS:g} s"
            self._away_until, self._fault = now() + AWAY_SECONDS, ConnectionLost(text)
            raise self._fault from None
        except ConnectionLost as exc:
            self._away_until, self._fault = now() + AWAY_SECONDS, exc
            if folder := exc.values.get("folder"):
                text = f"No broker runs for {folder}: start it with 'opendata-queue broker start {shlex.quote(folder)}'"
                self._fault = ConnectionLost(f"{text}, or this page with --start.", folder=folder)
            raise self._fault from exc

    async def call_apart(self, message: Any) -> Any:
        """As the base's: it may take long. A query ends when the broker is away; what changes something goes on.

        Raises:
            ConnectionLost: as :meth:`call`.
        """
        if not isinstance(message, QUERIES):
            return await super().call_apart(message)
        self._began()
        apart = asyncio.ensure_future(super().call_apart(message))
        try:
            while not (await asyncio.wait({apart}, timeout=ASK_SECONDS))[0]:
                await self.call(WhoAmI(0))
            return apart.result()
        finally:
            apart.cancel()

    def _began(self) -> Callable[[], float]:
        """Note that a call is made; returns the clock."""
        now = self.clock.monotonic
        self.used_at = now()
        if self._fault is not None and now() < self._away_until:
            raise ConnectionLost(self._fault.text, **self._fault.values)
        return now


class PageClient(AsyncQueueClient):
    """A client for people who wait in front of a page."""

    def __init__(self, url: str, options: Options) -> None:
        seconds = min(options.connect_timeout, CONNECT_SECONDS)
        bounded = replace(
            options, name="opendata-queue web", connect_timeout=seconds, reconnect_timeout=0.0, close_timeout=1.0
        )
        super().__init__(url, **{one.name: getattr(bounded, one.name) for one in fields(bounded)})
        self._calls = self._bounded = BoundedCalls(url, bounded)

    @property
    def used_at(self) -> float:
        """When a call was made last; pages that are open, and jobs, make them again and again."""
        return self._bounded.used_at
