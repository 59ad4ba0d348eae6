"""Pace of live updates: however many views are open, the server has time for requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

from .ending import pause

#: views that are rendered concurrently
AT_ONCE = 4
#: a late view pauses for this multiple of its delay, at most for this number of seconds
_REST, _LONGEST_REST = 4, 60.0


class UpdatePace:
    """Limits of updates, shared by all open views of a server."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._away_at = float("-inf")

    def broker_was_away(self) -> None:
        """Record that a turn was long because the broker did not answer.

        Views that wait for a turn now do not wait because the server is busy. They do not pause longer, so that they
        show the broker as soon as it is available.
        """
        self._away_at = monotonic()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[float]:
        """Wait for a turn to render; yield the seconds waited on a busy server."""
        began = monotonic()
        async with self._turns:
            yield 0.0 if self._away_at >= began else monotonic() - began

    async def rest(self, seconds: float, late_seconds: float) -> None:
        """Wait until the next update, and longer on a busy server, on which updates or this wait are late."""
        began = monotonic()
        await pause(seconds)
        late = late_seconds + max(monotonic() - began - seconds, 0)
        if late > seconds:
            await pause(min(_REST * late, _LONGEST_REST))
