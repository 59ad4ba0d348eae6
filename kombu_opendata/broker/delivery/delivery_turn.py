"""Delivery turn of an instance: deliver, commit, send.

Calls change the state in memory and put their replies into the outbox, which schedules a delivery turn, at most one in
each turn of the event loop. A delivery turn

1. delivers: leases messages to consumers and getters with credit;
2. removes the expired and excess messages of queues that received messages;
3. commits all changes since the last commit, of calls and deliveries, together;
4. sends the replies and deliveries that the outbox had when the commit began.

So nothing is sent before it is durable, a delivery is never sent without its lease, and all messages that arrive at the
same time share one commit. A commit for each call would be simpler, but each call would need a sync of the disk or a
request to the bucket. A reply before the commit would confirm messages that a crash loses. A crash between steps 3 and
4 leaves leases whose deliveries were not sent; the session's resume releases them, or they expire. "Durable" refers to
a crash of the broker, and to a power loss, too, if the turn has a reply that promises it (``Commits.needs_sync``).

With a journal, a commit blocks the loop for a write and its sync, and steps 3 and 4 are in the turn. If the journal is
full, nothing is sent, and the turn is repeated every :data:`_RETRY_SECONDS` until the store has caught up.

Without a journal a commit is a request to the bucket: see :mod:`.bucket_commits`.

A queue delivers at most :data:`_DELIVERIES_PER_TURN` messages in a turn, and a client gets at most
:data:`.TURN_BYTES`, because it may not read them; both continue in the next turn. A turn visits only queues that were
woken, so its duration does not depend on the number of queues. A queue whose consumers have no credit is woken when a
channel has capacity again (``starved``, ``refilled``), when the client reads, or when a message arrives. The loader
wakes a queue whose next message it has loaded, and a timer wakes a queue whose messages are all delayed. A queue with
limits (:mod:`kombu_opendata.storage.state.flow_limits`) is woken when a slot is free, and by a timer for its next
token.

Getters, the requests of clients that do not consume, come before consumers. If no message is ready or the queue is
paused, each is notified; those that do not wait are answered and removed. In a queue with a single active consumer,
only the active consumer gets deliveries. If there is none, the first consumer becomes active. For a grace period after
a startup, only a consumer whose session holds messages of the queue may become active, so that the former active
consumer continues.

After an unexpected error in a turn, the memory may have changes that the store does not have. The error therefore fails
the instance: the broker ends, and its next start loads the last durable state.
"""

from __future__ import annotations

import asyncio
from collections import deque

from ...errors import StoreFull
from ...storage.clock import Clock
from ...storage.engine import Engine
from ..model.sessions import TURN_BYTES, ConsumedQueue, Consumer, Session
from .active_lease import ActiveLease
from .bucket_commits import BucketCommits
from .instance_core import Core, InstanceFailure, Traffic
from .outbox import Outbox
from .publish_flow_control import Flow, StoreGate
from .queue_policies import QueuePolicies
from .queue_registry import Queues
from .rate_limited_log import Notices
from .slow_turns import COMMIT, DELIVERY, SLOW_SECONDS, SlowTurns

#: maximum number of deliveries of one queue in one turn, so that other queues also deliver
_DELIVERIES_PER_TURN = 1000
#: maximum duration of the timer for a delayed message: the system's clock may be set forward, the event loop's may not
_MAX_DELAY_MS = 3_600_000
#: delay after a commit that failed because the journal was full
_RETRY_SECONDS = 0.1


def has_credit(consumer: Consumer) -> bool:
    """Return True if a delivery may be sent to a consumer now."""
    session, channel = consumer.session, consumer.channel
    connection = session.connection
    if connection is None or not connection.writable or session.suspended or session.turn_bytes >= TURN_BYTES:
        return False
    if channel.is_waiting or (channel.credit is not None and channel.credit <= 0):
        return False
    return consumer.no_ack or not 0 < channel.prefetch <= channel.held


