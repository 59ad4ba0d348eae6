"""Client of the web UI: calls have short timeouts, and fail immediately while the broker is unavailable."""

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
#: interval at which a long query checks that the broker is available
ASK_SECONDS = 1.0
QUERIES = (
    ListMessages, ListAttempts, RetrieveMessage, RetrieveAttempt, CountAttempts, CountMessages, ListFailures,
    GroupFailures,
)  # fmt: skip
#: duration after a failure for which calls fail immediately
AWAY_SECONDS = 1.0


class BoundedCalls(AsyncCalls):
    """Calls with a timeout: each ends with a result or an error."""

    used_at = 0.0
    _away_until = 0.0
    _fault: ConnectionLost | None = None

    async def call(self, message: Any) -> Any:
        """Call the broker, as in the base class.

        Raises:
            ConnectionLost: the broker is unavailable, or does not answer.
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
                self._fault = ConnectionLost(f"{text}, or the web UI with --start.", folder=folder)
            raise self._fault from exc

    async def call_apart(self, message: Any) -> Any:
        """Make a call that may take long, as in the base class.

        A query is cancelled when the broker becomes unavailable; a call that changes something continues.

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
        """Record the time of a call and return the clock."""
        now = self.clock.monotonic
        self.used_at = now()
        if self._fault is not None and now() < self._away_until:
            raise ConnectionLost(self._fault.text, **self._fault.values)
        return now


class PageClient(AsyncQueueClient):
    """Client for requests of browsers, whose users wait for the response."""

    def __init__(self, url: str, options: Options) -> None:
        seconds = min(options.connect_timeout, CONNECT_SECONDS)
        bounded = replace(
            options, name="opendata-queue web", connect_timeout=seconds, reconnect_timeout=0.0, close_timeout=1.0
        )
        super().__init__(url, **{option.name: getattr(bounded, option.name) for option in fields(bounded)})
        self._calls = self._bounded = BoundedCalls(url, bounded)

    @property
    def used_at(self) -> float:
        """The time of the last call; open views and jobs make calls continuously."""
        return self._bounded.used_at
