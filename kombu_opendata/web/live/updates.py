"""Server-sent events: the changing part of a view, sent when it has changed.

An event without a name has HTML that replaces the changing part. The event ``current`` has the age of the data in
seconds; it is also sent if nothing has changed. The event ``away`` has a text that is shown above the changing part,
which stays; the next event ``current`` removes the text.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable

from ...errors import OpenDataError
from .ending import is_ending
from .pace import UpdatePace

#: a broker that has not answered for this time is unavailable
AWAY_SECONDS = 5.0
#: after this number of identical events the part is sent again, in case the browser lost it
_AGAIN = 15
#: the line separators of an event
_LINE_END = re.compile("\r\n|\r|\n")


async def updates(
    render: Callable[[], Awaitable[tuple[str, float]]],
    told: Callable[[OpenDataError], str],
    every_seconds: float,
    pace: UpdatePace,
) -> AsyncIterator[str]:
    """Yield events until the client disconnects or the server shuts down.

    Args:
        render: returns the changing part and its age in seconds.
        told: makes the event of an error.
        every_seconds: the interval while the server is not busy.
        pace: the pace of all open views.
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
                now = told(exc)
                pace.broker_was_away()
        unchanged = unchanged + 1 if now == previous else 0
        yield (current or now) if unchanged % _AGAIN else now + current
        previous = now
        await pace.rest(every_seconds, late)


def away(text: str) -> str:
    """Return the event with the reason why the broker does not answer."""
    return event(" ".join(text.split()), "away")


def event(text: str, name: str = "") -> str:
    """Return one event."""
    lines = "".join(f"data: {line}\n" for line in _LINE_END.split(text))
    return (f"event: {name}\n" if name else "") + lines + "\n"