def next_consumer(queue: ConsumedQueue) -> Consumer | None:
    """Return the next consumer with credit, round-robin among consumers of the same priority."""
    if queue.single_active:
        return _active_consumer(queue)
    consumers = queue.consumers
    if queue.has_ranks:
        for place, consumer in enumerate(consumers):
            if has_credit(consumer):
                del consumers[place]
                queue.add_consumer(consumer)  # after the consumers of the same priority
                return consumer
        return None
    count, turn = len(consumers), queue.turn
    for place in range(turn, turn + count):
        consumer = consumers[place % count]
        if has_credit(consumer):
            queue.turn = (place + 1) % count
            return consumer
    return None


def _active_consumer(queue: ConsumedQueue) -> Consumer | None:
    """Return the single active consumer, chosen if there is none; None while it has no credit."""
    if queue.active is None:
        holders = queue.previous_holders
        successor = next((each for each in queue.consumers if not holders or each.session.id in holders), None)
        if successor is None:
            return None
        queue.active, queue.previous_holders = successor.key, frozenset()
    consumer = next((each for each in queue.consumers if each.key == queue.active), None)
    return consumer if consumer is not None and has_credit(consumer) else None


class MessageDelivery:
    """Delivery of messages from queues to consumers and getters with credit."""

    __slots__ = ("_clock", "_loop", "_outbox", "_over_limit", "_queues", "_traffic")

    def __init__(self, queues: Queues, outbox: Outbox, clock: Clock, traffic: Traffic) -> None:
        self._queues = queues
        self._outbox = outbox
        self._clock = clock
        self._traffic = traffic
        self._loop = asyncio.get_running_loop()
        self._over_limit: dict[Session, None] = {}  # sessions that get no more deliveries in this turn

    def deliver_all(self) -> None:
        """Deliver from all woken queues, and from queues that waited for capacity of a channel."""
        queues = self._queues
        if self._over_limit:
            sessions, self._over_limit = self._over_limit, {}
            for session in sessions:
                queues.wake_session(session)
        if queues.refilled:
            self._deliver_to_refilled()
        if queues.waiting:
            pending, queues.waiting = queues.waiting, {}
            for queue in pending:
                if not queue.deleting:
                    self.deliver(queue)

    def _deliver_to_refilled(self) -> None:
        """Deliver from the queues that waited for capacity of channels."""
        queues = self._queues
        refilled, queues.refilled = queues.refilled, {}
        for channel in refilled:
            # A channel may consume from thousands of queues: check only as many as can fill it.
            while channel.starved and not channel.is_full:
                queue = next(iter(channel.starved))
                del channel.starved[queue]
                if not queue.deleting:
                    self.deliver(queue)

    def deliver(self, queue: ConsumedQueue) -> None:
        """Deliver from one queue."""
        if queue.is_paused:
            self._answer_getters(queue)
            return
        now, messages, room = self._clock.now_ms(), queue.messages, _DELIVERIES_PER_TURN
        if queue.flow is not None:
            room = min(room, queue.room(now))
            if not room:
                self._wait_for_room(queue, now)
                return
        for _ in range(room):
            if not queue.getters:
                consumer = next_consumer(queue)
                if consumer is None:
                    queue.starve()
                    return
            entry, loading = queue.next_entry(now)
            if entry is None:
                if not loading:
                    self._nothing_to_deliver(queue)
                return
            if queue.getters:
                if queue.getters[0].take(queue, entry, now):
                    queue.getters.popleft()
            else:
                assert consumer is not None
                session = consumer.session
                if consumer.channel.credit is not None:
                    consumer.channel.credit -= 1
                delivery = queue.lease(entry, session, consumer.channel, consumer.tag, consumer.no_ack, now)
                session.deliveries.append(delivery)
                self._outbox.sessions_to_answer[session] = None
                session.turn_bytes += len(delivery.envelope)
                if session.turn_bytes >= TURN_BYTES:
                    self._over_limit[session] = None
                    self._outbox.schedule()
            self._traffic.delivered += 1
            if not messages.available and not messages.cold:
                if queue.getters or queue.timer is not None:
                    self._nothing_to_deliver(queue)
                return
        self._queues.wake(queue)

    def _nothing_to_deliver(self, queue: ConsumedQueue) -> None:
        """Notify getters, and set a timer for the next delayed message."""
        self._answer_getters(queue)
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None
        visible_at = queue.messages.next_visible_at()
        if visible_at is not None and (queue.consumers or queue.getters):
            self._wake_at(queue, visible_at)

    def _wait_for_room(self, queue: ConsumedQueue, now: int) -> None:
        """Notify getters, and set a timer for the next token. The end of a lease or a task wakes the queue as well."""
        self._answer_getters(queue)
        assert queue.flow is not None
        opens_at = queue.flow.opens_at_ms(now)
        if opens_at > now and (queue.consumers or queue.getters):
            self._wake_at(queue, opens_at)

    def _wake_at(self, queue: ConsumedQueue, at_ms: int) -> None:
        if queue.timer is not None:
            queue.timer.cancel()
        delay_ms = min(max(at_ms - self._clock.now_ms(), 1), _MAX_DELAY_MS)
        queue.timer = self._loop.call_later(delay_ms / 1000, self._queues.wake, queue)

    def _answer_getters(self, queue: ConsumedQueue) -> None:
        """Notify getters that there is no message now, and remove those that don't wait."""
        if queue.getters:
            queue.getters = deque(getter for getter in queue.getters if not getter.nothing())


