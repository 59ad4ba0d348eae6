"""Adaptation of Celery workers, which treat this transport as AMQP and Redis and report the outcomes of their tasks.

Celery has no setting for these features: two sets name the transports for gossip and mingle, an ``if`` names the
transport for ``worker_disable_prefetch``, and a function creates the class of requests (:mod:`.task_requests`). The
transport loads this module by name and calls :func:`adapt` when it is created in a worker, which happens before the
worker reads these sets.

The adaptation also has these effects:

* The connections of a worker and its pool processes have its node name (``celery@host``) as their name.
* A worker waits before it reconnects after an error that an operator must repair.
* A worker's events do not wait indefinitely for the broker.
* A worker of gevent or eventlet does not wait for heartbeats after each delivery.
"""

from __future__ import annotations

import sys
import threading
import time
from functools import partial, wraps
from typing import Any
from weakref import WeakKeyDictionary

from kombu.transport import virtual

from ..client.foreign_options import UNUSED_BY_WORKERS
from ..errors import OpenDataError
from ..protocol.envelope import SPARK_JOB, SPARK_MESSAGE
from .backend_settings import report_settings
from .batches import report_batches
from .task_reporter import Reporter, Reporters
from .task_requests import report_outcomes, running_late
from .worker_shutdown import worker_shutdown

_PACKAGE = "celery.worker.consumer"
#: seconds between attempts to connect after a permanent error
_PERMANENT_ERROR_PAUSE_SECONDS = 5
#: options of the retries of an event: one retry, which connects again
_EVENT_RETRIES = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
_adapted = False


def adapt(transport: type[virtual.Transport]) -> None:
    """Adapt the workers of this process to this transport class, once."""
    global _adapted
    if _adapted:
        return
    _adapted = True
    from celery import signals

    from ..client.connection_options import name_process
    from ..client.session.publish_pipeline import flush_all

    worker_shutdown.watch()
    for name in ("gossip.Gossip", "mingle.Mingle"):
        module, _, step = name.partition(".")
        cls = getattr(sys.modules[f"{_PACKAGE}.{module}"], step)
        cls.compatible_transports = {*cls.compatible_transports, transport.driver_type}
    events = sys.modules[f"{_PACKAGE}.events"].Events
    events.start = _wrap_events_start(events.start, transport)
    tasks = sys.modules[f"{_PACKAGE}.tasks"].Tasks
    reporters: Reporters = WeakKeyDictionary()
    tasks.start = _wrap_start(tasks.start, transport, reporters)
    report_outcomes(reporters)
    consumer = sys.modules[f"{_PACKAGE}.consumer"].Consumer
    consumer.on_connection_error_before_connected = _wrap_on_error(
        consumer.on_connection_error_before_connected, transport
    )
    # ``celery worker`` sends its node name before it connects and forks
    signals.celeryd_after_setup.connect(lambda sender, **_kwargs: name_process(sender), weak=False)
    signals.before_task_publish.connect(continue_job, weak=False)
    # prefork processes end without running Python's exit handlers, which would flush their publishes
    signals.worker_process_shutdown.connect(flush_all, weak=False)


def continue_job(headers: Any = None, **_kwargs: Any) -> None:
    """Add the headers of a Spark job to a message of the current task, as ``Task.replace`` publishes it.

    ``Task.retry`` repeats them itself.
    """
    from celery import current_task

    request: Any = current_task.request if current_task else None
    own = getattr(request, "headers", None)
    if own and SPARK_JOB in own and headers is not None and headers.get("id") == request.id:
        for name in (SPARK_JOB, SPARK_MESSAGE):
            headers.setdefault(name, own.get(name))


