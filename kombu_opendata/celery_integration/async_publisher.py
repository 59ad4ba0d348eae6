"""Publishing of Celery tasks from asyncio: all callers of an app share one thread.

Celery's ``apply_async`` does the work, so routes, signals, serializers and workflows are Celery's. It runs on the app's
publishing thread, in the context of the caller, and sends the message without waiting for the confirmation
(:class:`.PublishPipeline`). The thread then waits for new calls, and for the confirmations of all sent messages. Each
confirmation ends the wait of its caller. In this way concurrent callers share commits of the broker.

============  ==========================================  ================================================
state         the call                                    a cancellation of its caller
============  ==========================================  ================================================
queued        waits for the thread                        removes it: no message is sent
running       is in Celery's ``apply_async``              does not stop it; the caller waits for the outcome,
                                                          but not longer than CANCEL_SECONDS
in flight     its messages are sent, not all confirmed    the same
done          confirmed, or failed                        has no effect
============  ==========================================  ================================================

**Why a thread.** Celery declares queues, opens chords and calls signal handlers in the middle of a publish, and an
unreachable broker blocks it until the connection is resumed. On the event loop, each of these would stop all tasks.
It is a daemon, because the end of the process must not wait for a broker that does not answer: the pipeline waits for
the messages in flight for as long as for a resume.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any
from weakref import WeakKeyDictionary, finalize

from celery.canvas import Signature
from celery.signals import before_task_publish
from celery.utils import uuid
from kombu.exceptions import OperationalError

from .. import batch
from ..client.publish_batch import Batch
from ..client.session.broker_connection import BrokerConnection
from ..client.session.unconfirmed import publish_failed
from ..client.socket.framed_socket import Waker
from ..client.socket.poll import poll
from ..errors import ConnectionLost, OpenDataError, PublishFailed, RequestError, StoreStalled
from .awaitable_result import AwaitableResult

#: seconds that a cancelled caller waits for the outcome of a message that may have been sent
CANCEL_SECONDS = 1.0
#: seconds after which the sockets to wait for are collected again, because another thread may have replaced one
_POLL_SECONDS = 1.0
#: errors after which the message may be stored
_UNCERTAIN = (ConnectionLost, PublishFailed, StoreStalled, TimeoutError)
_OUTCOMES = {
    True: "stored",
    False: "not stored",
    None: "not confirmed yet: stored once or not at all, see QueueClient.task(id)",
}


async def apply_async(
    task: Any, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
) -> AwaitableResult:
    """Publish a task, or a signature (chain, group, chord …); return when its messages are durable.

    The arguments and the errors are those of Celery's ``apply_async``, but ``retry`` only applies to connecting: a
    message that the broker refuses is not published again.

    If the caller is cancelled, the attribute ``stored`` of the CancelledError is True if the message is stored, False
    if it is not, and None if this was unknown after a second. In each case, it is stored at most once. Its attribute
    ``task_ids`` has the id of the task; when the broker answers again, :meth:`.QueueClient.task` returns a task that
    is stored, and raises MessageNotFound for another one. With ``asyncio.timeout``, the CancelledError is the cause of
    the TimeoutError.

    Raises:
        RetryLater: the broker accepts no message now, for instance because a queue is full.
        AccessRefused: the user may not publish there.
        PublishFailed: some of several messages of a workflow failed; ``failed`` lists them.
        ConnectionLost: the broker is unreachable. If the message was sent, it may be stored.
        RequestError: an option is not possible here, or the broker has another transport.
    """
    for name in ("producer", "publisher", "connection"):
        if options.get(name) is not None:
            raise RequestError(f"apply_async() uses the app's connections: remove the option {name!r}", option=name)
    task_id = options["task_id"] = options.get("task_id") or _id_of(task)
    app = _app_of(task)
    parent = app.current_worker_task
    options = _parent_ids(parent) | options
    result = await _publish(app, lambda: task.apply_async(args, kwargs, **options), [task_id])
    if parent is not None and options.get("add_to_parent", True):
        parent.add_trail(result)
    return AwaitableResult(result)


async def apply_async_many(signatures: Iterable[Any]) -> list[AwaitableResult]:
    """Publish many signatures of one app; return when all messages are durable, in commits that they share.

    Cancellation and errors are those of :func:`apply_async`. An error of Celery, for instance an argument that can't be
    encoded, is raised after the messages before it were stored.
    """
    signatures = list(signatures)
    if not signatures:
        return []

    app = _app_of(signatures[0])
    parent = app.current_worker_task
    options = _parent_ids(parent)

    task_ids = [_id_of(signature) for signature in signatures]

    def publish_all() -> list[Any]:
        pairs = zip(signatures, task_ids, strict=True)
        return [signature.apply_async(task_id=task_id, **options) for signature, task_id in pairs]

    results = await _publish(app, publish_all, task_ids)
    if parent is not None:
        for result in results:
            parent.add_trail(result)
    return [AwaitableResult(result) for result in results]


def _id_of(task: Any) -> str:
    """Return the id that a signature has already, or a new one."""
    own = task.options.get("task_id") if isinstance(task, Signature) else None
    return str(own or uuid())


def _parent_ids(parent: Any) -> dict[str, Any]:
    """Return the options that Celery takes from the running task, which the publishing thread does not know.

    A chain passes only ``root_id`` to its first task, so the context of the call carries the id of the parent, too.
    """
    _parent_id.set(parent and parent.request.id)
    if parent is None:
        return {}
    before_task_publish.connect(_add_parent_id, weak=False, dispatch_uid="opendata-parent-id")
    return {"root_id": parent.request.root_id or parent.request.id, "parent_id": parent.request.id}


def _add_parent_id(headers: dict[str, Any] | None = None, **_signal: Any) -> None:
    """Set the parent of a message that a call on the publishing thread sends without one, as Celery does in a task."""
    parent_id = _parent_id.get()
    if parent_id and headers and headers.get("parent_id", "") is None:
        headers["parent_id"] = parent_id


def _app_of(task: Any) -> Any:
    app = getattr(task, "app", None)
    if app is None:
        raise RequestError(f"apply_async() takes a Celery task or signature, not {type(task).__name__}: give one")
    return app


async def _publish(app: Any, publish: Callable[[], Any], task_ids: list[str]) -> Any:
    """Return the result of ``publish``, whose messages are durable."""
    if app.conf.task_always_eager:
        return await asyncio.to_thread(publish)
    publisher = _publishers.get(app)
    if publisher is None:
        publisher = _publishers[app] = AsyncPublisher(batch(app))
    call = publisher.submit(app, publish)
    outcome = asyncio.wrap_future(call.future)
    try:
        await asyncio.wait((outcome,))
    except asyncio.CancelledError as exc:
        stored = False if call.future.cancel() else await _stored(outcome)
        description = f"task {task_ids[0]}" if len(task_ids) == 1 else f"{len(task_ids)} tasks"
        exc.add_note(f"{description}: {_OUTCOMES[stored]}")
        exc.stored, exc.task_ids = stored, task_ids  # type: ignore[attr-defined]
        raise
    return outcome.result()


async def _stored(outcome: asyncio.Future[Any]) -> bool | None:
    """Return the outcome of a call whose caller was cancelled; None if it is not known in time."""
    outcome.add_done_callback(lambda done: done.cancelled() or done.exception())  # no other code may retrieve the error
    with suppress(asyncio.CancelledError):  # the caller raises the first cancellation
        await asyncio.wait((outcome,), timeout=CANCEL_SECONDS)
    if not outcome.done() or isinstance(outcome.exception(), _UNCERTAIN):
        return None
    return outcome.exception() is None


class PublishCall(Batch):
    """Messages of one call.

    Attributes:
        future: the result of Celery, once all messages are confirmed.
    """

    def __init__(self, like: Batch, publish: Callable[[], Any], lock: threading.Lock) -> None:
        super().__init__(like.addresses, like.translate)
        self.count_in_flight = self._count_in_flight
        self.future: Future[Any] = Future()
        self._publish = publish
        self._context = copy_context()
        self._lock = lock
        self._count = 0
        self._pending = 1  # the function itself, and the messages in flight
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Run the function in the context of the caller."""
        try:
            self._result = self._context.run(self._in_context)
        except BaseException as exc:
            self._error = _unwrapped(exc)
        self._count_in_flight(-1)

    def _in_context(self) -> Any:
        self.__enter__()  # for the rest of the context, which is a copy
        return self._publish()

    def _count_in_flight(self, change: int) -> None:
        """Count messages in flight; the thread that received a confirmation calls it."""
        with self._lock:
            self._pending += change
            self._count += change > 0
            is_done = not self._pending
        if is_done:
            error = self._error or self._failure()
            with suppress(InvalidStateError):  # the publisher has failed it
                if error is None:
                    self.future.set_result(self._result)
                else:
                    self.future.set_exception(error)

    def _failure(self) -> Exception | None:
        if not self.failures:
            return None
        error = self.failures[0].error if self._count == 1 else publish_failed(self.failures)
        return self.translate(error) if isinstance(error, OpenDataError) else error


