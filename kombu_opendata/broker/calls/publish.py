"""Calls that publish: they check a message, route it, and put it into its queues."""

from __future__ import annotations

from ...errors import InvalidMessage, MessageTooLarge, RequestError, UniqueViolation, Unroutable
from ...protocol import messages as m
from ...protocol.envelope import SPARK_JOB, SPARK_MESSAGE, broker_headers, headers_of, open_properties
from ...protocol.permissions import RESULTS, STAGED_JOBS
from ...protocol.revocation import CONTROL_EXCHANGE, PROPERTY, revoked_ids
from ...protocol.unique_key import HEADER, OnConflict, UniqueKey
from ...storage.clock import Clock
from ...storage.commit.commits import Commits
from ...storage.operations.message_operations import Operations
from ...storage.operations.staged_jobs import Staging
from ...storage.operations.task_results import ResultStore
from ...storage.operations.unique_keys import Holder, UniqueKeys, decide
from ...storage.records.idempotency import unique_name_of
from ...storage.records.payload_places import EnvelopePlace
from ...storage.routing.topology import Topology
from ..access.rights import Rights
from ..delivery.instance_core import Traffic
from ..delivery.outbox import Outbox
from ..delivery.queue_policies import QueuePolicies
from ..delivery.queue_registry import Queues
from ..metrics.periodic_tasks import BEAT, ENTRY_NAME, PeriodicTaskTracker
from ..model.name_checks import MAX_NAME_BYTES, check_short
from ..model.queue import BrokerQueue
from ..model.sessions import Session
from ..model.stored_queue import stored_in
from ..model.transient_queue import TransientQueue
from .dispatch import BrokerCalls, Context, handles

#: of a message id
_MAX_DIGITS = 19
_TIMES_END_MS = 1 << 53
_CHECKED_PROPERTIES = (PROPERTY.encode(), b"user_id")