def _wrap_start(start: Any, transport_class: type[virtual.Transport], reporters: Reporters) -> Any:
    """Wrap ``Tasks.start``, which implements ``worker_disable_prefetch`` only if ``driver_type`` is "redis".

    The wrapper sets this type during the call, because the channels of this transport have the same gate. Each task of
    a solo worker blocks its event loop, so such a worker also gets threads that keep its session and report its task.
    ``Tasks.start`` creates the classes of requests, so the pool's reporter is created before it.
    """

    @wraps(start)
    def wrapped(tasks: Any, c: Any) -> None:
        transport = c.connection.transport
        if not isinstance(transport, transport_class):
            reporters.pop(c.pool, None)
            start(tasks, c)
            return
        report_settings(c.app.conf, UNUSED_BY_WORKERS)
        solo = sys.modules.get("celery.concurrency.solo")
        if is_solo := solo is not None and isinstance(c.pool, solo.TaskPool):
            c.connection.connection.link.start_reconnect_thread()
        reporter = reporters.setdefault(c.pool, Reporter(running_late))
        reporter.connect(c.connection.default_channel)
        reporter.watch(None if is_solo else c.timer)
        if "celery_batches" in sys.modules:
            report_batches(c.app, c.pool, reporter)
        if not getattr(c.app.conf, "worker_disable_prefetch", False):  # Celery 5.5 has no such setting
            start(tasks, c)
            return
        transport.driver_type = "redis"
        try:
            start(tasks, c)
        finally:
            del transport.driver_type

    return wrapped


def _wrap_events_start(start: Any, transport_class: type[virtual.Transport]) -> Any:
    """Wrap ``Events.start``, which creates the dispatcher of the worker's events."""

    @wraps(start)
    def wrapped(events: Any, c: Any) -> None:
        start(events, c)
        if isinstance(c.connection.transport, transport_class):
            limit_waits(c.event_dispatcher)
            if getattr(c.pool, "is_green", False):
                _drain_without_waiting(c.event_dispatcher.connection)

    return wrapped


class EventLock(type(threading.RLock())):  # type: ignore[misc]
    """Reentrant lock of an event dispatcher, which only the thread that holds it releases.

    Celery 5.6 would release a lock that is ``locked`` when it closes the dispatcher.
    """

    def locked(self) -> bool:
        return False


def limit_waits(dispatcher: Any) -> None:
    """Limit how long the events of a worker wait while the broker is unreachable.

    Celery retries heartbeats without a limit and holds the dispatcher's lock during the retries. A shutdown sends
    events, too, and would wait for the lock until the broker is available. This may happen in any thread: a prefork
    pool that stops sends heartbeats in another thread, and the handler of SIGQUIT may interrupt a heartbeat in the main
    thread. An event that can't be sent stays in the dispatcher's buffer.
    """
    dispatcher.mutex = EventLock()
    dispatcher.send = partial(dispatcher.send, retry_policy=_EVENT_RETRIES)


def _wrap_on_error(on_error: Any, transport_class: type[virtual.Transport]) -> Any:
    """Wrap ``Consumer.on_connection_error_before_connected``, which logs the error before the worker reconnects.

    Kombu waits between attempts only after recoverable errors. After any other error, such as for a folder that other
    users may write to, Celery would retry immediately and log the error five times a second.
    """
    from celery.worker.state import maybe_shutdown

    @wraps(on_error)
    def wrapped(consumer: Any, exc: Exception) -> None:
        on_error(consumer, exc)
        if isinstance(exc, OpenDataError) and not isinstance(exc, transport_class.recoverable_connection_errors):
            until = time.monotonic() + _PERMANENT_ERROR_PAUSE_SECONDS
            while time.monotonic() < until:
                maybe_shutdown()
                time.sleep(0.5)

    return wrapped


def _drain_without_waiting(connection: Any) -> None:
    """Make the drains of a connection read available messages without waiting for more.

    The loop of green workers drains the connection of the event dispatcher for 0.1 s after each delivery, so that the
    broker's heartbeats are consumed. That connection receives nothing else, and such a wait would limit these workers
    to ten tasks a second, as over AMQP. A lost connection is noticed as before: the drain checks that the broker is
    alive.
    """
    drain = type(connection).drain_events

    def drain_events(**_options: Any) -> Any:
        return drain(connection, timeout=0)

    connection.drain_events = drain_events
