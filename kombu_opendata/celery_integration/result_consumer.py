"""Celery result consumer that receives the results that the broker pushes."""

from __future__ import annotations

from typing import Any

from celery.backends.asynchronous import BaseResultConsumer
from celery.result import ResultSet

from ..client.result_client import Changes


class ResultConsumer(BaseResultConsumer):
    """Consumer that passes on results as the broker pushes them."""

    def start(self, initial_task_id: str, **_kwargs: Any) -> None:
        self.consume_from(initial_task_id)

    def consume_from(self, task_id: str) -> None:
        self.backend.client.watch(self.backend.get_key_for_task(task_id))

    def cancel_for(self, task_id: str) -> None:
        self.backend.client.unwatch(self.backend.get_key_for_task(task_id))

    def drain_events(self, timeout: float | None = None) -> None:
        self.backend.client.drain(timeout, self._take)

    def on_wait_for_pending(self, result: Any, timeout: float | None = None, **_kwargs: Any) -> None:
        """Process the results that exist already if the timeout is 0."""
        if timeout is None or timeout > 0:
            return
        nodes = getattr(result, "results", [result])
        keys = [self.backend.get_key_for_task(node.id) for node in nodes if not isinstance(node, ResultSet)]
        self._take([(b"", value) for value in self.backend.mget(keys) if value is not None])

    def _take(self, changes: Changes) -> None:
        failure: Exception | None = None
        for _name, value in changes:
            try:
                self.on_state_change(self.backend.decode_result(value), None)
            except Exception as exc:  # the other results must still be passed on
                failure = failure or exc
        if failure is not None:
            raise failure
