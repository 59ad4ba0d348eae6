"""Calls that declare, delete and list exchanges and bindings, and test the routing of a message."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from ...errors import AccessRefused, NotFound, PreconditionFailed, RequestError
from ...protocol import messages as m
from ...protocol.messages import queue_messages as q
from ...protocol.topic_syntax import check_topic_pattern
from ...storage.operations.definitions import Definitions
from ...storage.routing.topology import Topology
from ..delivery.queues import Queues
from ..delivery.rate_limited_log import WarnOnce
from ..delivery.time_slices import TimeSlice, encoded
from ..instance.replay_scheduler import ReplayScheduler
from ..model import queue_arguments
from ..model.name_checks import MAX_NAME_BYTES, check_name, check_short, check_storable
from ..model.sessions import Session
from .dispatch.context import Context
from .dispatch.registry import handles
from .publish import PublishCalls

_RESERVED_PREFIX = "amq."


@dataclass(frozen=True, slots=True)
class ExchangeCalls:
    """The calls about exchanges and bindings."""

    _topology: Topology
    _definitions: Definitions
    _queues: Queues
    _replays: ReplayScheduler
    _publishing: PublishCalls
    _warnings: WarnOnce

    # ------------------------------------------------------------------ exchanges
    @handles(m.DeclareExchange)
    def declare_exchange(self, call: Context, msg: m.DeclareExchange) -> None:
        if msg.passive or msg.again:
            self._topology.get(msg.exchange)
        if not msg.passive:
            self._declare(msg)
        warnings = queue_arguments.unknown("exchange", msg.exchange, msg.arguments, known=())
        for text in warnings:
            self._warnings.warn(text)
        call.note(msg)
        call.reply(m.Ok(msg.rid, warnings))

    def _declare(self, msg: m.DeclareExchange) -> None:
        if msg.exchange.startswith(_RESERVED_PREFIX) and msg.exchange not in self._topology.exchanges:
            raise AccessRefused(
                f"exchange names that begin with {_RESERVED_PREFIX!r} are reserved", exchange=msg.exchange
            )
        if self._is_new(msg):
            if msg.durable:
                self._definitions.declare_exchange(msg.exchange, msg.type, msg.auto_delete, msg.arguments)
            else:
                self._topology.add_exchange(msg.exchange, msg.type, False, msg.auto_delete, msg.arguments)

    def _is_new(self, msg: m.DeclareExchange) -> bool:
        if msg.exchange:
            check_name(msg.exchange, "exchange")
        check_storable(msg.arguments, f"exchange {msg.exchange!r}")
        return self._topology.check_declare(msg.exchange, msg.type, msg.durable, msg.auto_delete, msg.arguments)

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

    # ------------------------------------------------------------------ bindings
    @handles(m.Bind)
    def bind(self, call: Context, msg: m.Bind) -> None:
        queue = call.queue(msg.queue)
        if msg.exchange == "":
            raise AccessRefused("queues can't be bound to the default exchange: it reaches every queue by its name")
        exchange = self._topology.get(msg.exchange)
        if len(msg.routing_key.encode()) > MAX_NAME_BYTES:
            raise RequestError(f"the routing key is over {MAX_NAME_BYTES} bytes", limit=MAX_NAME_BYTES)
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
        # at other exchanges, arguments make no other binding: a client could fill the memory with them
        call.note(msg if exchange.type == "headers" else replace(msg, arguments={}))
        call.reply(m.Ok(msg.rid))

    def _check_room(self, session: Session) -> None:
        """Raise :class:`LimitExceeded` if another binding would exceed the limit."""
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
            if self._topology.is_bound(msg.queue, msg.exchange, msg.routing_key, msg.arguments):
                queue.binds_in(exchange).unbind(queue.name, exchange.name, msg.routing_key, msg.arguments)
                arguments = msg.arguments if exchange.type == "headers" else {}
                self._queues.undeclare(m.Undeclared(msg.queue, msg.exchange, msg.routing_key, arguments))
            self._queues.drop_unused_exchange(msg.exchange)
        call.reply(m.Ok(msg.rid))

    # ------------------------------------------------------------------ listing and testing
    @handles(m.ListBindings)
    async def list_bindings(self, call: Context, msg: m.ListBindings) -> m.Bindings:
        pace, answer, may_see = TimeSlice(), m.Bindings(msg.rid, []), call.session.rights.may_see
        async for queue, exchange, key, arguments in pace.over(self._topology.bindings()):
            if may_see(queue) or may_see(exchange):
                answer.bindings.append(encoded((queue, exchange, key)))
                answer.arguments.append(arguments)
        async for e in pace.over(list(self._topology.exchanges.values())):
            if may_see(e.name):
                answer.exchanges.append(encoded((e.name, e.type, e.durable, e.auto_delete, e.arguments)))
        return answer

    @handles(q.AskRoutes)
    def ask_routes(self, call: Context, msg: q.AskRoutes) -> None:
        """Route a message without storing it."""
        check_short(msg.routing_key, "routing key")
        message = m.Publish(0, 1, msg.exchange, msg.routing_key, msg.envelope, {}, 0, 0)
        self._publishing.check(message, call.session)
        names, may_see = [queue.name for queue in self._publishing.targets(message)], call.session.rights.may_see
        visible_names = list(filter(may_see, names))
        call.reply(q.Routed(msg.rid, visible_names, len(names) - len(visible_names)))