class Turn:
    """Delivery turns of one instance, and the composition of their parts.

    The outbox schedules the turn, and each part of the turn may add messages to the outbox.

    Attributes:
        core: the components that the other services of the instance share.
        policies: removes expired and excess messages within the turn.
        gate: delays publishes while the store does not respond.
    """

    __slots__ = (
        "_bucket", "_commits", "_delivery", "_failure", "_loop", "_measured", "_outbox", "_slow_turns", "core", "gate",
        "policies",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        engine: Engine,
        sessions: dict[bytes, Session],
        notices: Notices,
        flow: Flow,
        active_lease: ActiveLease,
        grace_ms: int,
        slow_turns: SlowTurns | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._slow_turns = slow_turns or SlowTurns(self._loop)
        self._measured = engine.metrics.commits
        self._commits = engine.commits
        outbox = self._outbox = Outbox(self._loop, self.run)
        self._failure = InstanceFailure(name, self._loop, engine.commits)
        queues = Queues(
            engine.state.topology, engine.definitions, engine.idempotency, sessions, outbox, engine.clock, notices
        )
        self.core = Core(
            name, engine.clock, engine.commits, sessions, outbox, queues, self._failure, Traffic(), notices
        )
        timeout_seconds = engine.settings.store_timeout_seconds
        self.gate = StoreGate(engine.commits, outbox, flow, timeout_seconds, self._loop.time)
        self._bucket: BucketCommits | None = None
        if engine.journal is None:
            self._bucket = BucketCommits(outbox, engine.commits, self._failure, active_lease, self.gate)
        self._delivery = MessageDelivery(queues, outbox, engine.clock, self.core.traffic)
        self.policies = QueuePolicies(self.core, self._delivery.deliver, grace_ms)

    def run(self) -> None:
        """Deliver, commit and send; an unexpected error fails the instance."""
        slow_turns, measured = self._slow_turns, len(self._measured)
        start = slow_turns.time()
        try:
            self._run()
        except Exception as exc:
            self._failure.fail(exc)
        if (seconds := slow_turns.time() - start) >= SLOW_SECONDS:
            is_commit = 2 * sum(commit.seconds for commit in self._measured[measured:]) > seconds
            slow_turns.end_step(start, COMMIT if is_commit else DELIVERY)

    def _run(self) -> None:
        outbox, commits = self._outbox, self._commits
        outbox.is_scheduled = False
        if commits.failure is not None:
            self._failure.fail(commits.failure)
            return
        self._delivery.deliver_all()
        if self.policies.changed:
            self.policies.end_turn()
        if self._bucket is not None:
            self._bucket.commit()
            return
        try:
            commits.commit_journal()
        except StoreFull:
            self._loop.call_later(_RETRY_SECONDS, outbox.schedule)
            return
        outbox.send_all()

    def stop(self) -> None:
        """Cancel a delayed commit, because the shutdown of the instance commits."""
        if self._bucket is not None:
            self._bucket.stop()
