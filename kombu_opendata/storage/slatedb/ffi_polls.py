"""Waits for the native futures of the SlateDB binding, without a turn of the event loop if one is ready immediately.

This relies on the generated module of slatedb 0.17, as :mod:`.ffi_native` does, which documents the ownership.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

#: rows that are read without a turn of the event loop; a point read and the start of a scan count as one
_ROWS_AT_ONCE = 4


class Wait:
    """One poll of a native future.

    Attributes:
        code: the code that the callback has reported; negative before that.
        future: the future that the callback wakes, if a task waits.
    """

    __slots__ = ("code", "future")

    def __init__(self) -> None:
        self.code = -1
        self.future: asyncio.Future[None] | None = None


class _LoopWaker:
    """Wake-ups of futures of one event loop from any thread, combined into one wake-up of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # the loop is the key of the weak dictionary that has this object
        self._woken: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    def wake(self, future: asyncio.Future[None]) -> None:
        self._woken.append(future)
        if not self._is_scheduled:
            self._is_scheduled = True
            loop = self._loop()
            try:
                if loop is not None:
                    loop.call_soon_threadsafe(self._wake_all)
            except RuntimeError:  # the loop is closed: no task waits
                self._woken.clear()

    def _wake_all(self) -> None:
        # First: a future that is appended from here on is woken by the loop below or by another call.
        self._is_scheduled = False
        woken = self._woken
        while woken:
            future = woken.popleft()
            if not future.done():
                future.set_result(None)


class Polls:
    """Polls of native futures until they are ready.

    A future runs in the thread that polls it. If all data is cached, the first poll makes it ready and calls back from
    within; the generated module would take a turn of the event loop even then. Otherwise a thread of the runtime calls
    back, and the future must be polled again.
    """

    def __init__(self, generated: Any) -> None:
        self._ready_code = generated._UNIFFI_RUST_FUTURE_POLL_READY
        self._waits: dict[int, Wait] = {}
        self._numbers = itertools.count(1)
        self._wakers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopWaker] = weakref.WeakKeyDictionary()
        self._callback = generated._UNIFFI_RUST_FUTURE_CONTINUATION_CALLBACK(self._polled)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-read")
        self._since_turn = 0  # rows read since the last turn of the event loop

    async def ready(
        self, future: int, poll: Any, rows: int, *, in_thread: bool = False
    ) -> asyncio.CancelledError | None:
        """Wait until the native future is ready. Other tasks get turns, even if each future is ready immediately.

        Args:
            rows: the approximate number of rows of the future.
            in_thread: poll it in a thread.

        Returns:
            The cancellation, if the caller was cancelled while a thread made the future ready. The caller must take the
            result, which frees it, and then raise the cancellation.
        """
        await self.turn(rows)
        while True:
            cancelled = None
            if in_thread:
                loop = asyncio.get_running_loop()
                job = loop.run_in_executor(self._thread, self.begin, future, poll)
                cancelled = await _wait_for_thread(job)
                wait = job.result()
            else:
                wait = self.begin(future, poll)
            if self.is_ready(wait):
                return cancelled
            if cancelled is not None:
                raise cancelled
            if wait.code < 0:
                await self.any_woken((wait,))

    async def turn(self, rows: int) -> None:
        """Yield to other tasks, if many rows were read since the last turn."""
        self._since_turn += rows
        if self._since_turn > _ROWS_AT_ONCE:
            self._since_turn = 0
            await asyncio.sleep(0)

    def begin(self, future: int, poll: Any) -> Wait:
        """Poll once. The code is negative until the callback reports the state of the future."""
        number, wait = next(self._numbers), Wait()
        self._waits[number] = wait
        poll(future, self._callback, number)
        return wait

    def is_ready(self, wait: Wait) -> bool:
        return bool(wait.code == self._ready_code)

    async def any_woken(self, waits: Sequence[Wait]) -> None:
        """Wait until one of these futures must be polled again."""
        loop = asyncio.get_running_loop()
        if loop not in self._wakers:
            self._wakers[loop] = _LoopWaker(loop)
        future = loop.create_future()
        for wait in waits:
            wait.future = future
        if all(wait.code < 0 for wait in waits):  # the callback sets the code before it reads the future
            await future

    def _polled(self, number: int, code: int) -> None:
        wait = self._waits.pop(number)
        wait.code = code
        future = wait.future
        if future is not None:
            self._wakers[future.get_loop()].wake(future)


async def _wait_for_thread(job: asyncio.Future[Wait]) -> asyncio.CancelledError | None:
    """Wait for the thread even if cancelled, as it uses memory that the caller then frees; return the cancellation."""
    cancelled: asyncio.CancelledError | None = None
    while not job.done():
        try:
            await asyncio.shield(job)
        except asyncio.CancelledError as exc:
            cancelled = exc
    job.result()
    return cancelled
