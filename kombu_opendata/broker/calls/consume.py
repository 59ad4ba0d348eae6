"""Calls that consume, get and settle messages, and calls about sessions: heartbeat, ping, end."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import AccessRefused, ConsumerTagInUse, RequestError
from ...protocol import messages as m
from ...protocol.messages.message_base import WireMessage
from ...protocol.queue_arguments import CONSUMER_PRIORITY
from ...storage.clock import Clock
from ...storage.commit.commits import Commits
from ...storage.state.queue_buckets import QueueEntry
from ..delivery.background import Background
from ..delivery.lease_tokens import LeaseTable
from ..delivery.outbox import Outbox
from ..delivery.queue_registry import Queues
from ..delivery.session_lifecycle import SessionLifecycle
from ..model import argument_checks
from ..model.name_checks import MAX_NAME_BYTES
from ..model.sessions import ConsumedQueue, Consumer, Session, SessionChannel
from .dispatch import BrokerCalls, Context, handles

_OUTCOMES = frozenset(map(int, m.Outcome)) - {m.Outcome.REPORT}
_REPORTED = frozenset(map(int, m.Outcome))
_START = int(m.Outcome.START)  # compared for each task


class GetOne:
    """A Get: takes one message, or none, immediately."""

    __slots__ = ("channel", "no_ack", "reply", "rid", "session")

    def __init__(
        self,
        session: Session,
        channel: SessionChannel,
        rid: int,
        no_ack: bool,
        reply: Callable[[Session, WireMessage], None],
    ) -> None:
        self.session = session
        self.channel = channel
        self.rid = rid
        self.no_ack = no_ack
        self.reply = reply

    def take(self, queue: ConsumedQueue, entry: QueueEntry, now: int) -> bool:
        delivery = queue.lease(entry, self.session, self.channel, "", self.no_ack, now)
        self.reply(self.session, m.Got(self.rid, delivery, len(queue.messages)))
        return True

    def nothing(self) -> bool:
        self.end()
        return True

    def end(self) -> None:
        self.reply(self.session, m.Got(self.rid, None, 0))

    def drop(self) -> None:
        """Do nothing: no message was claimed for this Get."""


class ConsumeCalls(BrokerCalls):
    """Calls of consumers, and about their sessions."""

    _queues: Queues
    _leases: LeaseTable
    _lifecycle: SessionLifecycle
    _outbox: Outbox
    _background: Background
    _commits: Commits
    _clock: Clock

    @handles(m.Consume)
    def consume(self, call: Context, msg: m.Consume) -> None:
        queue = call.queue(msg.queue)
        if len(msg.tag.encode()) > MAX_NAME_BYTES:  # every delivery contains the tag
            raise RequestError(f"the consumer tag is over {MAX_NAME_BYTES} bytes", limit=MAX_NAME_BYTES)
        channel = call.session.channel(msg.channel)
        if msg.tag in channel.consumers:
            raise ConsumerTagInUse(f"consumer tag {msg.tag!r} is in use on this channel: choose another", tag=msg.tag)
        if queue.consumers and (msg.exclusive or queue.consumers[0].exclusive):
            raise AccessRefused(f"queue {queue.name!r} has an exclusive consumer", queue=queue.name)
        priority = msg.arguments.get("x-priority", 0)
        argument_checks.check(CONSUMER_PRIORITY, priority, f"a consumer of queue {queue.name!r}")
        for quota in call.session.quotas:
            quota.check_consumer()
        consumer = Consumer(call.session, channel, msg.tag, queue, msg.no_ack, msg.exclusive, priority)
        channel.consumers[msg.tag] = consumer
        queue.add_consumer(consumer)
        self._queues.wake(queue)
        call.reply(m.Ok(msg.rid))

    @handles(m.Cancel)
    def cancel(self, call: Context, msg: m.Cancel) -> None:
        channel = call.session.channels.get(msg.channel)
        consumer = channel.consumers.get(msg.tag) if channel is not None else None
        if consumer is not None:
            self._queues.remove_consumer(consumer)
        call.reply(m.Ok(msg.rid))

    @handles(m.Qos)
    def qos(self, call: Context, msg: m.Qos) -> None:
        channel = call.session.channel(msg.channel)
        channel.prefetch = max(msg.prefetch, 0)
        self._queues.wake_channel(channel)
        if msg.rid:
            call.reply(m.Ok(msg.rid))

    @handles(m.Credit)
    def credit(self, call: Context, msg: m.Credit) -> None:
        channel = call.session.channel(msg.channel)
        channel.credit = max(msg.count, 0)
        self._queues.wake_channel(channel)

    @handles(m.Get)
    def get(self, call: Context, msg: m.Get) -> None:
        queue = call.queue(msg.queue)
        queue.used_at_ms = self._clock.now_ms()
        channel = call.session.channel(msg.channel)
        queue.getters.append(GetOne(call.session, channel, msg.rid, msg.no_ack, self._outbox.reply))
        self._queues.wake(queue)

    @handles(m.Settle)
    def settle(self, call: Context, msg: m.Settle) -> None:
        if msg.outcome not in _OUTCOMES:
            raise RequestError(f"settle outcome {msg.outcome} is unknown")
        self._leases.settle(call.session, msg.outcome, msg.leases)

    @handles(m.ReportTasks)
    def report_tasks(self, call: Context, msg: m.ReportTasks) -> None:
        for outcome, _queue, _id, _token, report in msg.items:
            if outcome not in _REPORTED or (report is None) != (outcome == _START):
                raise RequestError(f"report outcome {outcome} is unknown, or comes without a report")
            if report is not None and report.fault:
                raise RequestError(report.fault)
        if msg.running is not None:
            self._leases.note_running(call.session, msg.running)
        self._leases.report(call.session, msg.items)

    @handles(m.CloseChannel)
    def close_channel(self, call: Context, msg: m.CloseChannel) -> None:
        self._leases.close_channel(call.session, msg.channel)
        call.reply(m.Ok(msg.rid))

    @handles(m.Heartbeat)
    def heartbeat(self, call: Context, msg: m.Heartbeat) -> None:
        """Do nothing: receiving the message is sufficient."""

    @handles(m.Ping)
    def ping(self, call: Context, msg: m.Ping) -> None:
        """Reply after a commit."""
        self._commits.needs_sync = True
        call.reply(m.Ok(msg.rid))

    @handles(m.Goodbye)
    def goodbye(self, call: Context, msg: m.Goodbye) -> None:
        """End the session; its connection closes after the reply."""
        connection = call.session.connection
        self._background.forget(call.session.id)
        self._lifecycle.close(call.session, m.Outcome.RELEASE, tasks_go_on=msg.tasks_go_on)
        if connection is not None:
            connection.leave()
            self._outbox.answer_last(connection, m.Ok(msg.rid))
