"""Declares and deletes durable queues, exchanges and bindings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import RequestError
from ..clock import Clock
from ..commit.commits import Commits
from ..effects.definitions import Bind, DeclareExchange, DeclareQueue, DeleteExchange, DeleteQueue, Unbind
from ..effects.effect import Effect
from ..state.store_state import Queue, QueueOptions, StoreState

#: the longest filter of a queue, as its config record has 16 bits for the length
MAX_FILTER_BYTES = 0xFFFF


@dataclass(frozen=True, slots=True)
class Definitions:
    """Defines queues, exchanges and bindings of one instance. Each change is in the next commit."""

    _state: StoreState
    _clock: Clock
    _commits: Commits

    def _define(self, effect: Effect) -> None:
        self._commits.apply(effect)
        self._commits.needs_sync = True

    def declare_queue(self, name: str, options: QueueOptions) -> Queue:
        """Create a durable queue: its config and its empty active, done and failed records."""
        self._define(DeclareQueue(name, *options, self._clock.now_ms()))
        return self._state.queues[name]

    def drop_queue(self, name: str) -> None:
        self._define(DeleteQueue(name))

    def declare_exchange(self, name: str, type: str, auto_delete: bool, arguments: dict[str, Any]) -> None:
        self._define(DeclareExchange(name, type, True, auto_delete, arguments))

    def delete_exchange(self, name: str) -> None:
        self._define(DeleteExchange(name))

    def bind(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> None:
        """Bind a durable queue to a durable exchange.

        Raises:
            RequestError: with this binding the queue's filter would not fit its record; nothing was changed.
        """
        size = self._state.topology.filter_size(queue, exchange, routing_key, arguments)
        if size > MAX_FILTER_BYTES:
            raise RequestError(
                f"queue {queue!r} has too many bindings: its filter would have {size} bytes, the limit is "
                f"{MAX_FILTER_BYTES}; use a topic pattern that covers several routing keys",
                queue=queue,
                limit=MAX_FILTER_BYTES,
            )
        self._define(Bind(queue, exchange, routing_key, arguments))

    def unbind(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> None:
        self._define(Unbind(queue, exchange, routing_key, arguments))
