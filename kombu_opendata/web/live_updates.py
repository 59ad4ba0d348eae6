"""Server-sent events of open views: the changing part of a view, sent when it has changed.

An event without a name has HTML that replaces the changing part. The event ``current`` has the age of the data in
seconds; it is also sent if nothing has changed. The event ``away`` has a text that is shown above the changing part,
which stays; the next event ``current`` removes the text.

Many open views do not keep the server from handling requests: only a few views are rendered concurrently, and views
whose updates are late pause longer.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic

from fastapi.sse import format_sse_event

from ..errors import OpenDataError

#: a broker that has not answered for this time is unavailable
AWAY_SECONDS = 5.0
#: views that are rendered concurrently
AT_ONCE = 4
#: after this number of identical events the part is sent again, in case the browser lost it
_AGAIN = 15
#: a late view pauses for this multiple of its delay, at most for this number of seconds
_REST, _LONGEST_REST = 4, 60.0
#: interval at which a pause checks for the server's shutdown
_SLICE_SECONDS = 0.5


async def updates(
    render: Callable[[], Awaitable[tuple[str, float]]],
    error_event: Callable[[OpenDataError], str],
    every_seconds: float,
    pace: UpdatePace,
) -> AsyncIterator[str]:
    """Yield events until the client disconnects or the server shuts down.

    ``render`` returns the changing part and its age in seconds, at this interval while the server is not busy.
    """
    previous, unchanged = "", 0
    while not is_ending():
        current = ""
        async with pace.turn() as late:
            try:
                content, age = await asyncio.wait_for(render(), AWAY_SECONDS)
                now, current = event(content), event(f"{age:.1f}", "current")
            except TimeoutError:
                now = away(f"It has not answered for {AWAY_SECONDS:g} s.")
                pace.broker_was_away()
            except OpenDataError as exc:
                now = error_event(exc)
                pace.broker_was_away()
        unchanged = unchanged + 1 if now == previous else 0
        yield (current or now) if unchanged % _AGAIN else now + current
        previous = now
        await pace.rest(every_seconds, late)


def away(text: str) -> str:
    """Return the event with the reason why the broker does not answer."""
    return event(" ".join(text.split()), "away")


def event(text: str, name: str | None = None) -> str:
    """Return one event."""
    return format_sse_event(data_str=text, event=name).decode()


def is_ending() -> bool:
    """Return True if the server is shutting down.

    At shutdown uvicorn waits for open responses, and notifies an app only when they are closed. The handler of SIGTERM
    is a method of the server, so the function finds the server by it, also if the web UI is mounted in another app.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(server, "should_exit", False))


async def pause(seconds: float) -> None:
    """Sleep for some seconds; return early if the server shuts down."""
    while seconds > 0 and not is_ending():
        await asyncio.sleep(min(seconds, _SLICE_SECONDS))
        seconds -= _SLICE_SECONDS


class UpdatePace:
    """Limits of updates, shared by all open views of a server."""

    def __init__(self, pause: Callable[[float], Awaitable[None]] = pause, now: Callable[[], float] = monotonic) -> None:
        self._pause = pause
        self._now = now
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._away_at = float("-inf")

    def broker_was_away(self) -> None:
        """Record that a turn was long because the broker did not answer.

        Views that wait for a turn at this time wait for the broker, and not because the server is busy. Therefore their
        pauses are not longer, so that they show the broker as soon as it is available.
        """
        self._away_at = self._now()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[float]:
        """Wait for a turn to render; yield the seconds waited on a busy server."""
        began = self._now()
        async with self._turns:
            yield 0.0 if self._away_at >= began else self._now() - began

    async def rest(self, seconds: float, late_seconds: float) -> None:
        """Wait until the next update; wait longer on a busy server, where updates or this wait are late."""
        began = self._now()
        await self._pause(seconds)
        late = late_seconds + max(self._now() - began - seconds, 0)
        if late > seconds:
            await self._pause(min(_REST * late, _LONGEST_REST))
