"""Whether the server that runs this page is ending, which open streams of events must notice by themselves.

uvicorn waits for open responses when it is told to end, and tells an app only when they are closed. Its handler of
SIGTERM is a method of the server, so the server is found there, also that of an app in which this page is mounted.
"""

from __future__ import annotations

import asyncio
import signal

_SLICE_SECONDS = 0.5


def is_ending() -> bool:
    """Whether the server was told to end."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(server, "should_exit", False))


async def pause(seconds: float) -> None:
    """Sleep, but not for long if the server ends."""
    while seconds > 0 and not is_ending():
        await asyncio.sleep(min(seconds, _SLICE_SECONDS))
        seconds -= _SLICE_SECONDS
