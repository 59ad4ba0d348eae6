"""What the broker does on each message of a client. Errors of the caller are raised and become a Failed answer."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from ..errors import (
    AccessRefused,
    InvalidMessage,
    MessageTooLarge,
    NotFound,
    PreconditionFailed,
    RequestError,
    Unroutable,
)
from ..protocol import messages as m
from ..protocol.envelope import open_envelope
from ..protocol.queue_messages import Read
from ..protocol.topic_syntax import check_topic_pattern
from ..storage.queue_filters import FILTER
from ..storage.removals import Call
from . import (
    arguments,
    looking,
    queue_figures,
    reading,
    sending,
    settling,
    starts,
    workers,
)
from . import results as result_calls
from .arguments import MAX_NAME_BYTES
from .instance import Instance
from .maintenance import check_duties
from .model.getters import GetOne
from .model.queue import BrokerQueue, QueueProperties
from .model.queue_kinds import by_kind
from .model.sessions import Consumer, Session
from .pace import Pace, encoded

MAX_ARGUMENTS_BYTES = 60_000
MAX_ARGUMENTS_DEPTH = 20
_RESERVED_PREFIX = "amq."


def _check_arguments(arguments: dict[str, Any], what: str) -> None:
    """Arguments are stored as JSON.

    Raises:
        RequestError: they are no JSON, nested too deeply, or too long for a record.
    """
    level: list[Any] = [arguments]
    for _ in range(MAX_ARGUMENTS_DEPTH):
        level = [v for x in level if isinstance(x, (dict, list)) for v in (x.values() if isinstance(x, dict) else x)]
    if level:
        raise RequestError(f"the arguments of {what} are nested more than {MAX_ARGUMENTS_DEPTH} levels deep")
    try:
        size = len(json.dumps(arguments, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as exc:
        raise RequestError(f"the arguments of {what} can't be stored as JSON: {exc}") from exc
    if size > MAX_ARGUMENTS_BYTES:
        raise RequestError(f"the arguments of {what} have {size} bytes, the limit is {MAX_ARGUMENTS_BYTES}", size=size)


def _headers_of(msg: m.Publish) -> dict[Any, Any]:
    """What a headers exchange matches: the message's own headers, or their texts if it is no envelope."""
    opened = open_envelope(msg.envelope)
    return opened[3] if opened is not None else dict(msg.headers)


