"""Client for programs with an event loop, whose calls run on threads.

Each call of :class:`AsyncQueueClient` runs the method of the same name of a :class:`.QueueClient` on one of the
client's threads. The code that resumes connections, publishes exactly once and repeats unconfirmed settlements is long
and subtle, so there is only a blocking version. The switch to a thread costs less than the commit that a call awaits.

=============  ===============================================  ==========
threads        calls                                            limit
=============  ===============================================  ==========
calls          short calls, one after the other                 1
apart          long calls, over separate connections            8
waits          reads that wait for a message                    64
consumes       waits of an iterator over pushed messages        1 each
=============  ===============================================  ==========

A thread can't be interrupted, so a request that was sent before the cancellation of its call is still executed. The
call makes no further request (:class:`.Calls`), its waiting read is interrupted, and leased messages are released.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from ..client.client_clock import SYSTEM, ClientClock
from ..client.job_calls import JobWait
from ..errors import RequestError
from ..protocol.messages import JobInfo
from .checks import Seconds
from .client import QueueClient
from .connections import CLOSED, Subscription
from .history import query_after
from .message_models import Message, MessageState, message_delivered
from .reading import MAX_QUANTITY, State, consumer_arguments

P = ParamSpec("P")
T = TypeVar("T")

#: limit for concurrent waiting reads of one client; further reads wait for a thread
MAX_WAITING = 64
#: limit for concurrent long calls and consumer starts of one client
_MAX_APART = 8

_Method = Callable[Concatenate[QueueClient, P], T]
_AsyncMethod = Callable[Concatenate["AsyncQueueClient", P], Coroutine[Any, Any, T]]


def _short(method: _Method[P, T]) -> _AsyncMethod[P, T]:
    """Return the asynchronous call of a method whose requests the broker answers immediately."""
    return _asynchronous(method, lambda client, _kwargs: client.threads)


def _apart(method: _Method[P, T]) -> _AsyncMethod[P, T]:
    """Return the asynchronous call of a method that may take long."""
    return _asynchronous(method, lambda client, _kwargs: client.apart_threads)


def _read(method: _Method[P, list[Message]], *, waits: bool = False) -> _AsyncMethod[P, list[Message]]:
    """Return the asynchronous call of a read; ``waits`` means that the read waits for a message by default."""
    return _asynchronous(
        method,
        lambda client, kwargs: client.waiting_threads if kwargs.get("max_poll_seconds", waits) else client.threads,
        undo=_release,
    )


def _asynchronous(
    method: _Method[P, T],
    threads: Callable[[AsyncQueueClient, dict[str, Any]], ThreadPoolExecutor],
    undo: Callable[[QueueClient, T], object] | None = None,
) -> _AsyncMethod[P, T]:
    @wraps(method)
    async def call(client: AsyncQueueClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        def call_once(blocking: QueueClient) -> T:
            return method(blocking, *args, **kwargs)

        progress: Any = kwargs.get("progress")
        reports = None if progress is None else _Reports(progress)
        if reports is not None:
            kwargs["progress"] = reports.add
        try:
            result = await client.perform(method.__name__, threads(client, kwargs), call_once, undo)
        except asyncio.CancelledError as exc:
            if reports is not None:
                reports.error = exc
            raise
        if reports is not None and reports.error is not None:
            raise reports.error
        return result

    return call


class _Reports:
    """Reports of a call's progress, which a thread adds, and the event loop passes to the caller's function.

    ``error`` is the exception of that function, or the cancellation of the call; the next report then ends the call.
    """

    def __init__(self, progress: Callable[[Any], object]) -> None:
        self.error: BaseException | None = None
        self._progress = progress
        self._loop = asyncio.get_running_loop()

    def add(self, done: Any) -> None:
        """Pass a report to the event loop."""
        if self.error is not None:
            raise self.error
        self._loop.call_soon_threadsafe(self._pass_on, done)

    def _pass_on(self, done: Any) -> None:
        if self.error is None:
            try:
                self._progress(done)
            except Exception as exc:
                self.error = exc


def _release(client: QueueClient, messages: list[Message]) -> None:
    if messages:
        client.release_many(messages[0].queue, messages)


def _iterated(
    method: _Method[P, Generator[T, None, None]],
    list_page: Callable[..., Coroutine[Any, Any, Any]],
    cursor: str = "next",
) -> Callable[Concatenate[AsyncQueueClient, P], AsyncGenerator[T, None]]:
    """Return the asynchronous iterator over the pages of a list; each page is one call, which can be cancelled.

    Args:
        cursor: the argument of ``list_page`` that has the ``next`` of the page before.
    """

    @wraps(method)
    async def items(client: AsyncQueueClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T, None]:
        query: Any = kwargs
        while True:
            page = await list_page(client, *args, **query)
            for item in page.items:
                yield item
            if page.next is None:
                return
            query = query_after(query, page.next, cursor)

    return items


class AsyncQueueClient:
    """Client of a broker for programs without Celery. Any number of tasks may share a client.

    The calls are those of :class:`.QueueClient`, whose constructor has the same arguments. ``progress`` is called on
    the event loop.
    """

    def __init__(self, url: str, *, name: str = "", clock: ClientClock = SYSTEM, **options: Any) -> None:
        self.blocking = QueueClient(url, name=name, clock=clock, **options)
        self.threads = ThreadPoolExecutor(1, "opendata-calls")
        self.apart_threads = ThreadPoolExecutor(_MAX_APART, "opendata-apart")
        self.waiting_threads = ThreadPoolExecutor(MAX_WAITING, "opendata-waits")
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the sessions. Leases of reads last until their timeouts; messages of iterators return to their queues."""
        if self._is_closed:
            return
        self._is_closed = True
        await on_thread(self.threads, self.blocking.close)
        for threads in (self.threads, self.apart_threads, self.waiting_threads):
            threads.shutdown(wait=False)

    async def perform(
        self,
        name: str,
        threads: ThreadPoolExecutor,
        call: Callable[[QueueClient], T],
        undo: Callable[[QueueClient, T], object] | None = None,
    ) -> T:
        """Run a call of the blocking client on a thread; ``undo`` receives its result if the caller is cancelled."""
        client = self.blocking.cancellable()
        if self._is_closed:
            client.calls.cancel(CLOSED)
            return call(client)
        try:
            return await on_thread(threads, call, client, undo=undo and partial(undo, self.blocking))
        except asyncio.CancelledError:
            client.calls.cancel()
            if client.calls.waiting is not None and not self._is_closed:  # the end of a client ends all reads
                self.threads.submit(self.blocking.connections.stop_waiting, client.calls.waiting)
            raise

    # ------------------------------------------------------------ messages
    send = _short(QueueClient.send)
    send_batch = _short(QueueClient.send_batch)
    send_each_once = _short(QueueClient.send_each_once)
    publish = _short(QueueClient.publish)
    read = _read(QueueClient.read)
    read_with_poll = _read(QueueClient.read_with_poll, waits=True)
    read_grouped = _read(QueueClient.read_grouped)
    pop = _short(QueueClient.pop)
    interrupt = _short(QueueClient.interrupt)
    archive = _short(QueueClient.archive)
    archive_many = _short(QueueClient.archive_many)
    ack = _short(QueueClient.ack)
    delete = _short(QueueClient.delete)
    delete_many = _short(QueueClient.delete_many)
    reject = _short(QueueClient.reject)
    reject_many = _short(QueueClient.reject_many)
    release = _short(QueueClient.release)
    release_many = _short(QueueClient.release_many)
    set_vt = _short(QueueClient.set_vt)
    set_vt_many = _short(QueueClient.set_vt_many)
    extend = _short(QueueClient.extend)
    peek = _short(QueueClient.peek)
    get = _short(QueueClient.get)
    list_by_state = _short(QueueClient.list_by_state)

    async def iter_by_state(self, queue: str, state: State) -> AsyncGenerator[MessageState, None]:
        """Iterate over messages as :meth:`.QueueClient.iter_by_state`."""
        after = None
        while True:
            page = await self.list_by_state(queue, state, limit=MAX_QUANTITY, after=after)
            for message in page.messages:
                yield message
            if page.after is None:
                return
            after = page.after

    async def consume(
        self,
        queue: str,
        *,
        prefetch: int = 10,
        timeout: Seconds | None = None,  # noqa: ASYNC109
    ) -> AsyncGenerator[Message, None]:
        """Iterate over the messages of a queue as :meth:`.QueueClient.consume`."""
        queue, prefetch, seconds = consumer_arguments(queue, prefetch, timeout)
        if self._is_closed:
            raise RequestError(CLOSED)
        subscription = await on_thread(
            self.apart_threads, self.blocking.connections.subscribe, queue, prefetch, undo=Subscription.close
        )
        thread = ThreadPoolExecutor(1, "opendata-consumes")
        try:
            while (
                delivery := await on_thread(thread, subscription.next, seconds, undo=subscription.put_back)
            ) is not None:
                yield message_delivered(delivery, subscription)
        finally:
            if subscription.ended != "closed":
                await on_thread(self.threads, subscription.close)
            thread.shutdown(wait=False)

    # ------------------------------------------------------------ history, failures and tasks
    list_messages = _apart(QueueClient.list_messages)
    iter_messages = _iterated(QueueClient.iter_messages, list_messages)
    retrieve_message = _apart(QueueClient.retrieve_message)
    count_messages = _apart(QueueClient.count_messages)
    list_attempts = _apart(QueueClient.list_attempts)
    iter_attempts = _iterated(QueueClient.iter_attempts, list_attempts)
    retrieve_attempt = _apart(QueueClient.retrieve_attempt)
    count_attempts = _apart(QueueClient.count_attempts)
    list_failures = _apart(QueueClient.list_failures)
    iter_failures = _iterated(QueueClient.iter_failures, list_failures)
    group_failures = _apart(QueueClient.group_failures)
    retry_failures = _apart(QueueClient.retry_failures)
    delete_failures = _apart(QueueClient.delete_failures)
    task = _apart(QueueClient.task)
    task_result = _short(QueueClient.task_result)
    replay = _short(QueueClient.replay)
    stop_replay = _short(QueueClient.stop_replay)
    replay_progress = _short(QueueClient.replay_progress)
    redrive = _apart(QueueClient.redrive)
    move_messages = _apart(QueueClient.move_messages)
    copy_messages = _apart(QueueClient.copy_messages)
    archive_failed = _apart(QueueClient.archive_failed)
    delete_settled = _apart(QueueClient.delete_settled)

    # ------------------------------------------------------------ jobs
    get_job = _short(QueueClient.get_job)
    list_jobs = _short(QueueClient.list_jobs)
    iter_jobs = _iterated(QueueClient.iter_jobs, partial(list_jobs, limit=1000), "after")
    cancel_job = _apart(QueueClient.cancel_job)
    retry_job = _apart(QueueClient.retry_job)
    delete_job = _short(QueueClient.delete_job)

    async def wait_job(
        self,
        job_id: str,
        timeout: float | None = None,  # noqa: ASYNC109
        *,
        until: Callable[[JobInfo], bool] | None = None,
        progress: Callable[[JobInfo], object] | None = None,
    ) -> JobInfo:
        """Wait for a job as :meth:`.QueueClient.wait_job`, without a thread."""
        wait = JobWait(timeout, until, clock=self.blocking.connections.clock)
        while True:
            job = await self.get_job(job_id)
            if progress is not None:
                progress(job)
            pause = wait.pause(job)
            if pause is None:
                return job
            await asyncio.sleep(pause)

    # ------------------------------------------------------------ queues and routing
    create = _short(QueueClient.create)
    delete_queue = _short(QueueClient.delete_queue)
    list_queues = _short(QueueClient.list_queues)
    get_queue = _short(QueueClient.get_queue)
    purge = _short(QueueClient.purge)
    alter = _short(QueueClient.alter)
    delay_key = _short(QueueClient.delay_key)
    list_partitions = _short(QueueClient.list_partitions)
    pause = _short(QueueClient.pause)
    resume = _short(QueueClient.resume)
    declare_exchange = _short(QueueClient.declare_exchange)
    list_exchanges = _short(QueueClient.list_exchanges)
    delete_exchange = _short(QueueClient.delete_exchange)
    bind = _short(QueueClient.bind)
    unbind = _short(QueueClient.unbind)
    list_bindings = _short(QueueClient.list_bindings)
    validate_topic_pattern = _short(QueueClient.validate_topic_pattern)
    validate_routing_key = _short(QueueClient.validate_routing_key)
    test_routing = _short(QueueClient.test_routing)
    explain = _short(QueueClient.explain)
    metrics = _short(QueueClient.metrics)
    metrics_all = _short(QueueClient.metrics_all)
    metrics_update = _short(QueueClient.metrics_update)
    recent_metrics = _short(QueueClient.recent_metrics)
    count_due = _short(QueueClient.count_due)
    periodic_tasks = _short(QueueClient.periodic_tasks)

    # ------------------------------------------------------------ workers and the broker
    workers = _short(QueueClient.workers)
    worker = _short(QueueClient.worker)
    worker_messages = _short(QueueClient.worker_messages)
    release_worker_messages = _short(QueueClient.release_worker_messages)
    suspend_worker = _short(QueueClient.suspend_worker)
    resume_worker = _short(QueueClient.resume_worker)
    shutdown_worker = _short(QueueClient.shutdown_worker)
    reclaim_messages = _short(QueueClient.reclaim_messages)
    heartbeat = _short(QueueClient.heartbeat)
    is_healthy = _short(QueueClient.is_healthy)
    status = _short(QueueClient.status)
    whoami = _short(QueueClient.whoami)
    maintain = _apart(QueueClient.maintain)
    reload = _short(QueueClient.reload)
    hand_over = _short(QueueClient.hand_over)
    create_instance = _short(QueueClient.create_instance)
    list_instances = _short(QueueClient.list_instances)

    # ------------------------------------------------------------ earlier name
    list_staged_jobs = _short(QueueClient.list_staged_jobs)


async def on_thread(
    threads: ThreadPoolExecutor, function: Callable[..., T], *args: Any, undo: Callable[[T], object] | None = None
) -> T:
    """Call a function on a thread. If the caller is cancelled during the call, ``undo`` receives the result."""
    future: Future[T] = threads.submit(function, *args)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if undo is not None:
            future.add_done_callback(lambda done: _undo(done, undo))
        raise


def _undo(done: Future[T], undo: Callable[[T], object]) -> None:
    if not done.cancelled() and done.exception() is None:
        undo(done.result())
