"""The topology that a session declared and that ends with its connection: a resume declares it again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from ...protocol.messages import Bind, DeclareExchange, DeclareQueue, DeleteExchange, DeleteQueue, Unbind

Declaration: TypeAlias = DeclareExchange | DeclareQueue | Bind


class Declared:
    """Transient exchanges and queues, and the bindings that one of them is part of."""

    def __init__(self) -> None:
        self._exchanges: dict[str, DeclareExchange] = {}
        self._queues: dict[str, DeclareQueue] = {}
        self._bindings: dict[tuple[str, str, str, str], Bind] = {}

    def note(self, message: object, name: str = "") -> None:
        """A call succeeded: remember or forget what it declared.

        Args:
            name: the queue's name as the broker answered it, which may have generated it.
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
                self._bindings[_key(message)] = message
        elif isinstance(message, Unbind):
            self._forget_binding(message)
        elif isinstance(message, DeleteQueue):
            self.forget_queue(message.queue)
        elif isinstance(message, DeleteExchange):
            self._exchanges.pop(message.exchange, None)
            self._bindings = {key: b for key, b in self._bindings.items() if key[1] != message.exchange}

    def forget_queue(self, queue: str) -> None:
        """A queue is gone, and its bindings with it."""
        self._queues.pop(queue, None)
        self._bindings = {key: b for key, b in self._bindings.items() if key[0] != queue}

    def _forget_binding(self, message: Unbind) -> None:
        """Without arguments, all bindings of this key: only a headers exchange tells them apart by their arguments."""
        gone = _key(message)
        if gone not in self._bindings and not message.arguments:
            self._bindings = {key: b for key, b in self._bindings.items() if key[:3] != gone[:3]}
        self._bindings.pop(gone, None)

    def is_auto_delete(self, queue: str) -> bool:
        """Whether the broker deletes the queue with its last consumer."""
        declared = self._queues.get(queue)
        return declared is not None and declared.auto_delete

    def declarations(self) -> Iterator[Declaration]:
        """All declarations, in an order that the broker accepts."""
        yield from self._exchanges.values()
        yield from self._queues.values()
        yield from self._bindings.values()


def _key(message: Bind | Unbind) -> tuple[str, str, str, str]:
    arguments = sorted(message.arguments.items(), key=lambda item: item[0])
    return message.queue, message.exchange, message.routing_key, repr(arguments)
