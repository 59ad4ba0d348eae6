"""Detection of the server's shutdown, which open event streams must notice.

At shutdown uvicorn waits for open responses, and notifies an app only when they are closed. Its handler of SIGTERM is a
method of the server, so the server is found there, also that of an app in which the web UI is mounted.
"""

from __future__ import annotations

import asyncio
import signal

_SLICE_SECONDS = 0.5


def is_ending() -> bool:
    """Return True if the server is shutting down."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(server, "should_exit", False))


async def pause(seconds: float) -> None:
    """Sleep for some seconds; return early if the server shuts down."""
    while seconds > 0 and not is_ending():
        await asyncio.sleep(min(seconds, _SLICE_SECONDS))
        seconds -= _SLICE_SECONDS
