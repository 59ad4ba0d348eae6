"""The delivery turn of an instance: deliver, commit, send.

Calls change the state in memory and leave their replies in the outbox, which schedules a turn: at most one in each turn
of the event loop. It

1. delivers: takes messages for consumers and getters with credit, which claims them;
2. removes the expired and excess messages of queues that received some;
3. commits all changes since the last commit, of calls and deliveries, as one;
4. sends the replies and deliveries that the outbox had when the commit began.

So nothing is sent before it is durable, a delivery is never sent without its claim, and all messages that arrive
together share one commit. A commit for each call would be simpler, and cost a sync of the disk or a request to the
bucket for each of them. Sending at once and committing later would confirm messages that a crash loses.

With a journal, a commit blocks the loop for a write and its sync, and steps 3 and 4 are in the turn. If the journal is
full, nothing is sent, and the turn is repeated every :data:`_RETRY_SECONDS` until the store has caught up.

Without a journal a commit is a request to the bucket, so it runs as a task, the *committer*, while turns continue to
deliver and collect:

===========================  ===========================================  =========================================
committer                    a turn                                       then
===========================  ===========================================  =========================================
none, a client waits         collects the outbox and starts the           it commits, sends, and repeats that until
                             committer                                    the outbox is empty
running                      collects the outbox, for the next commit     the commit in progress sends only what was
                                                                          taken before it began
none, only acks are new,     sets a timer                                 they are committed with the next commit, or
and commits are slow                                                      after :data:`_UNAWAITED_SECONDS`
===========================  ===========================================  =========================================

A commit to a bucket is delayed for a short time (:class:`CommitDelay`), so that clients that were just answered can
join it. A client that waits for each confirmation publishes again immediately after it. If the next commit began with
the first of these clients, all others would wait for two commits each, and a bucket would store half as many messages.

Before the committer sends, the active lease must not be over: a broker that another one has replaced must not answer.

A queue delivers at most :data:`_DELIVERIES_PER_TURN` messages in a turn, and a client gets at most
:data:`.TURN_BYTES`, because it may not read them; both continue in the next turn. A turn visits only queues that were
woken. One without a consumer with credit is woken when a channel has capacity again (``starved``, ``refilled``), when
the client reads, or when a message arrives: visiting all queues each time would make a turn as long as their number.

An unexpected error in a turn leaves the memory ahead of the store, so it fails the instance: the broker ends, and the
next start has the last durable state.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from ...errors import StoreFull
from ...storage.clock import Clock
from ...storage.engine import Engine
from ..model.sessions import TURN_BYTES, ConsumedQueue, Session
from .active_lease import ActiveLease
from .core import Core, InstanceFailure, Traffic
from .flow import Flow, StoreGate
from .outbox import Outbox, send
from .queue_policies import QueuePolicies
from .queues import Queues
from .rate_limited_log import Notices

#: the delay: this fraction of the duration of the last commit, limited to a number of seconds
_PART = 0.2
_MOST_SECONDS = 0.05
_SLOW_SECONDS = 0.003
#: maximum deliveries of one queue in one turn, so that other queues get their turn
_DELIVERIES_PER_TURN = 1000
_MAX_DELAY_MS = 3_600_000
#: changes that no client waits for, such as acks, are committed to a bucket with the next commit, or after this time
_UNAWAITED_SECONDS = 1.0
#: delay after a commit that failed because the journal was full
_RETRY_SECONDS = 0.1


class CommitDelay:
    """A delay of the commit until the clients of the last one are back, or a short time is over.

    Attributes:
        is_slow: the last commit took as long as a request to a bucket.
    """

    __slots__ = ("_all_back", "_clock", "_expected", "_seconds", "_until", "is_slow")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._expected = 0
        self._seconds = 0.0  # of the last commit
        self._until = 0.0
        self._all_back = asyncio.Event()
        self.is_slow = False

    def committed(self, began: float) -> None:
        """Record the duration of a commit that began at this time."""
        self._seconds = self._clock() - began
        self.is_slow = self._seconds > _SLOW_SECONDS

    def answering(self, clients: int) -> None:
        """Record the number of clients that receive their replies now."""
        self._expected, self._until = clients, self._clock() + min(_PART * self._seconds, _MOST_SECONDS)
        self._all_back.clear()

    def have(self, clients: int) -> None:
        """Record the number of clients that wait for the next commit."""
        if clients >= self._expected:
            self._all_back.set()

    async def wait(self) -> None:
        """Wait for the clients that were answered, if there are several."""
        if self._expected > 1 and self._clock() < self._until:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._until):
                    await self._all_back.wait()


class MessageDelivery:
    """Delivery of messages from queues to consumers and getters with credit."""

    __slots__ = ("_clock", "_loop", "_outbox", "_over_limit", "_queues", "_traffic")

    def __init__(self, queues: Queues, outbox: Outbox, clock: Clock, traffic: Traffic) -> None:
        self._queues = queues
        self._outbox = outbox
        self._clock = clock
        self._traffic = traffic
        self._loop = asyncio.get_running_loop()
        self._over_limit: set[Session] = set()  # sessions that get no more deliveries in this turn

    def deliver_all(self) -> None:
        """Deliver from all woken queues, and from those that waited for capacity of a channel."""
        queues = self._queues
        sessions, self._over_limit = self._over_limit, set()
        for session in sessions:
            queues.wake_session(session)
        refilled, queues.refilled = queues.refilled, set()
        for channel in refilled:
            # A channel may consume from thousands of queues, so only as many of them are checked as it has capacity
            # for.
            while channel.starved and not channel.is_full:
                queue = next(iter(channel.starved))
                del channel.starved[queue]
                if not queue.deleting:
                    self.deliver(queue)
        pending, queues.waiting = queues.waiting, set()
        for queue in pending:
            if not queue.deleting:
                self.deliver(queue)

    def deliver(self, queue: ConsumedQueue) -> None:
        """Deliver from one queue."""
        if queue.is_paused:
            self._answer_getters(queue)
            return
        now, messages = self._clock.now_ms(), queue.messages
        for _ in range(_DELIVERIES_PER_TURN):
            if not queue.getters:
                consumer = queue.next_consumer()
                if consumer is None:
                    queue.starve()
                    return
            entry, loading = queue.next_entry(now)
            if entry is None:
                if not loading:
                    self._nothing_to_deliver(queue)
                return
            if queue.getters:
                if queue.getters[0].take(queue, entry):
                    queue.getters.popleft()
            else:
                assert consumer is not None
                session = consumer.session
                if consumer.channel.credit is not None:
                    consumer.channel.credit -= 1
                delivery = queue.lease(entry, session, consumer.channel, consumer.tag, consumer.no_ack)
                session.deliveries.append(delivery)
                self._outbox.sessions_to_answer.add(session)
                session.turn_bytes += len(delivery.envelope)
                if session.turn_bytes >= TURN_BYTES:
                    self._over_limit.add(session)
                    self._outbox.schedule()
            self._traffic.delivered += 1
            if not messages.available and not messages.cold:
                if queue.getters or queue.timer is not None:
                    self._nothing_to_deliver(queue)
                return
        self._queues.wake(queue)

    def _nothing_to_deliver(self, queue: ConsumedQueue) -> None:
        """Answer getters, and set a timer for the next delayed message."""
        self._answer_getters(queue)
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None
        visible_at = queue.messages.next_visible_at()
        if visible_at is not None and (queue.consumers or queue.getters):
            delay_ms = min(max(visible_at - self._clock.now_ms(), 1), _MAX_DELAY_MS)
            queue.timer = self._loop.call_later(delay_ms / 1000, self._queues.wake, queue)

    def _answer_getters(self, queue: ConsumedQueue) -> None:
        """Notify getters that there is no message now; waiting getters stay."""
        if queue.getters:
            queue.getters = deque(getter for getter in queue.getters if not getter.nothing())


class Turn:
    """The delivery turns of one instance, which compose the parts of a turn around its outbox.

    The outbox schedules the turn, and each part of the turn may add to the outbox.

    Attributes:
        core: the components that the other services of the instance share.
        policies: removes expired and excess messages within the turn.
        gate: delays publishes while the store does not respond.
    """

    __slots__ = (
        "_commit_delay", "_commits", "_committer", "_delivery", "_failure", "_has_journal", "_later", "_loop",
        "_outbox", "_tenure", "core", "gate", "policies",
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
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._commits, self._has_journal, self._tenure = engine.commits, engine.journal is not None, active_lease
        self._committer: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._commit_delay = CommitDelay(self._loop.time)
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
        self._delivery = MessageDelivery(queues, outbox, engine.clock, self.core.traffic)
        self.policies = QueuePolicies(self.core, self._delivery.deliver, grace_ms)

    def run(self) -> None:
        """Deliver, commit, send. An unexpected error ends the broker: only its durable state is consistent."""
        try:
            self._run()
        except Exception as exc:
            self._failure.fail(exc)

    def _run(self) -> None:
        outbox, commits = self._outbox, self._commits
        outbox.is_scheduled = False
        if commits.failure is not None:
            self._failure.fail(commits.failure)
            return
        self._delivery.deliver_all()
        if self.policies.changed:
            self.policies.end_turn()
        if not self._has_journal:
            if outbox.is_awaited or not self._commit_delay.is_slow:
                outbox.collect()
                self._commit_store()
            elif self._later is None:
                self._later = self._loop.call_later(_UNAWAITED_SECONDS, self._commit_unawaited)
            return
        try:
            commits.commit_journal()
        except StoreFull:
            self._loop.call_later(_RETRY_SECONDS, outbox.schedule)
            return
        outbox.collect()
        send(outbox.take())

    # ------------------------------------------------------------------ without a journal
    def stop(self) -> None:
        """Cancel the delayed commit; the commit that begins now, or the shutdown of the instance, replaces it."""
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def _commit_unawaited(self) -> None:
        self._outbox.collect()
        self._commit_store()

    @property
    def _is_committed(self) -> bool:
        return self._outbox.is_empty and (self._commit_delay.is_slow or not self._commits.effects)

    def _commit_store(self) -> None:
        self.stop()
        self._commit_delay.have(self._outbox.outgoing)
        if self._committer is None and (self._commits.effects or not self._outbox.is_empty):
            self._committer = self._loop.create_task(self._checkpoint())
            self._committer.add_done_callback(self._checkpointed)

    async def _checkpoint(self) -> None:
        """Commit until no client waits."""
        while True:
            await self._commit_delay.wait()
            outgoing = self._outbox.take()
            began = self._loop.time()
            if self._commits.is_dirty:
                await self._commits.checkpoint()
                self._commit_delay.committed(began)
            else:
                await self._commits.checkpoint_ended()  # the replies may depend on changes in a running checkpoint
            await self._tenure.renewed()
            self._commit_delay.answering(len(outgoing))
            send(outgoing)
            self.gate.open()
            if self._is_committed:
                return

    def _checkpointed(self, task: asyncio.Task[None]) -> None:
        self._committer = None
        self._failure.watch(task)
        if not task.cancelled() and task.exception() is None and (self._commits.effects or not self._outbox.is_empty):
            self._outbox.schedule()
