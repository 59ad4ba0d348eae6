"""Declaration, change, purge and deletion of durable queues; exchanges and bindings."""

from __future__ import annotations

from typing import Any

from ...errors import RequestError
from ..effects import Effect
from ..effects import definitions as effects
from ..engine_parts import EngineParts, EngineService
from ..records.definitions import QueueOverrides
from ..routing.queue_filters import QueueDefinition, filter_of, have_same_filter
from ..state.store_state import Queue, QueueSettings
from .message_operations import Operations
from .queue_loader import QueueLoader
from .repeated_requests import Call, Idempotency, RepeatedCalls

#: the longest filter of a queue, as its config record has 16 bits for the length
MAX_FILTER_BYTES = 0xFFFF


class Definitions(EngineService):
    """The queues, exchanges and bindings of one instance. Each change is in the next commit."""

    def __init__(
        self,
        parts: EngineParts,
        operations: Operations,
        loader: QueueLoader,
        idempotency: Idempotency,
        repeats: RepeatedCalls,
    ) -> None:
        super().__init__(parts)
        self._operations = operations
        self._loader = loader
        self._idempotency = idempotency
        self._repeats = repeats

    def _define(self, effect: Effect) -> None:
        self._commits.apply(effect)
        self._commits.needs_sync = True

    def declare_queue(self, name: str, options: QueueSettings) -> Queue:
        """Create a durable queue: its config and its empty active, done and failed records."""
        self._define(effects.DeclareQueueEffect(name, *options, self._clock.now_ms()))
        return self._state.queues[name]

    def override_queue(self, name: str, overrides: QueueOverrides) -> None:
        """Replace the operator's overrides of a durable queue.

        Raises:
            RequestError: with this filter the queue's config would not fit its record; nothing was changed.
        """
        queue = self._state.queues[name]
        arguments = overrides.over(queue.declared.arguments)
        if not have_same_filter(arguments, queue.options.arguments):
            bindings = self._state.topology.definition_of(name).bindings[1:]
            size = len(QueueDefinition(name, bindings, filter_of(arguments)).text.encode())
            text = f"queue {name!r}: this filter and the queue's bindings would have {size} bytes"
            _check_filter(name, size, text, "give a shorter filter")
        flags, paused_at_ms, changes = overrides
        self._define(effects.AlterQueueEffect(name, flags, paused_at_ms, dict(changes)))

    def drop_queue(self, name: str) -> None:
        """Delete a queue without messages."""
        self._define(effects.DeleteQueueEffect(name))

    def declare_exchange(self, name: str, type: str, auto_delete: bool, arguments: dict[str, Any]) -> None:
        self._define(effects.DeclareExchangeEffect(name, type, True, auto_delete, arguments))

    def delete_exchange(self, name: str) -> None:
        self._define(effects.DeleteExchangeEffect(name))

    def bind(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> None:
        """Bind a durable queue to a durable exchange.

        Raises:
            RequestError: with this binding the queue's filter would not fit its record; nothing was changed.
        """
        size = self._state.topology.filter_size(queue, exchange, routing_key, arguments)
        text = f"queue {queue!r} has too many bindings: its filter would have {size} bytes"
        _check_filter(queue, size, text, "use a topic pattern that covers several routing keys")
        self._define(effects.BindEffect(queue, exchange, routing_key, arguments))

    def unbind(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> None:
        self._define(effects.UnbindEffect(queue, exchange, routing_key, arguments))

    # ------------------------------------------------------------------ purge and deletion of queues
    async def purge(self, queue: Queue, call: Call | None = None) -> int:
        """Remove every available message; return their number.

        Args:
            call: the client's call. If the broker ended during the same call before, this continues it and returns the
                total number of removed messages.
        """
        before = self._repeats.before(call)
        if before.is_over:
            return before.messages
        removed_count = await self._remove_available(queue, call)
        self._repeats.note(call, removed_count, is_over=True)
        await self._commits.commit()
        return removed_count

    async def _remove_available(self, queue: Queue, call: Call | None = None) -> int:
        """Remove all available messages, loading the cold buckets one after the other."""
        messages, remove = queue.messages, self._operations.remove
        removed_count = self._repeats.before(call).messages
        removed_count += remove(queue, list(messages.available.values()))
        self._repeats.note(call, removed_count)
        while messages.cold:
            await self._loader.load_bucket(queue, next(iter(messages.cold)))
            removed_count += remove(queue, list(messages.available.values()))
            self._repeats.note(call, removed_count)
        return removed_count

    async def delete_queue(self, queue: Queue, call: Call | None = None) -> int:
        """Delete a queue with all its messages; return the number of available ones. ``call`` is as for a purge."""
        await self._idempotency.look()
        removed_count = await self._remove_available(queue, call)
        self._repeats.note(call, removed_count, is_over=True)
        self._idempotency.drop_queue(queue.name)
        self.drop_queue(queue.name)  # no await in between, so the queue is still empty
        await self._commits.checkpoint()
        return removed_count


def _check_filter(queue: str, size: int, problem: str, remedy: str) -> None:
    """Raise RequestError if a filter of this size does not fit the queue's record."""
    if size > MAX_FILTER_BYTES:
        text = f"{problem}, the limit is {MAX_FILTER_BYTES}: {remedy}"
        raise RequestError(text, queue=queue, limit=MAX_FILTER_BYTES)
