"""Checks of exchanges, bindings and the resulting filters, of routing cursors, and of idempotency keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...selectors import SelectorError, compile_selector
from ...storage.records import keys
from ...storage.records.idempotency import Sending
from ...storage.records.keys import ParsedKey, RecordKind
from ...storage.records.kinds import FIRST_TRANSIENT_ID
from ...storage.records.routing_cursor import Cursor
from ...storage.routing.topology import EXCHANGE_TYPES, Topology
from .family import CheckContext, Family


class TopologyFamily(Family):
    """Family of exchanges and bindings. Collects all of them, as a broker does."""

    kinds = (RecordKind.EXCHANGE, RecordKind.BINDING)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._topology = Topology()
        self._bindings: list[tuple[ParsedKey, bytes, dict[str, Any]]] = []

    def record(self, key: ParsedKey, raw: bytes, value: Any) -> None:
        if key.kind is RecordKind.BINDING:
            self._bindings.append((key, raw, value))
            return
        if value.type not in EXCHANGE_TYPES or not key.name:
            self.add("exchange-implausible", f"exchange {key.name!r} has the type {value.type!r}", key=raw)
        if not value.durable:
            self.add("exchange-implausible", f"exchange {key.name!r} is stored but not durable", key=raw)
        self._topology.add_exchange(key.name or "", *value)

    async def finish(self) -> None:
        for name, queue in self.context.queues.items():
            if queue.options is not None:
                self._topology.add_queue(name, queue.overrides.over(queue.options.arguments))
        for key, raw, arguments in self._bindings:
            self._bind(key, raw, arguments)
        self._filters()

    def _bind(self, key: ParsedKey, raw: bytes, arguments: dict[str, Any]) -> None:
        exchange, queue, routing_key = key.name or "", key.queue or "", key.routing_key or ""
        definition = self._topology.exchanges.get(exchange)
        if definition is None and not self.context.sees(RecordKind.EXCHANGE):
            return
        for entity, name, exists in (
            ("exchange", exchange, definition is not None),
            ("queue", queue, self.context.exists(queue)),
        ):
            if not exists:
                text = f"a binding of queue {queue!r} to exchange {exchange!r}: there is no {entity} {name!r}"
                self.add("binding-orphan", text, key=raw, queue=queue)
                return
        assert definition is not None
        if keys.binding_key(exchange, queue, routing_key, definition.identity(arguments)) != raw:
            text = f"a binding of queue {queue!r} to {exchange!r} has a key that differs from its arguments {arguments}"
            self.add("key-value-mismatch", text, key=raw, queue=queue)
        self._topology.bind(queue, exchange, routing_key, arguments)

    def _filters(self) -> None:
        if not self.context.sees(RecordKind.EXCHANGE, RecordKind.BINDING):
            return
        for name, queue in self.context.queues.items():
            if queue.config is None or queue.options is None:
                continue
            stored, expected = queue.config.filter, self._topology.filter_of(name)
            if not _same(stored, expected) and not self._has_transient_terms(stored, expected):
                text = f"queue {name!r} has the filter {stored!r}, but its bindings say {expected!r}"
                self.add("filter-differs", text, key=keys.config_key(name), queue=name)

    def _has_transient_terms(self, stored: str, expected: str) -> bool:
        """Return True if the stored filter differs only by terms of bindings to exchanges that are not stored."""
        more = [term for term in _terms(stored) if term not in _terms(expected)]
        exchanges = self._topology.exchanges
        return set(_terms(expected)) <= set(_terms(stored)) and all(
            not any(term.startswith(f"exchange = '{name}'") for name in exchanges) for term in more
        )


def _terms(text: str) -> list[str]:
    """Return the sorted terms of a filter; a broker lists bindings in the order of their creation."""
    return sorted(term.strip("()") for term in text.split(" OR "))


def _same(stored: str, expected: str) -> bool:
    return stored == expected or _terms(stored) == _terms(expected)


class RoutingFamily(Family):
    """Family of cursors and idempotency keys. Collects the cursors, of which a queue has at most one."""

    kinds = (RecordKind.CURSOR, RecordKind.IDEMPOTENCY)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._cursors: list[tuple[str, bytes, Cursor]] = []

    def record(self, key: ParsedKey, raw: bytes, value: Any) -> None:
        if key.kind is RecordKind.CURSOR:
            self._cursors.append((key.name or "", raw, value))
        else:
            self._sending(raw, value)

    def _sending(self, raw: bytes, sending: Sending) -> None:
        """Check that the ids in the reply have been assigned and that each has a destination, or all share one."""
        end = self.context.block_end
        wrong = [id for id in sending.ids if id < -1 or (end is not None and end <= id < FIRST_TRANSIENT_ID)]
        if wrong:
            text = f"an idempotency key stands for message {wrong[0]}, whose id has not been assigned yet"
            self.add("idempotency-wrong", text, key=raw)
        if len(sending.queues) not in (1, len(sending.ids)):
            text = f"an idempotency key stands for {len(sending.ids)} messages and {len(sending.queues)} destinations"
            self.add("idempotency-wrong", text, key=raw)

    async def finish(self) -> None:
        for queue, raw, cursor in self._cursors:
            wrong = "; ".join(self._cursor(queue, cursor))
            if wrong:
                self.add("cursor-wrong", f"the routing cursor of queue {queue!r}: {wrong}", key=raw, queue=queue)

    def _cursor(self, queue: str, cursor: Cursor) -> Iterator[str]:
        if not self.context.exists(queue):
            yield "there is no such queue"
        if cursor.position < cursor.start:
            yield f"it is at {cursor.position}, before its start {cursor.start}"
        end = self.context.block_end
        if end is not None and cursor.end > end:
            yield f"it ends at {cursor.end}, but ids from {end} on have not been assigned yet"
        if cursor.routed > cursor.seen:
            yield f"it routed {cursor.routed} messages but examined only {cursor.seen}"
        try:
            if cursor.selector:
                compile_selector(cursor.selector)
        except SelectorError as exc:
            yield f"its selector is not valid ({exc.text})"
