"""Calls that declare, delete and list exchanges and bindings, and test and explain the routing of a message."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ...errors import AccessRefused, NotFound, PreconditionFailed, RequestError, StoreError
from ...protocol import messages as m
from ...protocol.envelope import open_envelope
from ...protocol.framing import encoded
from ...protocol.permissions import check_stored_message
from ...protocol.topic_syntax import check_topic_pattern
from ...selectors import Selector, compile_selector
from ...selectors.selector import explain as explain_condition
from ...storage.clock import TimeSlice
from ...storage.commit.commits import Commits
from ...storage.messages.payloads import Payloads
from ...storage.operations.definitions import Definitions
from ...storage.read.queue_pages import QueuePages
from ...storage.records import keys
from ...storage.routing import header_match
from ...storage.routing.queue_filters import QueueDefinition, RouteBinding
from ...storage.routing.topology import Topology
from ...storage.state.store_state import StoreState
from ..delivery.queue_registry import Queues
from ..delivery.rate_limited_log import WarnOnce
from ..instance.replay_scheduler import ReplayScheduler
from ..model import argument_checks
from ..model.name_checks import MAX_NAME_BYTES, check_name, check_short, check_storable
from ..model.sessions import Session
from .dispatch import BrokerCalls, Context, check_range, handles
from .publish import PublishCalls

_RESERVED_PREFIX = "amq."
#: maximum number of explained bindings; matching bindings come first
MAX_BINDINGS = 50
_PARTS_OF_A_BINDING = 20

#: headers of the envelope; None if only the texts of the metadata are known
Typed = Mapping[Any, Any] | None


class ExchangeCalls(BrokerCalls):
    """Calls about exchanges, bindings and routing."""

    _state: StoreState
    _topology: Topology
    _definitions: Definitions
    _queues: Queues
    _replays: ReplayScheduler
    _publishing: PublishCalls
    _warnings: WarnOnce
    _commits: Commits
    _payloads: Payloads
    _pages: QueuePages

    @handles(m.DeclareExchange)
    def declare_exchange(self, call: Context, msg: m.DeclareExchange) -> None:
        if msg.passive or msg.again:
            self._topology.get(msg.exchange)
        if not msg.passive:
            self._declare(msg)
        warnings = argument_checks.unknown("exchange", msg.exchange, msg.arguments, known=())
        for text in warnings:
            self._warnings.warn(text)
        call.note(msg)
        call.reply(m.Ok(msg.rid, warnings))

    def _declare(self, msg: m.DeclareExchange) -> None:
        if msg.exchange.startswith(_RESERVED_PREFIX) and msg.exchange not in self._topology.exchanges:
            raise AccessRefused(
                f"exchange names that begin with {_RESERVED_PREFIX!r} are reserved", exchange=msg.exchange
            )
        if msg.exchange:
            check_name(msg.exchange, "exchange")
        check_storable(msg.arguments, f"exchange {msg.exchange!r}")
        if self._topology.check_declare(msg.exchange, msg.type, msg.durable, msg.auto_delete, msg.arguments):
            if msg.durable:
                self._definitions.declare_exchange(msg.exchange, msg.type, msg.auto_delete, msg.arguments)
            else:
                self._topology.add_exchange(msg.exchange, msg.type, False, msg.auto_delete, msg.arguments)

    @handles(m.DeleteExchange)
    def delete_exchange(self, call: Context, msg: m.DeleteExchange) -> None:
        exchange = self._topology.exchanges.get(msg.exchange)
        if msg.exchange == "" or msg.exchange.startswith(_RESERVED_PREFIX):
            raise AccessRefused(f"exchange {msg.exchange!r} can't be deleted", exchange=msg.exchange)
        if exchange is not None:
            if msg.if_unused and exchange.bindings:
                raise PreconditionFailed(f"exchange {msg.exchange!r} has bindings", exchange=msg.exchange)
            self._queues.delete_exchange(exchange)
            call.audit("deleted exchange %r", msg.exchange)
        call.reply(m.Ok(msg.rid))

    @handles(m.Bind)
    def bind(self, call: Context, msg: m.Bind) -> None:
        queue = call.queue(msg.queue)
        if msg.exchange == "":
            raise AccessRefused("queues can't be bound to the default exchange: it reaches every queue by its name")
        exchange = self._topology.get(msg.exchange)
        check_short(msg.routing_key, "routing key")
        check_storable(msg.arguments, "the binding")
        self._topology.check_binding(msg.exchange, msg.arguments)
        if msg.checked and exchange.type == "topic":
            check_topic_pattern(msg.routing_key)
        if not self._topology.is_bound(msg.queue, msg.exchange, msg.routing_key, msg.arguments):
            if msg.again:
                raise NotFound(f"queue {msg.queue!r} is not bound to exchange {msg.exchange!r} by this key any more")
            self._check_room(call.session)
            queue.binds_in(exchange).bind(queue.name, exchange.name, msg.routing_key, msg.arguments)
            self._replays.bound(queue.name)
        # other exchanges ignore the arguments of a binding, with which a client could fill the memory
        call.note(msg if exchange.type == "headers" else replace(msg, arguments={}))
        call.reply(m.Ok(msg.rid))

    def _check_room(self, session: Session) -> None:
        user, topology = session.quotas.user, self._topology
        if user.limits.bindings is not None:
            created = (queue.name for queue in self._queues.values() if queue.creator == session.user.name)
            user.check("bindings", 1 + sum(topology.bindings_of[name] for name in created))
        session.quotas.instance.check("bindings", 1 + topology.binding_count)

    @handles(m.Unbind)
    def unbind(self, call: Context, msg: m.Unbind) -> None:
        queue = self._queues.get(msg.queue)
        exchange = self._topology.exchanges.get(msg.exchange)
        if queue is not None and exchange is not None:
            call.check_owner(queue)
            self._topology.check_binding(msg.exchange, msg.arguments)
            if self._topology.is_bound(msg.queue, msg.exchange, msg.routing_key, msg.arguments):
                queue.binds_in(exchange).unbind(queue.name, exchange.name, msg.routing_key, msg.arguments)
                arguments = msg.arguments if exchange.type == "headers" else {}
                self._queues.undeclare(m.Undeclared(msg.queue, msg.exchange, msg.routing_key, arguments))
            self._queues.drop_unused_exchange(msg.exchange)
        call.reply(m.Ok(msg.rid))

    @handles(m.ListBindings)
    async def list_bindings(self, call: Context, msg: m.ListBindings) -> m.Bindings:
        pace = TimeSlice()
        answer = m.Bindings(msg.rid, [])
        may_see = call.session.rights.may_see
        async for queue, exchange, key, arguments in pace.over(self._topology.bindings()):
            if may_see(queue):
                answer.bindings.append(encoded((queue, exchange, key)))
                answer.arguments.append(arguments)
        async for e in pace.over(list(self._topology.exchanges.values())):
            if may_see(e.name):
                answer.exchanges.append(encoded((e.name, e.type, e.durable, e.auto_delete, e.arguments)))
        return answer

    @handles(m.AskRoutes)
    def ask_routes(self, call: Context, msg: m.AskRoutes) -> None:
        """Route a message without storing it."""
        check_short(msg.routing_key, "routing key")
        message = m.Publish(0, 1, msg.exchange, msg.routing_key, msg.envelope, {}, 0, 0)
        self._publishing.check(message, call.session)
        names = [queue.name for queue in self._publishing.targets(message)]
        visible_names = list(filter(call.session.rights.may_see, names))
        call.reply(m.Routed(msg.rid, visible_names, len(names) - len(visible_names)))

    @handles(m.Explain)
    async def explain(self, call: Context, msg: m.Explain) -> m.Explained:
        if not msg.queue:
            if not msg.filter:
                raise RequestError("nothing to explain: give a queue or a filter")
        elif msg.filter:
            raise RequestError("give a queue or a filter, not both: a queue has its own filter")
        if msg.message_id < 0:
            return m.Explained(msg.rid, await self._report(call, msg, msg.headers, None))
        if msg.headers:
            raise RequestError("give a message id or headers, not both")
        check_range("a message id", msg.message_id, 0, keys.MAX_MESSAGE_ID - 1)
        headers = await self._metadata(msg.message_id)
        check_stored_message(call.session.rights, headers)
        typed = await self._typed_headers(msg.message_id)
        return m.Explained(msg.rid, await self._report(call, msg, headers, typed))

    async def _metadata(self, id: int) -> dict[str, str]:
        about = await self._pages.metadata_of(id)
        if about is None and id < self._state.next_id:  # a staged row may be in the journal only
            await self._commits.catch_up()
            about = await self._pages.metadata_of(id)
        if about is None:
            text = f"no message {id} is stored: it was never published, only transient queues got it, or it has expired"
            raise NotFound(text, message_id=id)
        return dict(about.headers)

    async def _typed_headers(self, id: int) -> Typed:
        """Return the typed headers, which a headers exchange compares; the metadata has only texts."""
        try:
            envelope = await self._payloads.read(id)
        except StoreError:
            return None
        fields = open_envelope(envelope or b"")
        return None if fields is None else fields[3]

    async def _report(self, call: Context, msg: m.Explain, headers: dict[str, str], typed: Typed) -> dict[str, Any]:
        """Explain in a thread, as a filter or thousands of bindings with many parts would block the event loop."""
        if not msg.queue:
            return await asyncio.to_thread(_filter_report, compile_selector(msg.filter), headers)
        name = call.queue(msg.queue).name
        definition, is_routed = self._topology.definition_of(name), self._is_routed(name, headers, typed)
        return await asyncio.to_thread(_queue_report, name, definition, is_routed, headers, typed)

    def _is_routed(self, queue: str, headers: dict[str, str], typed: Typed) -> bool:
        exchange, key = headers.get("exchange", ""), headers.get("routing_key", "")
        if len(key) > MAX_NAME_BYTES:
            return False  # no message has such a key
        header_values = headers if typed is None else typed
        try:
            return queue in self._topology.route(exchange, key, lambda: header_values, headers)
        except NotFound:
            return False


def _filter_report(selector: Selector, headers: dict[str, str]) -> dict[str, Any]:
    explanation = selector.explain(headers)
    return {"matches": explanation.value is True, "filter": explanation.to_dict()}


def _queue_report(
    name: str, definition: QueueDefinition, is_routed: bool, headers: dict[str, str], typed: Typed
) -> dict[str, Any]:
    matches = [(binding, _matches(binding, headers, typed)) for binding in definition.bindings]
    matches.sort(key=lambda match: not match[1])
    queue_filter = definition.filter
    return {
        "queue": name,
        "matches": is_routed,
        "mode": None if queue_filter is None else queue_filter.mode,
        "filter": None if queue_filter is None else queue_filter.selector.explain(headers).to_dict(),
        "bindings": [_explained(binding, is_match, headers) for binding, is_match in matches[:MAX_BINDINGS]],
        "bindings_omitted": max(0, len(matches) - MAX_BINDINGS),
    }


def _matches(binding: RouteBinding, headers: dict[str, str], typed: Typed) -> bool:
    if binding.type == "headers" and typed is not None:
        return headers.get("exchange") == binding.exchange and header_match.matches(binding.arguments, typed)
    return explain_condition(binding.condition, headers, max_parts=1).value is True


def _explained(binding: RouteBinding, is_match: bool, headers: dict[str, str]) -> dict[str, Any]:
    explanation = explain_condition(binding.condition, headers, max_parts=_PARTS_OF_A_BINDING)
    return {
        "exchange": binding.exchange, "type": binding.type, "routing_key": binding.routing_key,
        "matches": is_match, "explanation": explanation.to_dict(),
    }  # fmt: skip
