"""Definitions of a session that its broker keeps only in memory: transient exchanges and queues, and their bindings.

The client declares them again after a restart of the broker. The broker keeps the same definitions for each session,
and reports deletions by other clients as :class:`.Undeclared`, so that the client does not declare the deleted entities
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
    """Transient exchanges and queues, and the bindings that contain one of them."""

    __slots__ = ("_bindings", "_exchanges", "_queues")

    def __init__(self) -> None:
        self._exchanges: dict[str, DeclareExchange] = {}
        self._queues: dict[str, DeclareQueue] = {}
        self._bindings: dict[str, dict[str, dict[_Key, Bind]]] = {}  # by queue, then by exchange

    def note(self, message: object, name: str = "") -> None:
        """Record or forget the declarations and deletions of a successful call.

        Args:
            name: the queue's name in the broker's reply, which may be generated.
        """
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

    def forget(self, gone: Undeclared | Declaration) -> bool:
        """Forget a deleted entity; return True if the session had declared some of it."""
        if isinstance(gone, DeclareExchange) or (isinstance(gone, Undeclared) and not gone.queue):
            return self._forget_exchange(gone.exchange)
        if isinstance(gone, DeclareQueue) or not gone.exchange:
            return self.forget_queue(gone.queue)
        return self._forget_binding(gone.queue, gone.exchange, _key(gone))

    def forget_queue(self, queue: str) -> bool:
        """Forget a queue and its bindings."""
        bound = self._bindings.pop(queue, None)
        return self._queues.pop(queue, None) is not None or bound is not None

    def _forget_exchange(self, exchange: str) -> bool:
        bound = [queue for queue, bindings in self._bindings.items() if exchange in bindings]
        for queue in bound:
            self._forget_bindings(queue, exchange)
        return self._exchanges.pop(exchange, None) is not None or bool(bound)

    def _forget_binding(self, queue: str, exchange: str, key: _Key) -> bool:
        """Forget a binding, or all bindings of its routing key if its arguments are unknown and none are given.

        Only a headers exchange distinguishes bindings by their arguments.
        """
        bindings = self._bindings.get(queue, {}).get(exchange, {})
        matches = [key] if key in bindings else [each for each in bindings if each[0] == key[0] and key[1] == "[]"]
        for each in matches:
            del bindings[each]
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
        """Return the declarations that end with a session: its exclusive queues, and its auto-delete queues in use.

        The result includes their bindings, and the auto-delete exchanges of these bindings.

        Args:
            consumed: the queues that the session consumes from.
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
