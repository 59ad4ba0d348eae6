"""Requests of threads to the event loop: scrapes and probes wait for its reply, up to a deadline."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: how long the loop may take to reply; Prometheus itself gives up after 10 s
ANSWER_SECONDS = 8.0
#: how long a reply is reused
FRESH_SECONDS = 1.0


class Unanswered(Exception):
    """The loop did not reply in time, or is closed."""


def ask(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
    """Run a coroutine in a loop of another thread, and wait for its result.

    Args:
        seconds: how long to wait; None means :data:`ANSWER_SECONDS`.

    Raises:
        Unanswered: the loop did not reply in time, or is closed.
    """
    limit = ANSWER_SECONDS if seconds is None else seconds
    try:
        future = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError as exc:
        work.close()
        raise Unanswered("the broker has stopped") from exc
    try:
        return future.result(limit)
    except CancelledError as exc:
        raise Unanswered("the broker stops") from exc
    except FutureTimeout as exc:
        future.cancel()
        raise Unanswered(f"the broker did not answer within {limit:g} s") from exc


class Fresh(Generic[T]):
    """A value that is reused for a second, so that many callers cost no more than one; for any thread."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: tuple[T, float] | None = None

    def get(self) -> T:
        """Return the last value if it is fresh, else a new one."""
        with self._lock:
            if self._made is None or time.monotonic() - self._made[1] >= FRESH_SECONDS:
                self._made = (self._make(), time.monotonic())
            return self._made[0]
