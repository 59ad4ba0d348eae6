"""Effects of definitions: queues, exchanges, bindings."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from ..records import staged_jobs
from ..records.definitions import QueueOverrides
from ..state.settled_list import LISTS
from ..state.staged_state import REMOVED
from ..state.store_state import DeletedQueue, QueueSettings, StoreState
from . import Effect


class DeclareQueueEffect(Effect, tag=9):
    """A durable queue was created. ``at_ms`` is 0 if the time is unknown."""

    name: str
    max_attempts: int
    done_retention_seconds: int
    failed_retention_seconds: int
    lease_seconds: int
    arguments: dict[str, Any]
    at_ms: int = 0

    def apply(self, state: StoreState) -> None:
        name, *settings, at_ms = structs.astuple(self)
        state.declare_queue(name, QueueSettings(*settings), at_ms)


class DeleteQueueEffect(Effect, tag=10):
    """A queue was deleted, after a purge. The checkpoint reads its settled lists from the store and deletes them."""

    name: str

    def apply(self, state: StoreState) -> None:
        name = self.name
        queue = state.queues.pop(name)
        logs = {which: queue.settled_list(which) for which in LISTS}
        known_ids = {id for log in logs.values() for id in log.unsaved_ids()}
        letters = {id for of, id in state.dead_letters if of == name}
        kept_ids = {id for id in letters if not state.dead_letters[(name, id)].last_use}
        for id in kept_ids:
            state.keep_for_dead_letter(name, id)
        deleted = DeletedQueue(known_ids, {which: set(log.dirty) for which, log in logs.items()}, kept_ids)
        for entry in list(queue.messages.in_flight.values()):
            state.unlease(entry)
            known_ids.add(entry.id)
            if state.staged.active:
                state.staged.ended(name, entry.id, REMOVED, staged_jobs.REMOVED)
        for binding in state.topology.remove_queue(name):
            state.dirty.bindings.add((name, *binding))
        state.dirty.queues.discard(name)
        state.dirty.overrides.discard(name)
        if state.cursors.pop(name, None) is not None:
            state.dirty.cursors.add(name)
        state.dirty.deleted_queues.setdefault(name, []).append(deleted)


class AlterQueueEffect(Effect, tag=70):
    """An operator changed, paused or resumed a queue. The other fields replace all of its earlier overrides."""

    queue: str
    paused: int
    paused_at_ms: int
    arguments: dict[str, Any]

    def apply(self, state: StoreState) -> None:
        state.override_queue(self.queue, QueueOverrides(self.paused, self.paused_at_ms, self.arguments))


class OpenPartitionEffect(Effect, tag=80):
    """A queue has a new partition, for messages with this value of its expression."""

    queue: str
    number: int
    by: str
    key: str

    def apply(self, state: StoreState) -> None:
        state.queues[self.queue].messages.open_partition(self.number, self.by, self.key)


class ClosePartitionsEffect(Effect, tag=81):
    """Partitions without messages were deleted."""

    queue: str
    numbers: list[int]

    def apply(self, state: StoreState) -> None:
        state.queues[self.queue].messages.close_partitions(self.numbers)


class DeclareExchangeEffect(Effect, tag=11):
    """An exchange was created."""

    name: str
    exchange_type: str
    durable: bool
    auto_delete: bool
    arguments: dict[str, Any]

    def apply(self, state: StoreState) -> None:
        state.topology.add_exchange(self.name, self.exchange_type, self.durable, self.auto_delete, self.arguments)
        if self.durable:
            state.dirty.exchanges.add(self.name)


class DeleteExchangeEffect(Effect, tag=12):
    """An exchange was deleted with its bindings."""

    name: str

    def apply(self, state: StoreState) -> None:
        name = self.name
        for queue, exchange, key, arguments in list(state.topology.bindings()):
            if exchange == name:
                state.unbind(queue, exchange, key, arguments)
        if state.topology.exchanges[name].durable:
            state.dirty.exchanges.add(name)
        state.topology.remove_exchange(name)


class BindEffect(Effect, tag=13):
    """A queue was bound to an exchange."""

    queue: str
    exchange: str
    routing_key: str
    arguments: dict[str, Any]

    def apply(self, state: StoreState) -> None:
        state.bind(self.queue, self.exchange, self.routing_key, self.arguments)


class UnbindEffect(Effect, tag=14):
    """A binding was deleted. A journal from before headers exchanges has no ``arguments``."""

    queue: str
    exchange: str
    routing_key: str
    arguments: dict[str, Any] | None = None

    def apply(self, state: StoreState) -> None:
        state.unbind(self.queue, self.exchange, self.routing_key, self.arguments or {})