class PublishCalls(BrokerCalls):
    """Publishing of messages: those of publishes and sends, and dead letters."""

    _operations: Operations
    _unique_keys: UniqueKeys
    _commits: Commits
    _results: ResultStore
    _staging: Staging
    _topology: Topology
    _queues: Queues
    _outbox: Outbox
    _upkeep: QueuePolicies
    _traffic: Traffic
    _max_message_bytes: int
    _periodic: PeriodicTaskTracker
    _clock: Clock

    @handles(m.Publish)
    def publish(self, call: Context, msg: m.Publish) -> None:
        session = call.session
        if msg.seq > session.newest_publish:
            session.newest_publish = msg.seq
        elif (answer := self._repeated(msg, session)) is not None:
            call.reply(answer)
            return
        self.check(msg, session)
        if len(msg.envelope) >= self._commits.own_bytes:
            self._publish_large(call, msg)
        elif (answer := self._publish_checked(call, msg)) is not None:
            call.reply(answer)

    def _publish_large(self, call: Context, msg: m.Publish) -> None:
        """Publish a message whose envelope a thread writes, so that other clients don't wait."""
        targets = self.targets(msg)
        for queue in targets:  # a message that is refused does not reach the disk
            if queue.is_guarded:
                queue.check_open()
                self._upkeep.check_room(queue, len(msg.envelope))
        call.hold(msg.rid, self._write_and_publish(call, msg, (msg.envelope,) if stored_in(targets) else ()))

    async def _write_and_publish(
        self, call: Context, msg: m.Publish, envelopes: tuple[bytes, ...]
    ) -> m.PublishConfirm | None:
        async with self._commits.written(envelopes):
            if msg.unique is not None:
                return await self.publish_unique(call.session, msg, msg.unique)
            # after a reconnect the client repeats the publish, so it may have been stored during the write
            return self._repeated(msg, call.session) or self._publish_checked(call, msg)

    def _publish_checked(self, call: Context, msg: m.Publish) -> m.PublishConfirm | None:
        """Publish a message after its check; return the confirmation, None if it follows."""
        exchange, queues = msg.exchange, self._queues
        if not exchange and not self._topology.filters:
            queue = queues.get(msg.routing_key)  # the default exchange reaches every queue by its name
            targets = [queue] if queue is not None and not queue.deleting else []
        else:
            targets = self.targets(msg)
            if targets and exchange.endswith(CONTROL_EXCHANGE):  # a worker receives it
                self._unique_keys.revoke(revoked_ids(msg.envelope))
        if not targets:
            return _unroutable(msg)
        if msg.unique is not None:
            return self._publish_unique(call, msg, msg.unique, targets)
        return self._confirm(msg, targets, self.store(msg, targets, call.session))

    def _confirm(self, msg: m.Publish, targets: list[BrokerQueue], id: int) -> m.PublishConfirm:
        if BEAT in msg.headers or ENTRY_NAME in msg.headers:
            self._periodic.published(msg.headers, [queue.name for queue in targets], id, self._clock.now_ms())
        return m.PublishConfirm(msg.rid, id, len(targets))

    def _publish_unique(
        self, call: Context, msg: m.Publish, unique: UniqueKey, targets: list[BrokerQueue]
    ) -> m.PublishConfirm | None:
        """Publish a message with a unique key, immediately if the key and its holder are in memory."""
        name = unique_name_of(unique.key, msg.exchange, msg.routing_key)
        is_known, holder = self._unique_keys.find(name)
        if is_known and not self._unique_keys.is_loading(name):
            return self._store_unique(call.session, msg, unique, targets, name, holder)
        call.run(msg.rid, self.publish_unique(call.session, msg, unique))
        return None

    async def publish_unique(self, session: Session, msg: m.Publish, unique: UniqueKey) -> m.PublishConfirm:
        """Publish a message with a unique key, after the key and its holder were read."""
        name = unique_name_of(unique.key, msg.exchange, msg.routing_key)
        async with self._unique_keys.loaded(name):
            # after a reconnect the client repeats the publish, so it may have been stored during the read
            if msg.seq and (answer := self._repeated(msg, session)) is not None:
                return answer
            targets = self.targets(msg)
            if not targets:
                return _unroutable(msg)
            return self._store_unique(session, msg, unique, targets, name, self._unique_keys.find(name)[1])

    def _store_unique(
        self,
        session: Session,
        msg: m.Publish,
        unique: UniqueKey,
        targets: list[BrokerQueue],
        name: bytes,
        holder: Holder | None,
    ) -> m.PublishConfirm:
        """Store a message with a unique key, unless another message holds the key."""
        unique.check()
        if len(stored := stored_in(targets)) < len(targets):
            raise RequestError("a unique message needs durable queues", exchange=msg.exchange)
        task_id = msg.headers.get("id", "")
        decision = decide(unique, task_id, holder)
        if holder is not None and not decision.stores:
            if unique.on_conflict == OnConflict.ERROR:
                text = f"task {holder.task_id!r}, message {holder.message_id}, holds the unique key {unique.key!r}"
                values = {"key": unique.key, "task_id": holder.task_id, "message_id": holder.message_id}
                raise UniqueViolation(f"{text}: nothing was stored", **values)
            return m.PublishConfirm(msg.rid, holder.message_id, 0, holder.task_id)
        if decision.takes:
            msg.headers[HEADER] = unique.key
        id = self.store(msg, targets, session)
        if decision.takes:
            self._unique_keys.take(name, unique, id, task_id, stored)
        if holder is not None and decision.replaces:
            self._unique_keys.remove(holder)
        return self._confirm(msg, targets, id)

    def _follow(self, headers: dict[str, str], id: int, targets: list[BrokerQueue], rights: Rights) -> None:
        """Count a message as a later one of a staged job's task, if it is one.

        It must be of the same task as the message that it names, and its publisher must have the right to settle
        messages of the job, or to commit jobs: other users can't change the counts of a job.
        """
        number, _, task_id = headers[SPARK_MESSAGE].partition("/")
        if task_id != headers.get("id", "") or len(number) > _MAX_DIGITS or not (number.isascii() and number.isdigit()):
            return
        job_id = self._staging.state.job_id_of(int(number))
        if job_id is None or job_id != headers.get(SPARK_JOB):
            return
        queues = self._staging.state.existing(job_id).queues
        stored = [queue.name for queue in targets if queue.stored is not None]
        if stored and (rights.write[STAGED_JOBS] or any(map(rights.read.__getitem__, filter(None, queues)))):
            self._staging.follow(id, int(number), stored)

    def _repeated(self, msg: m.Publish, session: Session) -> m.PublishConfirm | None:
        """Return the confirmation of a publish that the session repeats; None if it was not stored before."""
        before = self._operations.published(session.id, msg.seq)
        if before is None and msg.seq not in session.transient_publishes:
            return None
        if before is None or before.last_sequence != msg.seq:
            return m.PublishConfirm(msg.rid, 0, -1)
        return m.PublishConfirm(msg.rid, before.last_message_id, before.last_queues)

    def check(self, msg: m.Publish, session: Session) -> None:
        """Refuse a message that can't be stored, and replace the metadata headers that the client sent.

        Raises:
            MessageTooLarge, InvalidMessage: the message is too large or not valid.
            AccessRefused: the message may leave a result, and the user may not write one.
        """
        if len(msg.envelope) > self._max_message_bytes:
            size, limit = len(msg.envelope), self._max_message_bytes
            raise MessageTooLarge(f"the message has {size} bytes, the limit is {limit}", size=size, limit=limit)
        if len(msg.routing_key) > MAX_NAME_BYTES or not msg.routing_key.isascii():
            check_short(msg.routing_key, "routing key", InvalidMessage)
        if not 0 <= msg.priority <= 255:
            raise InvalidMessage(f"priority {msg.priority} is not within 0–255", priority=msg.priority)
        if not 0 < msg.seq < 1 << 63:
            raise InvalidMessage(f"publish number {msg.seq} is out of range", seq=msg.seq)
        created_at, visible_at, ttl, end = msg.created_at_ms, msg.visible_at_ms, msg.ttl_ms, _TIMES_END_MS
        if not (-1 <= created_at < end and -1 <= visible_at < end and -1 <= ttl < end):
            times = created_at, visible_at, ttl
            value = next(value for value in times if not -1 <= value < _TIMES_END_MS)
            raise InvalidMessage(f"a time of {value} ms is out of range", value=value)
        if not session.rights.permits_all:
            _check_properties(session, msg.envelope)
        msg.headers, msg.envelope = broker_headers(
            msg.envelope, msg.exchange, msg.routing_key, msg.priority, session.rights.permits_publish
        )

    @property
    def routing_version(self) -> int:
        """Number that changes with each change of a route; 0 if no filter or headers exchange makes routing slow."""
        topology = self._topology
        by_headers = (exchange.bindings for exchange in topology.exchanges.values() if exchange.type == "headers")
        return topology.version if topology.filters or any(by_headers) else 0

    def route(self, msg: m.Publish) -> tuple[str, ...]:
        """Return the names of the queues that a message is routed to, without duplicates.

        Raises:
            NotFound: there is no such exchange.
        """
        return self._topology.route(msg.exchange, msg.routing_key, lambda: headers_of(msg.envelope) or {}, msg.headers)

    def targets(self, msg: m.Publish, names: tuple[str, ...] | None = None) -> list[BrokerQueue]:
        """Return the queues that a message is routed to, without duplicates.

        Args:
            names: the result of an earlier call of :meth:`route`, if no route has changed since.

        Raises:
            NotFound: there is no such exchange.
        """
        if names is None:
            names = self.route(msg)
        queues = self._queues
        return [q for q in map(queues.get, names) if q is not None and not q.deleting]

    def store(
        self,
        msg: m.Publish,
        targets: list[BrokerQueue],
        session: Session | None = None,
        place: EnvelopePlace | None = None,
    ) -> int:
        """Put a message into these queues; return its id.

        Args:
            session: the session whose publish it is; None for a message of the broker, which has no publish number.
            place: of the envelope, if :meth:`.Commits.write_large` was called before.

        Raises:
            QueueFull, QueuePaused, StoreFull: nothing was stored.
        """
        policies, queues, stored = self._upkeep, self._queues, []
        priority, size = 255 - msg.priority, len(msg.envelope)
        for queue in targets:
            if queue.stored is not None:
                stored.append(queue.stored)
            if queue.is_guarded:
                if session is not None:
                    queue.check_open()
                policies.check_room(queue, size)
        numbered = session if msg.seq else None
        if stored:
            self._commits.check_room_for(msg.envelope)
            if msg.revocable:
                self._results.note_revocable()
            id = self._operations.publish(
                stored,
                msg.envelope,
                msg.headers,
                priority=priority,
                created_at=msg.created_at_ms,
                visible_at=msg.visible_at_ms,
                ttl_ms=msg.ttl_ms,
                session=numbered.id if numbered is not None else b"",
                seq=msg.seq,
                total=len(targets),
                place=place,
            )
            if session is not None and SPARK_MESSAGE in msg.headers:  # a full queue may remove the message below
                self._follow(msg.headers, id, targets, session.rights)
        else:
            id = queues.transient_id()
            if numbered is not None:
                numbered.note_transient(msg.seq)
        for queue in targets:
            if queue.stored is None and isinstance(queue, TransientQueue):
                queue.put(id, msg.envelope, priority, msg.visible_at_ms, msg.ttl_ms)
            if queue.consumers or queue.getters:  # as Queues.wake, without a call for each message
                queues.waiting[queue] = None
                if not self._outbox.is_scheduled:
                    self._outbox.schedule()
            if queue.is_bounded or queue.messages.next_deadline:
                policies.added(queue, id)
        self._traffic.published += 1
        return id


def _unroutable(msg: m.Publish) -> m.PublishConfirm:
    """Return the confirmation of a message that no queue takes; raise Unroutable if it is mandatory."""
    if not msg.mandatory:
        return m.PublishConfirm(msg.rid, 0, 0)
    text = f"no queue takes messages for exchange {msg.exchange!r} with routing key {msg.routing_key!r}"
    raise Unroutable(text, exchange=msg.exchange, routing_key=msg.routing_key)


def _check_properties(session: Session, envelope: bytes) -> None:
    """Check the properties of a message.

    If the broker must store a result when the message expires, the user needs write on the results. As in RabbitMQ, the
    property ``user_id`` must be the user's name; the role admin permits another name, so it needs no check.
    """
    properties = open_properties(envelope, _CHECKED_PROPERTIES)
    if PROPERTY in properties:
        session.rights.check("write", "exchange", RESULTS)
    user, claimed = session.user.name, properties.get("user_id")
    if claimed is not None and claimed != user:
        text = f"the property user_id is {str(claimed)[:80]!r}, and the publisher is {user!r}: leave user_id out"
        raise InvalidMessage(text, name="user_id")