class Handlers:
    """The calls of one session."""

    def __init__(
        self,
        instance: Instance,
        session: Session,
        max_message_bytes: int,
        status: Callable[[], Awaitable[dict[str, Any]]],
    ) -> None:
        self.instance = instance
        self.engine = instance.engine
        self.topology = instance.engine.state.topology
        self.session = session
        self.max_message_bytes = max_message_bytes
        self._status = status

    # ------------------------------------------------------------------ publishing
    def publish(self, msg: m.Publish) -> None:
        instance, session = self.instance, self.session
        before = self.engine.operations.published(session.id, msg.seq)
        if before is not None or msg.seq in session.transient_publishes:
            latest = before is not None and before.last_sequence == msg.seq
            id, queues = (before.last_message_id, before.last_queues) if before is not None and latest else (0, -1)
            instance.outbox.reply(session, m.Published(msg.rid, id, queues))
            return
        self.check_publish(msg)
        targets = self.targets(msg)
        if not targets:
            if msg.mandatory:
                raise Unroutable(
                    f"no queue takes messages for exchange {msg.exchange!r} with routing key {msg.routing_key!r}",
                    exchange=msg.exchange,
                    routing_key=msg.routing_key,
                )
            instance.outbox.reply(session, m.Published(msg.rid, 0, 0))
            return
        instance.outbox.reply(session, m.Published(msg.rid, self.store(msg, targets), len(targets)))

    def check_publish(self, msg: m.Publish) -> None:
        """Refuse what can't be stored as it is said.

        Raises:
            MessageTooLarge, InvalidMessage: the text says what is wrong.
        """
        if len(msg.envelope) > self.max_message_bytes:
            size, limit = len(msg.envelope), self.max_message_bytes
            raise MessageTooLarge(f"the message has {size} bytes, the limit is {limit}", size=size, limit=limit)
        arguments.check_short(msg.routing_key, "routing key", InvalidMessage)
        if not 0 <= msg.priority <= 255:
            raise InvalidMessage(f"priority {msg.priority} is not within 0–255", priority=msg.priority)
        if not 0 < msg.seq < 1 << 63:
            raise InvalidMessage(f"publish number {msg.seq} is out of range", seq=msg.seq)
        for value in (msg.created_at_ms, msg.visible_at_ms, msg.ttl_ms):
            if not -1 <= value < 1 << 53:
                raise InvalidMessage(f"a time of {value} ms is out of range", value=value)

    def targets(self, msg: m.Publish) -> list[BrokerQueue]:
        """The queues that get it, each once.

        Raises:
            NotFound: no such exchange.
        """
        names = self.topology.route(msg.exchange, msg.routing_key, lambda: _headers_of(msg), msg.headers)
        queues = self.instance.queues
        return [q for q in map(queues.get, names) if q is not None and not q.deleting]

    def store(self, msg: m.Publish, targets: list[BrokerQueue]) -> int:
        """Put a message into these queues; returns its id."""
        instance = self.instance
        priority = 255 - msg.priority
        stored, transient = by_kind(targets)
        for queue in targets:
            if queue.is_bounded:
                instance.upkeep.check_room(queue, len(msg.envelope))
        if stored:
            self.engine.commits.check_room(len(msg.envelope))
            if msg.revocable:
                self.engine.results.note_revocable()
            id = self.engine.operations.publish(
                stored,
                msg.envelope,
                msg.headers,
                priority=priority,
                created_at=msg.created_at_ms,
                visible_at=msg.visible_at_ms,
                ttl_ms=msg.ttl_ms,
                session=self.session.id if msg.seq else b"",
                seq=msg.seq,
                total=len(targets),
            )
        else:
            id = instance.queues.transient_id()
            if msg.seq:
                self.session.note_transient(msg.seq)
        for each in transient:
            each.put(id, msg.envelope, priority, msg.visible_at_ms, msg.ttl_ms)
        for queue in targets:
            instance.queues.wake(queue)
            if queue.is_bounded or queue.messages.next_deadline:
                instance.upkeep.added(queue, id)
        instance.traffic.published += 1
        return id

    # ------------------------------------------------------------------ queues
    def filter_to_compile(self, message: m.DeclareQueue | Read) -> str | None:
        """The filter in a message that has not been compiled yet, if there is one."""
        if not isinstance(message, m.DeclareQueue):
            return message.selector
        known = message.passive or message.queue in self.instance.queues
        text = None if known else message.arguments.get(FILTER)
        return text if isinstance(text, str) else None

    def declare_queue(self, msg: m.DeclareQueue) -> None:
        name = msg.queue
        if msg.passive:
            self._queue_info(msg.rid, self._queue(name))
            return
        if not name:
            if msg.durable:
                raise RequestError("a durable queue needs a name: it could not be found again")
            name = f"amq.gen-{uuid.uuid4().hex}"
        arguments.check_name(name, "queue")
        _check_arguments(msg.arguments, f"queue {name!r}")
        if msg.strict:
            arguments.refuse_unknown(name, msg.arguments)
        properties = QueueProperties(msg.durable, msg.exclusive, msg.auto_delete, msg.arguments)
        queue = self.instance.queues.get(name)
        if queue is None:
            queue = self._create(name, properties, arguments.parse(name, msg.arguments))
        else:
            if queue.properties != properties:
                arguments.parse(name, msg.arguments)
            self._check_equal(queue, properties)
        self._queue_info(msg.rid, queue, arguments.unknown("queue", name, msg.arguments))

    def _create(self, name: str, properties: QueueProperties, parsed: arguments.QueueArguments) -> BrokerQueue:
        instance, state = self.instance, self.engine.state
        now = self.engine.clock.now_ms()
        cursor = starts.cursor(parsed.start, starts.NOW, next_id=state.next_id, now_ms=now)
        if not properties.stored and not cursor.is_done:
            raise RequestError(
                f"queue {name!r}: only a queue that is stored can begin in the past", argument="x-start", queue=name
            )
        queue = instance.queues[name] = instance.maker.declare(name, properties, parsed)
        if properties.stored and parsed.start != starts.NOW:
            instance.replays.start(queue.state(), cursor)  # in the same commit
        if properties.exclusive:
            queue.owner = self.session
        return queue

    def _check_equal(self, queue: BrokerQueue, properties: QueueProperties) -> None:
        self._check_owner(queue)
        for field, have, want in zip(properties._fields, queue.properties, properties, strict=True):
            if have == want:
                continue
            argument, ours, theirs = field, f"with {field}={have!r}", f"with {field}={want!r}"
            if field == "arguments":
                argument, ours, theirs = arguments.difference(queue.properties.arguments, properties.arguments)
            raise PreconditionFailed(
                f"queue {queue.name!r} exists {ours}, declared again {theirs}: delete it first or declare it alike",
                queue=queue.name,
                field=field,
                argument=argument,
            )

    def _check_owner(self, queue: BrokerQueue) -> None:
        if queue.owner is not None and queue.owner.client != self.session.client:
            raise AccessRefused(f"queue {queue.name!r} is exclusive to another connection", queue=queue.name)

    def _queue_info(self, rid: int, queue: BrokerQueue, warnings: list[str] | None = None) -> None:
        queue.used_at_ms = self.engine.clock.now_ms()
        for text in warnings or ():
            self.instance.warnings.warn(text)
        ready, consumers = len(queue.messages), len(queue.consumers)
        self.instance.outbox.reply(self.session, m.QueueInfo(rid, queue.name, ready, consumers, warnings or []))

    def _queue(self, name: str) -> BrokerQueue:
        queue = self.instance.queues.get(name)
        if queue is None or queue.deleting:
            arguments.check_name(name, "queue")
            raise NotFound(f"no queue {name!r} in instance {self.instance.name!r}: declare it first", queue=name)
        self._check_owner(queue)
        return queue

    async def delete_queue(self, msg: m.DeleteQueue) -> None:
        queue, call = self.instance.queues.get(msg.queue), Call(self.session.id, msg.rid)
        before = self.engine.removals.before(call)
        count = before.messages
        if queue is None:
            arguments.check_name(msg.queue, "queue")
        elif not before.is_over:
            self._check_owner(queue)
            if msg.if_unused and queue.consumers:
                raise PreconditionFailed(f"queue {queue.name!r} has {len(queue.consumers)} consumers", queue=queue.name)
            if msg.if_empty and len(queue.messages):
                raise PreconditionFailed(f"queue {queue.name!r} has {len(queue.messages)} messages", queue=queue.name)
            count = await self.instance.queues.delete(queue, call)
        self.instance.outbox.reply(self.session, m.Count(msg.rid, count))

    async def purge_queue(self, msg: m.PurgeQueue) -> None:
        count = await self._queue(msg.queue).purge(Call(self.session.id, msg.rid))
        self.instance.outbox.reply(self.session, m.Count(msg.rid, count))

    # ------------------------------------------------------------------ exchanges and bindings
    def declare_exchange(self, msg: m.DeclareExchange) -> None:
        if msg.passive:
            self.topology.get(msg.exchange)
        elif msg.exchange.startswith(_RESERVED_PREFIX) and msg.exchange not in self.topology.exchanges:
            raise AccessRefused(
                f"exchange names that begin with {_RESERVED_PREFIX!r} are reserved", exchange=msg.exchange
            )
        elif self._exchange_is_new(msg):
            if msg.durable:
                self.engine.definitions.declare_exchange(msg.exchange, msg.type, msg.auto_delete, msg.arguments)
            else:
                self.topology.add_exchange(msg.exchange, msg.type, False, msg.auto_delete, msg.arguments)
        warnings = arguments.unknown("exchange", msg.exchange, msg.arguments, known=())
        for text in warnings:
            self.instance.warnings.warn(text)
        self.instance.outbox.reply(self.session, m.Ok(msg.rid, warnings))

    def _exchange_is_new(self, msg: m.DeclareExchange) -> bool:
        if msg.exchange:
            arguments.check_name(msg.exchange, "exchange")
        _check_arguments(msg.arguments, f"exchange {msg.exchange!r}")
        return self.topology.check_declare(msg.exchange, msg.type, msg.durable, msg.auto_delete, msg.arguments)

    def delete_exchange(self, msg: m.DeleteExchange) -> None:
        exchange = self.topology.exchanges.get(msg.exchange)
        if msg.exchange == "" or msg.exchange.startswith(_RESERVED_PREFIX):
            raise AccessRefused(f"exchange {msg.exchange!r} can't be deleted", exchange=msg.exchange)
        if exchange is not None:
            if msg.if_unused and exchange.bindings:
                raise PreconditionFailed(f"exchange {msg.exchange!r} has bindings", exchange=msg.exchange)
            if exchange.durable:
                self.engine.definitions.delete_exchange(msg.exchange)
            else:
                self.topology.remove_exchange(msg.exchange)
        self._ok(msg.rid)

    def bind(self, msg: m.Bind) -> None:
        queue = self._queue(msg.queue)
        if msg.exchange == "":
            raise AccessRefused("queues can't be bound to the default exchange: it reaches every queue by its name")
        exchange = self.topology.get(msg.exchange)
        if len(msg.routing_key.encode()) > MAX_NAME_BYTES:
            raise RequestError(f"the routing key is over {MAX_NAME_BYTES} bytes", limit=MAX_NAME_BYTES)
        _check_arguments(msg.arguments, "the binding")
        self.topology.check_binding(msg.exchange, msg.arguments)
        if msg.checked and exchange.type == "topic":
            check_topic_pattern(msg.routing_key)
        if not self.topology.is_bound(msg.queue, msg.exchange, msg.routing_key, msg.arguments):
            queue.bind(exchange, msg.routing_key, msg.arguments)
            self.instance.replays.bound(queue.name)
        self._ok(msg.rid)

    def unbind(self, msg: m.Unbind) -> None:
        queue = self.instance.queues.get(msg.queue)
        exchange = self.topology.exchanges.get(msg.exchange)
        if queue is not None and exchange is not None:
            if self.topology.is_bound(msg.queue, msg.exchange, msg.routing_key, msg.arguments):
                queue.unbind(exchange, msg.routing_key, msg.arguments)
            self.instance.queues.drop_unused_exchange(msg.exchange)
        self._ok(msg.rid)

    def list_bindings(self, msg: m.ListBindings) -> None:
        self.instance.background.run(self.session, msg.rid, self._list_bindings(msg.rid))

    async def _list_bindings(self, rid: int) -> None:
        pace, answer = Pace(), m.Bindings(rid, [])
        async for queue, exchange, key, given in pace.over(self.topology.bindings()):
            answer.bindings.append(encoded((queue, exchange, key)))
            answer.arguments.append(given)
        async for e in pace.over(list(self.topology.exchanges.values())):
            answer.exchanges.append(encoded((e.name, e.type, e.durable, e.auto_delete, e.arguments)))
        self.instance.outbox.reply(self.session, answer)

    # ------------------------------------------------------------------ consuming
    def consume(self, msg: m.Consume) -> None:
        queue = self._queue(msg.queue)
        if len(msg.tag.encode()) > MAX_NAME_BYTES:  # every delivery carries it
            raise RequestError(f"the consumer tag is over {MAX_NAME_BYTES} bytes", limit=MAX_NAME_BYTES)
        channel = self.session.channel(msg.channel)
        if msg.tag in channel.consumers:
            raise PreconditionFailed(f"consumer tag {msg.tag!r} is in use on this channel", tag=msg.tag)
        if queue.consumers and (msg.exclusive or queue.consumers[0].exclusive):
            raise AccessRefused(f"queue {queue.name!r} has an exclusive consumer", queue=queue.name)
        priority = msg.arguments.get("x-priority", 0)
        arguments.check(arguments.CONSUMER_PRIORITY, priority, f"a consumer of queue {queue.name!r}")
        consumer = Consumer(self.session, channel, msg.tag, queue, msg.no_ack, msg.exclusive, priority)
        channel.consumers[msg.tag] = consumer
        queue.add_consumer(consumer)
        self.instance.queues.wake(queue)
        self._ok(msg.rid)

    def cancel(self, msg: m.Cancel) -> None:
        consumer = self.session.channel(msg.channel).consumers.get(msg.tag)
        if consumer is not None:
            self.instance.queues.remove_consumer(consumer)
        self._ok(msg.rid)

    def qos(self, msg: m.Qos) -> None:
        channel = self.session.channel(msg.channel)
        channel.prefetch = max(msg.prefetch, 0)
        for consumer in channel.consumers.values():
            self.instance.queues.wake(consumer.queue)
        if msg.rid:
            self._ok(msg.rid)

    def credit(self, msg: m.Credit) -> None:
        channel = self.session.channel(msg.channel)
        channel.credit = max(msg.count, 0)
        for consumer in channel.consumers.values():
            self.instance.queues.wake(consumer.queue)

    def get(self, msg: m.Get) -> None:
        queue = self._queue(msg.queue)
        queue.used_at_ms = self.engine.clock.now_ms()
        channel = self.session.channel(msg.channel)
        queue.getters.append(GetOne(self.session, channel, msg.rid, msg.no_ack, self.instance.outbox.reply))
        self.instance.queues.wake(queue)

    def settle(self, msg: m.Settle) -> None:
        if msg.outcome not in m.Outcome.__members__.values():
            raise RequestError(f"settle outcome {msg.outcome} is unknown")
        self.instance.leases.settle(self.session, msg.outcome, msg.leases)

    def close_channel(self, msg: m.CloseChannel) -> None:
        self.instance.leases.close_channel(self.session, msg.channel)
        self._ok(msg.rid)

    # ------------------------------------------------------------------ the session
    def goodbye(self, msg: m.Goodbye) -> None:
        self.instance.lifecycle.close(self.session, m.Outcome.RELEASE)

    def get_status(self, msg: m.GetStatus) -> None:
        self.instance.background.run(self.session, msg.rid, self._get_status(msg.rid))

    async def _get_status(self, rid: int) -> None:
        self.instance.outbox.reply(self.session, m.Status(rid, await self._status()))

    def maintain(self, msg: m.Maintain) -> None:
        """Answered when it is done; meanwhile everything else goes on."""
        check_duties(msg.duties)
        self.instance.background.run(self.session, msg.rid, self._maintain(msg))

    async def _maintain(self, msg: m.Maintain) -> m.Maintained:
        report = await self.instance.maintenance.run(
            msg.duties, self.session.name, again_in_seconds=msg.again_in_seconds
        )
        return m.Maintained(msg.rid, report)

    def heartbeat(self, msg: m.Heartbeat) -> None:
        """Nothing to do: that it came is what counts."""

    def _ok(self, rid: int) -> None:
        self.instance.outbox.reply(self.session, m.Ok(rid))

    # ------------------------------------------------------------------ finding the handler
    #: calls that wait for the store; one at a time, and definitions wait for them
    ADMIN: ClassVar[dict[type, Callable[[Handlers, Any], Awaitable[None]]]] = {
        m.DeleteQueue: delete_queue,
        m.PurgeQueue: purge_queue,
    }
    DIRECT: ClassVar[dict[type, Callable[[Handlers, Any], None]]] = {
        m.Publish: publish, m.Settle: settle, m.DeclareQueue: declare_queue, m.DeclareExchange: declare_exchange,
        m.DeleteExchange: delete_exchange, m.Bind: bind, m.Unbind: unbind, m.ListBindings: list_bindings,
        m.Consume: consume, m.Cancel: cancel, m.Qos: qos, m.Get: get, m.CloseChannel: close_channel,
        m.Goodbye: goodbye, m.GetStatus: get_status, m.Heartbeat: heartbeat, **result_calls.HANDLERS,

        m.Maintain: maintain, m.Credit: credit,
        **sending.HANDLERS, **reading.HANDLERS, **settling.HANDLERS, **looking.HANDLERS, **queue_figures.HANDLERS,
        **workers.HANDLERS,
    }  # fmt: skip
    DEFINITIONS = frozenset({m.DeclareQueue, m.DeclareExchange, m.DeleteExchange, m.Bind, m.Unbind, m.Consume, m.Get})

    async def run_admin(self, msg: Any) -> None:
        """Run a call under the admin lock."""
        async with self.instance.queues.lock:
            handler = self.ADMIN.get(type(msg))
            if handler is not None:
                await handler(self, msg)
            else:
                self.DIRECT[type(msg)](self, msg)
                await asyncio.sleep(0)
