"""Transient definitions of a session: exchanges, queues and bindings that the broker keeps only in memory.

The client declares them again after a restart of the broker. The broker records the same definitions for each session,
and reports deletions by other clients as :class:`.Undeclared`, so that the client does not declare deleted entities
again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeAlias

from .messages import Bind, DeclareExchange, DeclareQueue, DeleteExchange, DeleteQueue, Unbind, Undeclared

Declaration: TypeAlias = DeclareExchange | DeclareQueue | Bind
#: routing key, arguments
_Key: TypeAlias = tuple[str, str]


class Declared:
    """Transient exchanges and queues, and all bindings of these exchanges and queues."""

    __slots__ = ("_bindings", "_exchanges", "_queues")

    def __init__(self) -> None:
        self._exchanges: dict[str, DeclareExchange] = {}
        self._queues: dict[str, DeclareQueue] = {}
        self._bindings: dict[str, dict[str, dict[_Key, Bind]]] = {}  # by queue, then by exchange

    def note(self, message: object, name: str = "") -> None:
        """Apply a successful call; ``name`` is the queue's name in the reply, which the broker may have generated."""
        if isinstance(message, DeclareQueue):
            if not message.passive and (not message.durable or message.exclusive or message.auto_delete):
                message.queue = name or message.queue
                self._queues[message.queue] = message
        elif isinstance(message, DeclareExchange):
            if not message.passive and (not message.durable or message.auto_delete):
                self._exchanges[message.exchange] = message
        elif isinstance(message, Bind):
            if message.queue in self._queues or message.exchange in self._exchanges:
                self._bindings.setdefault(message.queue, {}).setdefault(message.exchange, {})[_key(message)] = message
        elif isinstance(message, Unbind):
            self._forget_binding(message.queue, message.exchange, _key(message))
        elif isinstance(message, DeleteQueue):
            self.forget_queue(message.queue)
        elif isinstance(message, DeleteExchange):
            self._forget_exchange(message.exchange)

    def forget(self, entity: Undeclared | Declaration) -> bool:
        """Delete the definitions of an entity; return True if there were any."""
        if isinstance(entity, DeclareExchange) or (isinstance(entity, Undeclared) and not entity.queue):
            return self._forget_exchange(entity.exchange)
        if isinstance(entity, DeclareQueue) or not entity.exchange:
            return self.forget_queue(entity.queue)
        return self._forget_binding(entity.queue, entity.exchange, _key(entity))

    def forget_queue(self, queue: str) -> bool:
        bindings = self._bindings.pop(queue, None)
        return self._queues.pop(queue, None) is not None or bindings is not None

    def _forget_exchange(self, exchange: str) -> bool:
        bound_queues = [queue for queue, bindings in self._bindings.items() if exchange in bindings]
        for queue in bound_queues:
            self._forget_bindings(queue, exchange)
        return self._exchanges.pop(exchange, None) is not None or bool(bound_queues)

    def _forget_binding(self, queue: str, exchange: str, key: _Key) -> bool:
        """Delete a binding. If none matches a key without arguments, delete all bindings of its routing key.

        Only a headers exchange distinguishes bindings by their arguments.
        """
        bindings = self._bindings.get(queue, {}).get(exchange, {})
        matches = (
            [key]
            if key in bindings
            else [candidate for candidate in bindings if candidate[0] == key[0] and key[1] == "[]"]
        )
        for candidate in matches:
            del bindings[candidate]
        if matches and not bindings:
            self._forget_bindings(queue, exchange)
        return bool(matches)

    def _forget_bindings(self, queue: str, exchange: str) -> None:
        del self._bindings[queue][exchange]
        if not self._bindings[queue]:
            del self._bindings[queue]

    def is_auto_delete(self, queue: str) -> bool:
        """Return True if the broker deletes the queue with its last consumer."""
        declared = self._queues.get(queue)
        return declared is not None and declared.auto_delete

    def declarations(self) -> Iterator[Declaration]:
        """Yield all declarations, in an order that the broker accepts."""
        yield from self._exchanges.values()
        yield from self._queues.values()
        for by_exchange in self._bindings.values():
            for bindings in by_exchange.values():
                yield from bindings.values()

    def ended_with_session(self, consumed: Collection[str]) -> list[Declaration]:
        """Return the declarations that end with a session that consumes from the queues ``consumed``.

        These are its exclusive queues, the auto-delete queues among ``consumed``, their bindings, and the auto-delete
        exchanges of these bindings.
        """
        queues = [q for q in self._queues.values() if q.exclusive or (q.auto_delete and q.queue in consumed)]
        ended: list[Declaration] = [*queues]
        for queue in queues:
            for exchange, bindings in self._bindings.get(queue.queue, {}).items():
                ended += bindings.values()
                if exchange in self._exchanges and self._exchanges[exchange].auto_delete:
                    ended.append(self._exchanges[exchange])
        return ended


def _key(message: Bind | Unbind | Undeclared) -> _Key:
    return message.routing_key, repr(sorted(message.arguments.items(), key=lambda item: item[0]))
