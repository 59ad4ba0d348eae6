"""State of a session, which survives its sockets, and its changes by each message from the broker.

This module does no input or output; :mod:`.session_io` does. When a socket breaks, the next one starts with
:meth:`ClientSession.hello` and :meth:`ClientSession.resume`, which carry the leases and the unconfirmed settlements.
:meth:`ClientSession.redeclarations` then restores what ended with the old connection, and the frames in ``unanswered``
are sent once more.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias

from msgspec.structs import replace

from ...errors import BrokerStopping, NotActive, NotFound, OpenDataError, StoreStalled, from_wire
from ...protocol.declared import Declaration, Declared
from ...protocol.framing import SMALL_FRAME_BYTES, Frame, frame, large_frame, publish_frame
from ...protocol.messages import (
    BrokerMessage,
    Cancelled,
    Consume,
    Credit,
    DeclareExchange,
    Deliver,
    Delivery,
    Failed,
    Got,
    Hello,
    Lease,
    Outcome,
    Publish,
    PublishConfirm,
    Qos,
    QueueDeclared,
    Reported,
    ReportTasks,
    ResultsChanged,
    Resume,
    RunningLate,
    Sent,
    Settle,
    SettleConfirm,
    Undeclared,
    Welcome,
)
from ...protocol.task_reports import TaskReport
from .unconfirmed import PublishesInFlight, UncertainPublishes

log = logging.getLogger(__name__)

#: codes of errors after which a request stays unanswered, because the next active broker will answer it
LEFT_TO_SUCCESSOR = frozenset({BrokerStopping.code, NotActive.code})
#: limit for the characters of unconfirmed reports, as a Resume has all of them in one frame; further reports omit their
#: texts
MAX_TEXTS = 4 << 20
#: items that a connection passes to its user: a delivery, the end of a consumer, or changed results
Event: TypeAlias = Delivery | Cancelled | ResultsChanged


class Settlements:
    """Settlements of one session on its connection.

    Attributes:
        unconfirmed: unconfirmed settlements, in order: outcome, queue, message id, token, and the report of the task,
            if there is one.
        reports: those of the unconfirmed settlements that wait for the next frame with reports.
    """

    __slots__ = ("_reported", "_settled", "_texts", "confirmed", "reports", "unconfirmed")

    def __init__(self) -> None:
        self.unconfirmed: deque[tuple[int, str, int, int] | Reported] = deque()
        self.reports: list[Reported] = []
        self._settled = 0  # number of settlements on this connection
        self.confirmed = 0  # number of these that the broker has confirmed
        self._reported = 0  # the number of settlements up to the last one with a report
        self._texts = 0  # characters in unconfirmed reports; counts down only when all are confirmed

    def settle(self, outcome: int, channel: int, leases: list[Lease]) -> Settle:
        """End leases and return the message for the broker."""
        for lease in leases:
            self.unconfirmed.append((outcome, *lease))
        self._settled += len(leases)
        return Settle(self._settled, outcome, channel, leases)

    def report(self, outcome: int, lease: Lease, report: TaskReport | None) -> None:
        """End a lease, or the run of a started task; :meth:`take_reports` returns the frame for the broker."""
        if report is not None and (report.error or report.traceback):
            self._texts += len(report.error) + len(report.traceback)
            if self._texts > MAX_TEXTS:
                report = replace(report, error="", traceback="")
        queue, id, token = lease
        item: Reported = (outcome, queue, id, token, report)
        self.unconfirmed.append(item)
        self.reports.append(item)
        self._settled += 1
        self._reported = self._settled

    def take_reports(self, running: list[RunningLate] | None = None) -> bytes:
        """Return the frame with the pending reports and the running tasks; one of them must exist."""
        reports, self.reports = self.reports, []
        return frame(ReportTasks(self._reported, reports, running))

    def confirm(self, settled: int) -> None:
        """Remove the settlements that the broker has applied; ``settled`` counts those of the connection."""
        unconfirmed = self.unconfirmed
        for _ in range(min(settled - self.confirmed, len(unconfirmed))):
            unconfirmed.popleft()
        self.confirmed = max(settled, self.confirmed)
        if not unconfirmed:
            self._texts = 0

    # ------------------------------------------------------------ a new connection
    def for_resume(self) -> tuple[list[tuple[int, str, int, int]], list[tuple[int, TaskReport]]]:
        """Return all unconfirmed settlements, and the reports with their positions among the settlements."""
        settles = [(item[0], item[1], item[2], item[3]) for item in self.unconfirmed]
        reports = [(place, item[4]) for place, item in enumerate(self.unconfirmed) if len(item) > 4]
        return settles, [(place, report) for place, report in reports if report is not None]

    def restart(self) -> None:
        """Reset the counts: the broker has applied all settlements, and a new connection counts from 0."""
        self.unconfirmed.clear()
        self.reports.clear()
        self._settled = self.confirmed = self._texts = 0


class ClientSession:
    """State of one session.

    Attributes:
        id: 16 random bytes that identify it.
        client: 16 random bytes that all sessions of one client share; empty if the client has only this session.
        is_known: whether the broker has welcomed this session before.
        last_rid: id of the last request, from 1 up.
        last_seq: number of the last publish, from 1 up.
        uncertain: publishes that were refused and may be stored nevertheless.
        held: leases of unsettled deliveries, with the channel of each.
        settlements: settlements that the broker has not confirmed.
        consumers: by channel and tag.
        prefetch: limits by channel.
        credit: further deliveries that are allowed, by channel; an absent channel has no such limit.
        declared: the definitions that the broker keeps only in memory.
        run_id: the run of the broker's instance in which ``declared`` exists; empty if the broker reports none.
        calls: running calls that may declare or delete something, by request id.
        unanswered: the frames of requests without a reply yet, by request id.
        answers: replies that arrived and that their callers have not fetched yet, by request id.
        in_flight: publishes of the pipeline without confirmation.
        events: deliveries, ended consumers and changed results that are not consumed yet.
        to_send: frames that a received message requires.
        waiting: work that is deferred until the session's lock is free, such as log records.
    """

    def __init__(self, session_id: bytes, client: bytes = b"") -> None:
        self.id = session_id
        self.client = client
        self.is_known = False
        self.last_rid = 0
        self.last_seq = 0
        self.uncertain = UncertainPublishes()
        self.held: dict[Lease, int] = {}
        self.settlements = Settlements()
        self.consumers: dict[tuple[int, str], Consume] = {}
        self.prefetch: dict[int, int] = {}
        self.credit: dict[int, int] = {}
        self.declared = Declared()
        self.run_id = b""
        self.calls: dict[int, Any] = {}
        self.unanswered: dict[int, Frame] = {}
        self.answers: dict[int, Any] = {}
        self.in_flight = PublishesInFlight()
        self.events: deque[Event] = deque()
        self.to_send: list[bytes] = []
        self.waiting: deque[Callable[[], object]] = deque()
        self.redeclaring: dict[int, Declaration | Qos | Consume] = {}  # unanswered, by request id

    # ------------------------------------------------------------ messages from the broker
    def receive(self, messages: Iterable[Any]) -> None:
        """Apply messages from the broker.

        Raises:
            OpenDataError: the broker closes the connection and reported this reason. All messages were applied.
        """
        unanswered = self.unanswered
        in_flight = self.in_flight
        closing_error = None
        for message in messages:
            kind = type(message)
            if kind is PublishConfirm and message.rid in unanswered:
                data = unanswered.pop(message.rid)
                if self.uncertain.numbers:
                    self.uncertain.confirm(data)
                if message.rid in in_flight.by_rid:
                    if message.holder is not None:
                        in_flight.conflict(message.rid, message.holder)
                    in_flight.remove(message.rid)
                else:
                    self.answers[message.rid] = message
            elif kind is Deliver:
                if message.settled > self.settlements.confirmed:
                    self.settlements.confirm(message.settled)
                self.events.extend(message.deliveries)
                self.hold(message.deliveries)
            elif kind is SettleConfirm:
                self.settlements.confirm(message.settled)
            elif kind is Cancelled:
                self.cancelled(message.channel, message.tag)
                self.events.append(message)
            elif kind is ResultsChanged:
                self.events.append(message)
            elif kind is Undeclared:
                self.declared.forget(message)
            elif kind is Failed and message.rid == 0:
                closing_error = from_wire(message.code, message.text, message.values)
            else:
                self._receive_answer(message)
        if closing_error is not None:
            raise closing_error

    def _receive_answer(self, message: Any) -> None:
        rid = getattr(message, "rid", None)  # a BrokerHeartbeat or a BrokerGoodbye has none
        if rid in self.in_flight.by_rid:
            if message.code not in LEFT_TO_SUCCESSOR:
                self._failed(message, self.unanswered.pop(rid))
                self.in_flight.fail(rid, from_wire(message.code, message.text, message.values))
        elif rid in self.unanswered:
            data = self.unanswered.pop(rid)
            if type(message) is Failed:
                self._failed(message, data)
            else:
                if self.uncertain.numbers and type(message) is Sent:
                    self.uncertain.confirm(data)
                if rid in self.calls:  # noted here, because the broker orders replies and reports of deletions
                    self.declared.note(self.calls.pop(rid), message.queue if type(message) is QueueDeclared else "")
            self.answers[rid] = message
            if type(message) is Got and message.delivery is not None:
                self.hold((message.delivery,))
        elif rid in self.redeclaring:
            self._redeclared(self.redeclaring.pop(rid), message)
        elif type(message) is Got and message.delivery is not None:  # its caller stopped waiting: release the lease
            delivery = message.delivery
            self.to_send.append(frame(self.settle(Outcome.RELEASE, delivery.channel, [delivery.lease])))

    def _failed(self, message: Failed, data: Frame) -> None:
        if message.code == StoreStalled.code and message.values.get("uncertain"):
            self.uncertain.note(data)

    def _redeclared(self, message: Declaration | Qos | Consume, answer: BrokerMessage) -> None:
        if not isinstance(answer, Failed):
            return
        if isinstance(message, Declaration) and message.again and answer.code == NotFound.code:
            self.declared.forget(message)
            return
        self.waiting.append(
            partial(log.warning, "after a reconnect, %s failed: %s", type(message).__name__, answer.text)
        )
        if isinstance(message, Consume):
            self.cancelled(message.channel, message.tag)
            self.events.append(Cancelled(message.channel, message.tag, answer.text))

    def hold(self, deliveries: Iterable[Delivery]) -> None:
        """Record the leases of received deliveries as held by the client."""
        held, consumers = self.held, self.consumers
        for delivery in deliveries:
            channel, tag = delivery.channel, delivery.tag
            consumer = consumers.get((channel, tag))
            if tag and channel in self.credit:
                self.credit[channel] -= 1
            if consumer is None or not consumer.no_ack:
                held[delivery.queue, delivery.id, delivery.token] = channel

    # ------------------------------------------------------------ actions of the client
    def start_request(self, message: Any, encode: Callable[[Any], Frame] = frame) -> Frame:
        """Assign a number to a request, register it as unanswered, and return its frame."""
        self.last_rid = message.rid = self.last_rid + 1
        data = self.unanswered[message.rid] = encode(message)
        return data

    def start_call(self, message: Any) -> Frame:
        """Start a request as :meth:`start_request`, for a call that may declare or delete something."""
        data = self.start_request(message)
        self.calls[message.rid] = message
        return data

    def start_publish(self, message: Any) -> Frame:
        """Start a request as :meth:`start_request`, with the number by which the broker stores the message once."""
        number = self.uncertain.number_of(message, self.last_seq) if self.uncertain.numbers else None
        if number is None:
            number = self.last_seq = self.last_seq + 1
        message.seq = number
        if type(message) is not Publish:
            return self.start_request(message, large_frame)
        return self.start_request(message, publish_frame if len(message.envelope) >= SMALL_FRAME_BYTES else frame)

    def settle(self, outcome: int, channel: int, leases: list[Lease]) -> Settle:
        """End leases and return the message for the broker."""
        for lease in leases:
            self.held.pop(lease, None)
        return self.settlements.settle(outcome, channel, leases)

    def fail_publishes(self, error: OpenDataError) -> None:
        """Fail all publishes in flight: their replies are lost."""
        for rid in list(self.in_flight.by_rid):
            self.unanswered.pop(rid, None)
            self.in_flight.fail(rid, error)

    def cancelled(self, channel: int, tag: str) -> None:
        """Handle the end of a consumer.

        If its auto-delete queue ended with it, the broker reports this separately. An older broker, which has no run
        id, does not report it.
        """
        consumer = self.consumers.pop((channel, tag), None)
        if consumer is None or self.run_id or any(other.queue == consumer.queue for other in self.consumers.values()):
            return
        if self.declared.is_auto_delete(consumer.queue):
            self.declared.forget_queue(consumer.queue)

    def close_channel(self, channel: int) -> None:
        """Handle the end of a channel: remove its consumers, events and leases."""
        self._replace_events([event for event in self.events if event.channel != channel])
        for key in [key for key in self.consumers if key[0] == channel]:
            self.cancelled(*key)
        self.prefetch.pop(channel, None)
        self.credit.pop(channel, None)
        self.held = {lease: owner for lease, owner in self.held.items() if owner != channel}

    def take_deliveries(self, channel: int, tag: str) -> list[Delivery]:
        """Remove a consumer's deliveries from the events and return them."""
        deliveries = []
        remaining = []
        for event in self.events:
            if type(event) is Delivery and (event.channel, event.tag) == (channel, tag):
                deliveries.append(event)
            else:
                remaining.append(event)
        self._replace_events(remaining)
        return deliveries

    def _replace_events(self, events: list[Event]) -> None:
        """Replace the events in place, as connections refer to the same deque."""
        self.events.clear()
        self.events.extend(events)

    # ------------------------------------------------------------ opening of a connection
    def hello(
        self, name: str, instance: str, user: str, secret: str, *, heartbeat_ms: int = 0, act_as: str = ""
    ) -> Hello:
        """Return the first message of a connection."""
        self.last_rid += 1
        resume = self.is_known
        hello = Hello(
            self.last_rid, self.id, name, instance, user, secret, resume, heartbeat_ms=heartbeat_ms, client=self.client
        )
        hello.resume_follows = resume
        hello.act_as = act_as
        hello.undeclared = True
        return hello

    def resume(self) -> Resume | None:
        """Return the client's state of the session for the broker that received the Hello; None for a new session."""
        if not self.is_known:
            return None
        held = [(channel, *lease) for lease, channel in self.held.items()]
        return Resume(self.last_rid, held, *self.settlements.for_resume())

    def welcomed(self) -> None:
        """Record that the broker accepted the Hello and all settlements."""
        self.is_known = True
        self.settlements.restart()
        self.to_send.clear()

    def redeclarations(self, welcome: Welcome) -> list[bytes]:
        """Return the frames that restore the state of the old connection; ``redeclaring`` awaits their replies.

        With ``again``, a declaration does not create an entity that was deleted during the break. It is always set for
        durable exchanges, because they survive a restart of the broker. Within one run of the instance, it is set for
        all other entities as well, except those that ended with the session and must be created again.
        """
        self.redeclaring.clear()
        ended = () if welcome.session_known else self.declared.ended_with_session(self._consumed())
        ended_ids = set(map(id, ended))
        is_same_run = welcome.run_id == self.run_id
        for declaration in self.declared.declarations() if welcome.run_id else ():
            is_stored = isinstance(declaration, DeclareExchange) and declaration.durable
            declaration.again = is_stored or (is_same_run and id(declaration) not in ended_ids)
        frames = [frame(Credit(channel, count)) for channel, count in self.credit.items()]
        for message in self._to_redeclare():
            if message.rid in self.unanswered:
                continue  # a Consume, which is sent again with the unanswered requests
            self.last_rid += 1
            message.rid = self.last_rid
            self.redeclaring[self.last_rid] = message
            frames.append(frame(message))
        return frames

    def _consumed(self) -> set[str]:
        return {consumer.queue for consumer in self.consumers.values()}

    def _to_redeclare(self) -> Iterator[Declaration | Qos | Consume]:
        yield from self.declared.declarations()
        for channel, prefetch in self.prefetch.items():
            yield Qos(0, channel, prefetch)
        yield from self.consumers.values()
