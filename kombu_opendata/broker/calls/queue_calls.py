"""Calls that declare, delete, purge, list, alter, pause and resume queues."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import field

from ...errors import NotFound, PreconditionFailed, RequestError
from ...protocol import messages as m
from ...protocol.framing import encoded
from ...protocol.permissions import ALL_EXCHANGES, check_alteration, check_declaration
from ...protocol.queue_arguments import FILTER, PARTITION_BY
from ...storage.clock import Clock, TimeSlice
from ...storage.operations.repeated_requests import Call, RepeatedCalls
from ...storage.records.definitions import DELIVERIES, PUBLISHES
from ..delivery.queue_policies import QueuePolicies
from ..delivery.queue_registry import QueueMaker, Queues
from ..delivery.rate_limited_log import WarnOnce
from ..instance.queue_alterations import Alteration, AlteredMessages, alteration
from ..model import argument_checks
from ..model.name_checks import check_name, check_storable
from ..model.queue import BrokerQueue, QueueProperties
from ..model.sessions import Session
from .dispatch import BrokerCalls, Context, handles


class QueueCalls(BrokerCalls):
    """Calls about whole queues."""

    _queues: Queues
    _maker: QueueMaker
    _repeats: RepeatedCalls
    _policies: QueuePolicies
    _altered: AlteredMessages
    _clock: Clock
    _warnings: WarnOnce
    _altering: asyncio.Lock = field(default_factory=asyncio.Lock)

    def _filter_of(self, msg: m.DeclareQueue) -> str | None:
        """Return the filter of a queue that does not exist yet."""
        text = None if msg.passive or msg.queue in self._queues else msg.arguments.get(FILTER)
        return text if isinstance(text, str) else None

    @handles(m.DeclareQueue, filter_of=_filter_of)
    def declare_queue(self, call: Context, msg: m.DeclareQueue) -> None:
        name = msg.queue
        if msg.passive:
            self._answer(call, msg.rid, call.queue(name), [])
            return
        if not name:
            if msg.durable:
                raise RequestError("a durable queue needs a name, or it could not be found again")
            name = f"amq.gen-{uuid.uuid4().hex}"
            check_declaration(call.session.rights, name, msg.arguments)
        check_name(name, "queue")
        check_storable(msg.arguments, f"queue {name!r}")
        if msg.strict:
            argument_checks.refuse_unknown(name, msg.arguments)
        properties = QueueProperties(msg.durable, msg.exclusive, msg.auto_delete, msg.arguments)
        if PARTITION_BY in msg.arguments and not properties.stored:
            text = f"queue {name!r}: only a durable queue has partitions, which is neither exclusive nor auto-delete"
            raise RequestError(text, argument=PARTITION_BY, queue=name)
        queue = self._queues.get(name)
        if queue is None:
            if msg.again:
                raise NotFound(f"queue {name!r} was deleted", queue=name)
            self._check_room(call.session)
            parsed = argument_checks.parse(name, msg.arguments)
            if not call.session.rights.permits_all:
                self._queues.check_filter(call.session.user.name, name, msg.arguments)
            queue = self._maker.declare(name, properties, parsed)
            self._queues[name] = queue
            queue.creator = call.session.user.name
            if msg.exclusive:
                queue.owner = call.session
                call.session.owned.add(queue)
        else:
            if queue.properties != properties:
                argument_checks.parse(name, msg.arguments)
            call.check_owner(queue)
            _check_equal(queue, properties)
        msg.queue = name
        call.note(msg)
        self._answer(call, msg.rid, queue, argument_checks.unknown("queue", name, msg.arguments))

    def _check_room(self, session: Session) -> None:
        user, queues = session.quotas.user, self._queues
        if user.limits.queues is not None:
            user.check("queues", 1 + sum(queue.creator == session.user.name for queue in queues.values()))
        session.quotas.instance.check("queues", 1 + len(queues))

    def _answer(self, call: Context, rid: int, queue: BrokerQueue, warnings: list[str]) -> None:
        queue.used_at_ms = self._clock.now_ms()
        for text in warnings:
            self._warnings.warn(text)
        call.reply(m.QueueDeclared(rid, queue.name, len(queue.messages), len(queue.consumers), warnings))

    @handles(m.DeleteQueue)
    async def delete_queue(self, call: Context, msg: m.DeleteQueue) -> m.Count:
        async with self._queues.lock:
            queue, removal = self._queues.get(msg.queue), Call(call.session.id, msg.rid)
            before = self._repeats.before(removal)
            if queue is None:
                check_name(msg.queue, "queue")
            if queue is None or before.is_over:
                return m.Count(msg.rid, before.messages)
            call.check_owner(queue)
            if msg.if_unused and queue.consumers:
                raise PreconditionFailed(f"queue {queue.name!r} has {len(queue.consumers)} consumers", queue=queue.name)
            if msg.if_empty and len(queue.messages):
                raise PreconditionFailed(f"queue {queue.name!r} has {len(queue.messages)} messages", queue=queue.name)
            count = await self._queues.delete(queue, removal)
            call.audit("deleted queue %r, with %d messages", queue.name, count, queue=queue.name)
            return m.Count(msg.rid, count)

    @handles(m.PurgeQueue)
    async def purge_queue(self, call: Context, msg: m.PurgeQueue) -> m.Count:
        async with self._queues.lock:
            count = await call.queue(msg.queue).purge(Call(call.session.id, msg.rid))
            call.audit("purged queue %r of %d messages", msg.queue, count, queue=msg.queue)
            return m.Count(msg.rid, count)

    @handles(m.ListQueues)
    async def list_queues(self, call: Context, msg: m.ListQueues) -> m.QueueList:
        reply, rights = m.QueueList(msg.rid, [], []), call.session.rights
        async for queue in TimeSlice().over(list(self._queues.values())):
            if not queue.deleting and rights.may_see(queue.name):
                reply.queues.append(encoded((queue.name, *queue.properties, len(queue.consumers))))
                reply.created_at_ms.append(queue.counts.created_at_ms)
                reply.overrides.append(encoded(queue.overrides.arguments))
                since_ms = queue.overrides.paused_at_ms
                reply.paused.append((queue.is_paused, queue.refuses_publishes, since_ms))
        return reply

    @handles(m.AlterQueue)
    async def alter_queue(self, call: Context, msg: m.AlterQueue) -> m.QueueAltered:
        async with self._altering:
            queue = call.queue(msg.queue)
            after = alteration(queue, msg)
            check_alteration(call.session.rights, queue.name, queue.effective, after.effective)
            if not call.session.rights.permits_all:
                self._queues.check_filter(queue.creator, queue.name, after.effective)
            read = call.session.rights.read
            findings = await self._altered.find(queue, after, is_read=read[queue.name] or read[ALL_EXCHANGES])
            call.check_exists(queue)
            after = alteration(queue, msg)  # it may have been paused or resumed during the count
            if findings.lost and not msg.force:
                text = (
                    f"queue {queue.name!r}: nothing was changed, because {'; '.join(findings.notes)}: use force "
                    "(--force) to go ahead"
                )
                raise PreconditionFailed(text, queue=queue.name, **findings.counts)
            before = queue.effective
            if not msg.dry_run and queue.overrides != after.overrides:
                self._alter(call, queue, after)
            return m.QueueAltered(
                rid=msg.rid,
                declared=queue.properties.arguments,
                overrides=dict(after.overrides.arguments),
                before=before,
                after=after.effective,
                counts=findings.counts,
                notes=findings.notes,
            )

    def _alter(self, call: Context, queue: BrokerQueue, after: Alteration) -> None:
        old, new = queue.effective, after.effective
        names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        text = ", ".join(f"{name} from {old.get(name)!r} to {new.get(name)!r}" for name in names) or "no value differs"
        queue.override(after.overrides, after.parsed)
        queue.used_at_ms = self._clock.now_ms()
        self._policies.altered(queue)
        self._queues.wake(queue)
        call.audit("altered queue %r: %s", queue.name, text, queue=queue.name)

    @handles(m.PauseQueue)
    def pause_queue(self, call: Context, msg: m.PauseQueue) -> None:
        queue = call.queue(msg.queue)
        paused = queue.overrides.paused | DELIVERIES
        if msg.publishes:
            paused |= PUBLISHES
        self._pause(call, msg.rid, queue, paused)

    @handles(m.ResumeQueue)
    def resume_queue(self, call: Context, msg: m.ResumeQueue) -> None:
        queue = call.queue(msg.queue)
        paused = queue.overrides.paused & DELIVERIES if msg.publishes_only else 0
        self._pause(call, msg.rid, queue, paused)

    def _pause(self, call: Context, rid: int, queue: BrokerQueue, paused: int) -> None:
        before = queue.overrides
        if paused != before.paused:
            since = (before.paused_at_ms or self._clock.now_ms()) if paused else 0
            queue.override(before._replace(paused=paused, paused_at_ms=since), queue.arguments)
            queue.used_at_ms = self._clock.now_ms()
            what = {0: "resumed", DELIVERIES: "paused"}.get(paused, "paused, with its publishes,")
            call.audit("%s queue %r", what, queue.name, queue=queue.name)
            self._queues.wake(queue)
        since_ms, changed = queue.overrides.paused_at_ms, paused != before.paused
        call.answer_once(rid, m.QueuePauseReply(rid, queue.is_paused, queue.refuses_publishes, since_ms, changed))


def _check_equal(queue: BrokerQueue, properties: QueueProperties) -> None:
    """Raise :class:`PreconditionFailed` for a queue that exists with other properties.

    Arguments without effect are ignored. After an alteration, an application may declare either the original arguments
    or the arguments in effect.
    """
    for name, have, want in zip(properties._fields, queue.properties, properties, strict=True):
        if have == want:
            continue
        argument = name
        existing, requested = f"with {name}={have!r}", f"with {name}={want!r}"
        if name == "arguments":
            declared = argument_checks.with_effect(queue.properties.arguments, stored=properties.stored)
            altered = argument_checks.with_effect(queue.effective, stored=properties.stored)
            again = argument_checks.with_effect(properties.arguments, stored=properties.stored)
            if again in (declared, altered):
                continue
            argument, existing, requested = argument_checks.difference(declared, again)
        text = (
            f"queue {queue.name!r} exists {existing}, declared again {requested}: delete it, alter it or declare it "
            "alike"
        )
        raise PreconditionFailed(text, queue=queue.name, field=name, argument=argument)
