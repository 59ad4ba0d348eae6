"""Locks of celery-singleton in the broker's store.

Its setting is ``singleton_backend_class = "kombu_opendata.celery_integration.SingletonBackend"``. The URL is
the app's ``broker_url``, unless ``singleton_backend_url`` is set; ``singleton_backend_kwargs`` accepts ``ssl`` and the
other options of a connection, as ``result_backend_transport_options`` does.

A lock is a final result, which the broker does not replace: of two tasks, the broker stores the id of the first.
"""

from __future__ import annotations

from typing import Any

from celery import current_app, current_task

from ..client.connection_options import BACKEND_OPTIONS, check_names
from ..client.result_client import ResultClient
from ..protocol.messages import StoreResult
from . import backend_settings as settings
from .worker_shutdown import PersistentCalls, worker_shutdown

_PLACE = "singleton_backend_kwargs"
_FINAL = 2  # a kind of StoreResult


class SingletonBackend:
    """Backend with the methods of ``celery_singleton.backends.BaseBackend``."""

    def __init__(self, url: str | None, **options: Any) -> None:
        check_names(_PLACE, options, BACKEND_OPTIONS)
        if not isinstance(url, str):  # several URLs, or the environment variable of Celery has it
            url = settings.broker_urls(current_app.conf)
        addresses = settings.addresses(url, "singleton_backend_url")
        connection = settings.connection_options(_PLACE, options, url, f"{_PLACE}: 'ssl'")
        self._client = ResultClient(addresses, connection)
        worker_shutdown.watch()
        self._calls = PersistentCalls(
            worker_shutdown, connection.reconnect_timeout, has_alternatives=len(addresses) > 1
        )

    def lock(self, lock: str, task_id: str, expiry: float | None = None) -> bool:
        """Return True if the task has got the lock, or has it and is retried."""
        ttl_ms = settings.milliseconds(expiry, "singleton_lock_expiry")
        message = StoreResult(0, lock.encode(), _FINAL, task_id.encode(), ttl_ms, True)
        if self._calls.do(self._client.store, message).stored:
            return True
        return bool(current_task) and current_task.request.id == task_id == self.get(lock)

    def unlock(self, lock: str) -> None:
        self._calls.do(self._client.forget, [lock.encode()])

    def get(self, lock: str) -> str | None:
        """Return the id of the task that has the lock."""
        (value,) = self._calls.do(self._client.get, [lock.encode()])
        return None if value is None else value.decode()

    def clear(self, key_prefix: str) -> None:
        raise NotImplementedError(
            f"The broker does not list the locks {key_prefix}…. Set singleton_lock_expiry, or release a lock with "
            "task.release_lock(task_args, task_kwargs)."
        )
