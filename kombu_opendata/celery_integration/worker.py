"""Makes a Celery worker treat this transport as it treats AMQP and Redis, and report what became of its tasks.

Celery has no setting for these features: gossip and mingle run on the transports in two sets,
``worker_disable_prefetch`` on the one in an ``if``, and requests (:mod:`.task_requests`) are of a class that a function
makes. The transport loads this module by name and calls :func:`adapt` when it is made in a worker, which a worker does
before it looks.

Its connections, and those of its pool processes, have its node name (``celery@host``) for the broker.

Also, a worker waits before it tries to connect again after an error that a person must repair, and a worker of gevent
or eventlet does not wait for heartbeats after each delivery.
"""

from __future__ import annotations

import sys
import time
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from kombu.transport import virtual

from ..errors import OpenDataError
from .task_reporter import Reporter, Reporters
from .task_requests import report_outcomes, running_late
from .worker_shutdown import worker_shutdown

_PACKAGE = "celery.worker.consumer"
#: between attempts to connect after an error that the next attempt will meet too
_PERMANENT_ERROR_PAUSE_SECONDS = 5
_adapted = False


def adapt(transport: type[virtual.Transport]) -> None:
    """Adapt the workers of this process to this class of transports, once."""
    global _adapted
    if _adapted:
        return
    _adapted = True
    worker_shutdown.watch()
    for name in ("gossip.Gossip", "mingle.Mingle"):
        module, _, step = name.partition(".")
        cls = getattr(sys.modules[f"{_PACKAGE}.{module}"], step)
        cls.compatible_transports = {*cls.compatible_transports, transport.driver_type}
    tasks = sys.modules[f"{_PACKAGE}.tasks"].Tasks
    reporters: Reporters = WeakKeyDictionary()
    tasks.start = _wrap_start(tasks.start, transport, reporters)
    report_outcomes(reporters)
    consumer = sys.modules[f"{_PACKAGE}.consumer"].Consumer
    consumer.on_connection_error_before_connected = _wrap_on_error(
        consumer.on_connection_error_before_connected, transport
    )
    _connect_by_node_name()
    _flush_when_a_pool_process_ends()


def _wrap_start(start: Any, transport_class: type[virtual.Transport], reporters: Reporters) -> Any:
    """``Tasks.start``, which sets its prefetch gate only if ``driver_type`` is "redis"; our channels have its hook.

    The event loop of a solo worker stands still in each task, so such a worker also gets threads that keep its session
    and report its task. The classes of requests are made in this step, so the pool's reporter is there before.
    """

    @wraps(start)
    def wrapped(tasks: Any, c: Any) -> None:
        transport = c.connection.transport
        if not isinstance(transport, transport_class):
            reporters.pop(c.pool, None)
            start(tasks, c)
            return
        if is_solo := _runs_tasks_in_its_loop(c.pool):
            c.connection.connection.link.start_reconnect_thread()
        if getattr(c.pool, "is_green", False) and c.event_dispatcher is not None:
            _drain_without_waiting(c.event_dispatcher.connection)
        reporter = reporters.setdefault(c.pool, Reporter(running_late))
        reporter.connect(c.connection.default_channel)
        reporter.watch(None if is_solo else c.timer)
        if not getattr(c.app.conf, "worker_disable_prefetch", False):  # Celery 5.5 has no such setting
            start(tasks, c)
            return
        transport.driver_type = "redis"
        try:
            start(tasks, c)
        finally:
            del transport.driver_type

    return wrapped


def _wrap_on_error(on_error: Any, transport_class: type[virtual.Transport]) -> Any:
    """``Consumer.on_connection_error_before_connected``, which logs the error before the worker connects again.

    Kombu waits between attempts only after recoverable errors. After any other, such as that for a folder which others
    may write to, Celery would try again at once and log the error five times a second.
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
    """Let the drains of a connection read what has arrived and not wait for more.

    The loop of green workers drains the connection of the event dispatcher for 0.1 s after each delivery, so that the
    broker's heartbeats are consumed. It gets nothing else there, and such a wait would be the limit of ten tasks a
    second that these workers have over AMQP. A lost connection is noticed as before: the drain checks that the broker
    is alive.
    """
    drain = type(connection).drain_events

    def drain_events(**_options: Any) -> Any:
        return drain(connection, timeout=0)

    connection.drain_events = drain_events


def _runs_tasks_in_its_loop(pool: Any) -> bool:
    solo = sys.modules.get("celery.concurrency.solo")
    return solo is not None and isinstance(pool, solo.TaskPool)


def _connect_by_node_name() -> None:
    """``celery worker`` sends the signal before it connects and before it forks, with its node name as the sender."""
    from celery.signals import celeryd_after_setup

    from ..client.client_name import name_process

    def on_setup(sender: str, **_kwargs: Any) -> None:
        name_process(sender)

    celeryd_after_setup.connect(on_setup, weak=False)


def _flush_when_a_pool_process_ends() -> None:
    """The processes of prefork end without running Python's exit handlers."""
    from celery.signals import worker_process_shutdown

    from ..client.session.publish_pipeline import flush_all

    worker_process_shutdown.connect(flush_all, weak=False)
