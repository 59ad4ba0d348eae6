"""Makes a Celery worker treat this transport as it treats AMQP and Redis.

Celery has no setting for these features: gossip and mingle run on the transports in two sets, and
``worker_disable_prefetch`` on the one in an ``if``. The transport calls :func:`adapt` when it is made, which a worker
does before it looks. Where Celery's worker is not loaded, nothing happens and nothing is imported.

Also, a worker waits before it tries to connect again after an error that a person must repair.
"""

from __future__ import annotations

import sys
import time
from functools import wraps
from typing import Any

from kombu.transport import virtual

from ..errors import OpenDataError

_PACKAGE = "celery.worker.consumer"
#: between attempts to connect after an error that the next attempt will meet too
_PERMANENT_ERROR_PAUSE_SECONDS = 5
_adapted = False


def adapt(transport: type[virtual.Transport]) -> None:
    """Adapt the worker of this process, if it is one, to this class of transports."""
    global _adapted
    if _adapted or f"{_PACKAGE}.tasks" not in sys.modules:
        return
    _adapted = True
    for name in ("gossip.Gossip", "mingle.Mingle"):
        module, _, step = name.partition(".")
        cls = getattr(sys.modules[f"{_PACKAGE}.{module}"], step)
        cls.compatible_transports = {*cls.compatible_transports, transport.driver_type}
    tasks = sys.modules[f"{_PACKAGE}.tasks"].Tasks
    tasks.start = _wrap_start(tasks.start, transport)
    consumer = sys.modules[f"{_PACKAGE}.consumer"].Consumer
    consumer.on_connection_error_before_connected = _wrap_on_error(
        consumer.on_connection_error_before_connected, transport
    )
    _flush_when_a_pool_process_ends()


def _wrap_start(start: Any, transport_class: type[virtual.Transport]) -> Any:
    """``Tasks.start``, which sets its prefetch gate only if ``driver_type`` is "redis"; our channels have its hook.

    The event loop of a solo worker stands still in each task, so such a worker also gets a thread that keeps its
    session.
    """

    @wraps(start)
    def wrapped(tasks: Any, c: Any) -> None:
        transport = c.connection.transport
        if not isinstance(transport, transport_class):
            start(tasks, c)
            return
        if _runs_tasks_in_its_loop(c.pool):
            c.connection.connection.link.start_reconnect_thread()
        if not c.app.conf.worker_disable_prefetch:
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


def _runs_tasks_in_its_loop(pool: Any) -> bool:
    solo = sys.modules.get("celery.concurrency.solo")
    return solo is not None and isinstance(pool, solo.TaskPool)


def _flush_when_a_pool_process_ends() -> None:
    """The processes of prefork end without running Python's exit handlers."""
    from celery.signals import worker_process_shutdown

    from ..client.session.publish_pipeline import flush_all

    worker_process_shutdown.connect(flush_all, weak=False)
