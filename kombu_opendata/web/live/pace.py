"""The pace of open pages: however many are open, the server has time for requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

from .ending import pause

#: pages that are rendered at a time
AT_ONCE = 4
#: a page that came late rests for so many times as long as it was late, but no longer than so many seconds
_REST, _LONGEST_REST = 4, 60.0


class UpdatePace:
    """Shared by all open pages of a server."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._away_at = float("-inf")

    def broker_was_away(self) -> None:
        """Note that a turn was long because the broker did not answer.

        Pages that wait for a turn now do not wait because the server is busy. They do not rest longer, so that they
        show the broker as soon as it is back.
        """
        self._away_at = monotonic()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[float]:
        """A turn to render; gives the seconds that this had to wait for it on a busy server."""
        began = monotonic()
        async with self._turns:
            yield 0.0 if self._away_at >= began else monotonic() - began

    async def rest(self, seconds: float, late_seconds: float) -> None:
        """Wait until the next update, and longer on a server that is busy: its pages come late, or wake up late."""
        began = monotonic()
        await pause(seconds)
        late = late_seconds + max(monotonic() - began - seconds, 0)
        if late > seconds:
            await pause(min(_REST * late, _LONGEST_REST))
