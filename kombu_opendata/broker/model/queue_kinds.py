"""A factory for queues of the right kind: stored or transient."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import RequestError
from ...protocol.log_position import NOW
from ...protocol.queue_arguments import QueueArguments
from ...storage.maintain.background_router import replay_cursor
from ...storage.records.routing_cursor import Cursor
from ...storage.state.store_state import Queue, QueueSettings
from .queue import BrokerQueue, QueueProperties
from .queue_arguments import parse_stored
from .stored_queue import Storage, StoredQueue
from .transient_queue import Surroundings, TransientQueue


class QueueMaker:
    """A factory for the queues of one instance; ``fill`` starts the replay of a queue that begins in the past."""

    def __init__(self, storage: Storage, around: Surroundings, fill: Callable[[Queue, Cursor], None]) -> None:
        self._storage = storage
        self._around = around
        self._fill = fill

    def declare(self, name: str, properties: QueueProperties, arguments: QueueArguments) -> BrokerQueue:
        """Create a queue of the kind that its properties require.

        Raises:
            RequestError: its start is not valid.
        """
        storage, start = self._storage, arguments.start
        cursor = replay_cursor(start, NOW, next_id=storage.state.next_id, now_ms=storage.clock.now_ms())
        if properties.stored:
            stored = storage.definitions.declare_queue(name, QueueSettings.of(arguments, properties.arguments))
            if start != NOW:
                self._fill(stored, cursor)  # in the same commit
            return StoredQueue(stored, properties, arguments, storage)
        if not cursor.is_done:
            raise RequestError(
                f"queue {name!r}: only a stored queue can begin in the past", argument="x-start", queue=name
            )
        storage.state.topology.add_queue(name, properties.arguments)
        return TransientQueue(name, properties, arguments, self._around)

    def recover(self, stored: Queue) -> StoredQueue:
        """Create a queue from the store."""
        properties = QueueProperties(True, False, False, stored.declared.arguments)
        arguments = parse_stored(stored.name, stored.options.arguments)
        queue = StoredQueue(stored, properties, arguments, self._storage)
        if arguments.single_active_consumer:  # a consumer that holds messages continues before another one may begin
            queue.previous_holders = frozenset(entry.session for entry in stored.messages.in_flight.values())
        return queue