class AsyncPublisher:
    """Publishing thread of an app. The thread's work ends when no call is queued and no message is in flight."""

    def __init__(self, like: Batch) -> None:
        self._like = like
        self._works: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=_run_all, args=(self._works,), name="opendata-publishes", daemon=True).start()
        finalize(self, self._works.put, None)
        self._waker = Waker()
        self._lock = threading.Lock()
        self._queued: deque[PublishCall] = deque()
        self._in_flight: set[PublishCall] = set()
        self._is_running = self._is_waiting = False

    def submit(self, app: Any, publish: Callable[[], Any]) -> PublishCall:
        """Queue a call."""
        call = PublishCall(self._like, publish, self._lock)
        with self._lock:
            self._queued.append(call)
            is_running, self._is_running = self._is_running, True
            is_waiting, self._is_waiting = self._is_waiting, False
        if not is_running:
            self._works.put(partial(self._run, app))
        elif is_waiting:
            self._waker.wake()
        return call

    def _run(self, app: Any) -> None:
        calls: list[PublishCall] = []
        try:
            while True:
                self._in_flight = {call for call in self._in_flight if not call.future.done()}
                with self._lock:
                    calls = list(self._queued)
                    self._queued.clear()
                    self._is_running = bool(calls or self._in_flight)
                    self._is_waiting = not calls
                if not self._is_running:
                    return
                if calls:
                    self._start(app, calls)
                else:
                    self._wait()
        except BaseException as exc:
            self._fail(calls, exc)

    def _start(self, app: Any, calls: list[PublishCall]) -> None:
        """Connect, and run the calls; if the broker is unreachable, all of them fail."""
        try:
            with app.producer_or_acquire() as producer:
                assert producer.channel
        except Exception as exc:
            for call in calls:
                if call.future.set_running_or_notify_cancel():
                    call.future.set_exception(_unwrapped(exc))
            return
        for call in calls:
            if call.future.set_running_or_notify_cancel():
                call.run()
                self._in_flight.add(call)

    def _wait(self) -> None:
        """Wait for confirmations, or for a new call."""
        connections: set[BrokerConnection] = {connection for call in self._in_flight for connection in call.connections}
        sockets = [current for each in connections if (current := each.pipeline.read_confirmations()) is not None]
        if sockets:
            seconds = min(_POLL_SECONDS, *(current.silence or _POLL_SECONDS for current in sockets))
            if poll([*(current.fd for current in sockets), self._waker.fd], (), seconds):
                self._waker.clear()

    def _fail(self, calls: list[PublishCall], error: BaseException) -> None:
        """Fail all calls after an unexpected error."""
        with self._lock:
            calls += [*self._queued, *self._in_flight]
            self._queued.clear()
            self._in_flight.clear()
            self._is_running = False
        for call in calls:
            if not call.future.done() and (call.future.running() or call.future.set_running_or_notify_cancel()):
                call.future.set_exception(error)


def _run_all(works: SimpleQueue[Callable[[], None] | None]) -> None:
    """Run the work of a publisher until it ends with None. Between works, the thread does not refer to an app."""
    while (work := works.get()) is not None:
        work()
        del work


def _unwrapped(error: BaseException) -> BaseException:
    """Return the error of the transport that Kombu has wrapped."""
    cause = error.__cause__
    return cause if isinstance(error, OperationalError) and isinstance(cause, OpenDataError) else error


_publishers: WeakKeyDictionary[Any, AsyncPublisher] = WeakKeyDictionary()
_parent_id: ContextVar[str | None] = ContextVar("opendata-parent-id", default=None)

os.register_at_fork(after_in_child=_publishers.clear)
