"""Slow turns of the event loop: steps that took over 5 ms, by their cause, for the log and the metrics.

Clients wait while a step of the loop runs. A step is the handling of a client's requests, a delivery turn, or the run
of a task until it waits again. The broker measures the first two where they begin and end, and tasks by their factory
(:meth:`SlowTurns.create_task`); a measurement is two reads of the loop's clock. The time includes waits for the disk,
for the interpreter's lock, and for a core on a busy machine. A step with a garbage collection that took most of it
counts for that.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Coroutine, Generator
from types import CodeType
from typing import Any

log = logging.getLogger(__name__)

SLOW_SECONDS = 0.005
#: interval between two lines in the log
_LOG_SECONDS = 10.0
#: different causes; further ones count as others
_MAX_CAUSES = 50
_OTHERS = "others"

REQUESTS, DELIVERY, COMMIT, COLLECTION = "requests", "delivery", "commit", "garbage collection"


class SlowTurns:
    """The slow steps of one event loop.

    Attributes:
        counts, seconds: the number of slow steps since startup, and their duration, by cause.
        time: the loop's clock.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.time = loop.time
        self.counts: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self._logged_at, self._logged_count = loop.time(), 0
        self._longest: tuple[float, str] = (0.0, "")
        self._collection_began = self._collected_at = self._collection_seconds = 0.0

    def end_step(self, start: float, cause: str, where: str = "") -> None:
        """Count the step that began at ``start``, if it was slow."""
        end = self.time()
        seconds = end - start
        if seconds < SLOW_SECONDS:
            return
        if self._collected_at >= start and 2 * self._collection_seconds > seconds:
            cause, where = COLLECTION, cause
        if cause not in self.counts and len(self.counts) >= _MAX_CAUSES:
            cause, where = _OTHERS, cause
        self.counts[cause] = self.counts.get(cause, 0) + 1
        self.seconds[cause] = self.seconds.get(cause, 0.0) + seconds
        if seconds > self._longest[0]:
            self._longest = seconds, f"{cause} ({where})" if where else cause

    def tick(self) -> None:
        """Log the slow steps of the last seconds, if there were any. Called regularly."""
        now, count = self.time(), sum(self.counts.values())
        if now - self._logged_at < _LOG_SECONDS or count == self._logged_count:
            return
        seconds, cause = self._longest
        text = "%d steps of the event loop took over %.0f ms in %.0f s; the longest took %.0f ms: %s"
        times = 1000 * SLOW_SECONDS, now - self._logged_at, 1000 * seconds
        log.info(text, count - self._logged_count, *times, cause)
        self._logged_at, self._logged_count, self._longest = now, count, (0.0, "")

    # ------------------------------------------------------------------ tasks and collections
    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure the tasks of the loop that are created from now on, and the interpreter's garbage collections."""
        loop.set_task_factory(self.create_task)
        gc.callbacks.append(self._collecting)

    def unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.set_task_factory(None)
        gc.callbacks.remove(self._collecting)

    def create_task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        """Create a task whose steps are measured: a task factory."""
        if isinstance(work, Coroutine):
            work = _MeasuredCoroutine(work, self)
        return asyncio.Task(work, loop=loop, **options)

    def _collecting(self, phase: str, _info: dict[str, int]) -> None:
        now = self.time()
        if phase == "start":
            self._collection_began = now
        else:
            self._collected_at, self._collection_seconds = now, now - self._collection_began


class _MeasuredCoroutine(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are measured."""

    __slots__ = ("__name__", "__qualname__", "_slow_turns", "_work")

    def __init__(self, work: Any, slow_turns: SlowTurns) -> None:
        self._work, self._slow_turns = work, slow_turns
        self.__qualname__ = self.__name__ = getattr(work, "__qualname__", type(work).__name__)

    def send(self, value: Any) -> Any:
        start = self._slow_turns.time()
        try:
            return self._work.send(value)
        finally:
            self._end(start)

    def throw(self, *exc: Any) -> Any:
        start = self._slow_turns.time()
        try:
            return self._work.throw(*exc)
        finally:
            self._end(start)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()  # type: ignore[no-any-return]

    def _end(self, start: float) -> None:
        if self._slow_turns.time() - start >= SLOW_SECONDS:
            self._slow_turns.end_step(start, self.__qualname__, _place(self._work))


def _place(work: Any) -> str:
    """Return the place at which a coroutine waits now, after the slow step; empty if it has ended."""
    place = ""
    while (code := getattr(work, "cr_code", None)) is not None and work.cr_frame is not None:
        assert isinstance(code, CodeType)
        place = f"before {code.co_qualname} line {work.cr_frame.f_lineno}"
        work = work.cr_await
    return place
