"""Results of tasks that coroutines await: all waits for the results of one backend share two threads.

The broker pushes results to the backend's connection. While a coroutine waits, one thread receives them
(:meth:`.ResultClient.drain`). The other thread sends the requests for new results, which may have to wait for a
connection.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from celery.result import AsyncResult, EagerResult, ResultSet

from ..errors import OpenDataError, RequestError
from ..transport.amqp_errors import translate
from .backend import OpenDataBackend

#: seconds after which the receiving thread notices that its last caller was cancelled
_DRAIN_SECONDS = 1.0


class AwaitableResult:
    """Result of a task, a chain, a group or a chord; ``await result`` is :meth:`get` without a timeout.

    Attributes:
        celery_result: the AsyncResult or GroupResult of Celery, whose calls block. Any result of an app with the
            backend of this package can be given to the constructor.
    """

    __slots__ = ("celery_result",)
    celery_result: Any

    def __init__(self, celery_result: Any) -> None:
        self.celery_result = celery_result

    def __repr__(self) -> str:
        return f"AwaitableResult({self.celery_result!r})"

    @property
    def id(self) -> str:
        """Id of the task, or of the group."""
        return str(self.celery_result.id)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.get().__await__()

    async def get(self, timeout: float | None = None, *, propagate: bool = True) -> Any:  # noqa: ASYNC109
        """Return the value of the task, or the list of values of the group, as soon as the broker has it.

        Args:
            timeout: seconds to wait.
            propagate: raise the exception of a failed task; otherwise return it.

        Raises:
            TimeoutError: the task has not ended in time; it continues.
            RequestError: the app has another result backend.
            ConnectionLost: the broker is unreachable.
        """
        async with asyncio.timeout(timeout):
            ready = await _ready(list(_tasks_of(self.celery_result)))
        return _value(self.celery_result, propagate, ready)


def _tasks_of(result: Any) -> Iterator[AsyncResult]:
    """Iterate over the tasks whose results are stored and not known yet."""
    if isinstance(result, ResultSet):
        for member in result.results:
            yield from _tasks_of(member)
    elif not isinstance(result, EagerResult) and not result.ignored and not result.on_ready.ready:
        yield result


def _value(result: Any, propagate: bool, ready: dict[str, AsyncResult]) -> Any:
    if isinstance(result, ResultSet):
        return [_value(member, propagate, ready) for member in result.results]
    if result.ignored:
        return None
    return ready.get(result.id, result).maybe_throw(propagate=propagate)


async def _ready(tasks: list[AsyncResult]) -> dict[str, AsyncResult]:
    """Wait for the results of these tasks; return them by id."""
    by_backend: defaultdict[Any, list[AsyncResult]] = defaultdict(list)
    for task in tasks:
        by_backend[task.backend].append(task)
    ready: dict[str, AsyncResult] = {}
    for backend, results in by_backend.items():
        if not isinstance(backend, OpenDataBackend):
            raise RequestError(
                f"only results of an opendata:// backend can be awaited, and this one is {type(backend).__name__}: "
                "set result_backend, or call celery_result.get on a thread"
            )
        if (reader := _readers.get(backend)) is None:
            reader = _readers[backend] = ResultReader()
        ready.update((result.id, result) for result in await reader.wait(backend, results))
    return ready


class ResultReader:
    """Threads that wait for the results of one backend.

    All waits for a task share the AsyncResult of the first: before Celery 5.7, a backend passes a result to only one.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(2, "opendata-results")
        self._lock = threading.Lock()
        self._waits: set[ResultWait] = set()
        self._watched: dict[str, AsyncResult] = {}
        self._waits_by_id: Counter[str] = Counter()  # of the task
        self._is_draining = False

    async def wait(self, backend: OpenDataBackend, results: list[AsyncResult]) -> list[AsyncResult]:
        """Wait until the backend has passed on the results of these tasks; return them, maybe as other objects."""
        loop = asyncio.get_running_loop()
        with self._lock:
            results = [self._watched.setdefault(result.id, result) for result in results]
            self._waits_by_id.update(result.id for result in results)
            wait = ResultWait(self, results, loop)
            self._waits.add(wait)
            is_draining, self._is_draining = self._is_draining, True
        if not is_draining:
            self._threads.submit(self._drain, backend)
        try:
            await loop.run_in_executor(self._threads, wait.watch)
            await wait.done
        finally:
            wait.done.cancel()
            self.forget(wait)
            self._unwatch(backend, results)
        return results

    def _unwatch(self, backend: OpenDataBackend, results: list[AsyncResult]) -> None:
        """Stop watching those of a wait's results that have not arrived and that no other wait needs."""
        with self._lock:
            self._waits_by_id.subtract(result.id for result in results)
            for result in results:
                if not self._waits_by_id[result.id]:
                    del self._waits_by_id[result.id]
                    self._watched.pop(result.id, None)
                    if not result.on_ready.ready:
                        backend.remove_pending_result(result)

    def forget(self, wait: ResultWait) -> None:
        """End a wait."""
        with self._lock:
            self._waits.discard(wait)

    def _drain(self, backend: OpenDataBackend) -> None:
        while True:
            with self._lock:
                self._is_draining = bool(self._waits)
                if not self._is_draining:
                    return
            try:
                with suppress(TimeoutError):
                    backend.result_consumer.drain_events(timeout=_DRAIN_SECONDS)
            except Exception as exc:
                error = translate(exc) if isinstance(exc, OpenDataError) else exc
                with self._lock:
                    failed, self._waits = self._waits, set()
                for wait in failed:
                    wait.fail(error)


class ResultWait:
    """One caller's wait.

    Attributes:
        done: is set on the caller's event loop.
    """

    def __init__(self, reader: ResultReader, results: list[AsyncResult], loop: asyncio.AbstractEventLoop) -> None:
        self.done: asyncio.Future[None] = loop.create_future()
        self._reader = reader
        self._results = results
        self._loop = loop
        self._missing = set(range(len(results)))
        self._lock = threading.Lock()

    def watch(self) -> None:
        """Request the results from the broker."""
        for number, result in enumerate(self._results):
            if self.done.cancelled():  # an unreachable broker may have delayed the request for the result before
                return
            result.then(partial(self._arrived, number))
            if result.on_ready.ready:  # another thread may have set it while the callback was added
                self._arrived(number)

    def _arrived(self, number: int, *_result: Any) -> None:
        with self._lock:
            if number not in self._missing:
                return
            self._missing.discard(number)
            if self._missing:
                return
        self._reader.forget(self)
        self._in_loop(self._set, None)

    def fail(self, error: Exception) -> None:
        """End the wait with an error."""
        self._in_loop(self._set, error)

    def _set(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)

    def _in_loop(self, function: Any, argument: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, argument)


_readers: WeakKeyDictionary[OpenDataBackend, ResultReader] = WeakKeyDictionary()

os.register_at_fork(after_in_child=_readers.clear)
