"""A stream of server-sent events: the changing part of a page, whenever it is other than before.

An event without a name has HTML that replaces the changing part. The event ``away`` has a text that is shown above it;
what was there stays, and the next event without a name takes the text away.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable

from ...errors import OpenDataError
from .ending import is_ending
from .pace import Pace

#: a broker that has not answered for so long is away
AWAY_SECONDS = 5.0
#: keeps the connection in use, so that a dead peer is noticed
_SAME = ": same\n\n"
#: after so many events that were the same it is sent again, in case a page lost it
_AGAIN = 15
#: what ends a line of an event
_LINE_END = re.compile("\r\n|\r|\n")


async def updates(
    render: Callable[[], Awaitable[str]], told: Callable[[OpenDataError], str], every_seconds: float, pace: Pace
) -> AsyncIterator[str]:
    """Events until the peer is gone, or the server ends.

    Args:
        render: the changing part.
        told: the event that says what went wrong.
        every_seconds: how often, while the server is not busy.
        pace: of all open pages.
    """
    before, unchanged = "", 0
    while not is_ending():
        async with pace.turn() as late:
            try:
                now = event(await asyncio.wait_for(render(), AWAY_SECONDS))
            except TimeoutError:
                now = away(f"It has not answered for {AWAY_SECONDS:g} s.")
            except OpenDataError as exc:
                now = told(exc)
        unchanged = unchanged + 1 if now == before else 0
        yield _SAME if unchanged % _AGAIN else now
        before = now
        await pace.rest(every_seconds, late)


def away(text: str) -> str:
    """The event that says why the broker does not answer."""
    return event(" ".join(text.split()), "away")


def event(text: str, name: str = "") -> str:
    """One event."""
    lines = "".join(f"data: {line}\n" for line in _LINE_END.split(text))
    return (f"event: {name}\n" if name else "") + lines + "\n"
