"""What a Celery worker does for some transports only, and does for this one too.

Celery has no setting for these: gossip and mingle run on the transports that two sets name, and
``worker_disable_prefetch`` on the one that an ``if`` names. The transport calls :func:`adapt` when it is made, which a
worker does before it looks; where Celery's worker is not loaded, nothing happens and nothing is imported.

And a worker waits before it tries again what a person must mend first.
"""

from __future__ import annotations

import sys
import time
from functools import wraps
from typing import Any

from ..errors import OpenDataError

_PACKAGE = "celery.worker.consumer"
#: between attempts to connect that fail for a reason which the next one will meet, too
_HOPELESS_PAUSE_SECONDS = 5
_adapted = False


def adapt() -> None:
    """Have the worker of this process, if it is one, treat this transport as it does AMQP and Redis."""
    global _adapted
    if _adapted or f"{_PACKAGE}.tasks" not in sys.modules:
        return
    _adapted = True
    from ..transport.transport import Transport

    for name in ("gossip.Gossip", "mingle.Mingle"):
        module, _, step = name.partition(".")
        cls = getattr(sys.modules[f"{_PACKAGE}.{module}"], step)
        cls.compatible_transports = {*cls.compatible_transports, Transport.driver_type}
    tasks = sys.modules[f"{_PACKAGE}.tasks"].Tasks
    tasks.start = _keeping_and_gating(tasks.start)
    consumer = sys.modules[f"{_PACKAGE}.consumer"].Consumer
    consumer.on_connection_error_before_connected = _pausing(consumer.on_connection_error_before_connected)
    _flush_when_a_pool_process_ends()


def _keeping_and_gating(start: Any) -> Any:
    """``Tasks.start``, whose prefetch gate is for ``driver_type`` "redis" alone; our channels have the same hook.

    And a solo worker, whose event loop stands still in each task, has a thread that keeps its session.
    """
    from ..transport.transport import Transport

    @wraps(start)
    def wrapped(self: Any, c: Any) -> None:
        transport = c.connection.transport
        if not isinstance(transport, Transport):
            start(self, c)
            return
        if _runs_tasks_in_its_loop(c.pool):
            c.connection.connection.link.start_reconnect_thread()
        if not c.app.conf.worker_disable_prefetch:
            start(self, c)
            return
        transport.driver_type = "redis"
        try:
            start(self, c)
        finally:
            del transport.driver_type

    return wrapped


def _pausing(on_error: Any) -> Any:
    """``Consumer.on_connection_error_before_connected``, which logs the error before the worker connects again.

    Kombu waits between attempts after errors that pass by themselves. After others, as that of a folder which others
    may write to, Celery tries again at once, and logs it five times a second.
    """
    from celery.worker.state import maybe_shutdown

    from ..transport.transport import Transport

    @wraps(on_error)
    def wrapped(self: Any, exc: Exception) -> None:
        on_error(self, exc)
        if isinstance(exc, OpenDataError) and not isinstance(exc, Transport.recoverable_connection_errors):
            until = time.monotonic() + _HOPELESS_PAUSE_SECONDS
            while time.monotonic() < until:
                maybe_shutdown()
                time.sleep(0.5)

    return wrapped


def _runs_tasks_in_its_loop(pool: Any) -> bool:
    solo = sys.modules.get("celery.concurrency.solo")
    return solo is not None and isinstance(pool, solo.TaskPool)


def _flush_when_a_pool_process_ends() -> None:
    """Prefork's processes end without Python's exit handlers."""
    from celery.signals import worker_process_shutdown

    from ..client.session.publish_pipeline import flush_all

    worker_process_shutdown.connect(flush_all, weak=False)
