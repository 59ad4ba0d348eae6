"""Connections to brokers: calls, publishes, settlements and deliveries.

All methods may be used from several threads; one that waits for deliveries does not prevent others from sending. After
a fork the child starts with a new, empty session, and the parent keeps its leases.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Self

from ...errors import ConnectionLost, ConsumerTagInUse, OpenDataError, RequestError
from ...protocol.framing import frame
from ...protocol.messages import (
    Cancel,
    CloseChannel,
    Consume,
    Credit,
    Delivery,
    Get,
    Goodbye,
    Got,
    Lease,
    Ok,
    Outcome,
    Publish,
    PublishConfirm,
    Qos,
    RunningLate,
)
from ...protocol.messages.message_base import Reply, Request
from ...protocol.task_reports import TaskReport, TaskState
from ...url import Address
from ..client_clock import SYSTEM, ClientClock
from ..connection_options import DEFAULTS, Options
from ..late_patching import renew_after_patching
from ..socket.framed_socket import FramedSocket
from .publish_pipeline import PublishPipeline
from .reentrance import Reentrance
from .session import ClientSession, Event
from .session_io import SessionIO
from .session_link import LinkState, SessionLink
from .unconfirmed import TaskMessage, TaskRun

_SUCCEEDED, _REPORT = int(TaskState.SUCCEEDED), int(Outcome.REPORT)  # compared for each task
#: read for each task; reading a member of an enumeration costs more
_CLOSED = LinkState.CLOSED
_ACK, _START = Outcome.ACK, int(Outcome.START)
_BEGUN, _ACKNOWLEDGED, _SETTLED = TaskRun.BEGUN, TaskRun.ACKNOWLEDGED, TaskRun.SETTLED
#: leases that one Settle ends; the broker accepts ten times as many
_MAX_LEASES = 10_000


class BrokerConnection:
    """Connection to a broker, which is resumed when its socket breaks.

    Args:
        more: returns messages that every socket begins with, besides those of the session.
        client_id: as :attr:`.ClientSession.client`.
        within: as in :class:`.Reentrance`.

    Attributes:
        client: the object that opened it (Kombu reads it from its channels).
        channels: the objects passed to :meth:`add_channel`, by number.
        gated: channels that grant the broker credit for one delivery at a time.
        session: the state that survives a socket.
        events: deliveries and ended consumers that are not consumed yet.
        link: keeps the session connected.
        io: sends and receives over the link.
        pipeline: sends publishes without waiting for their confirmations.
    """

    def __init__(
        self,
        address: Address,
        options: Options = DEFAULTS,
        *,
        clock: ClientClock = SYSTEM,
        entropy: Callable[[int], bytes] = os.urandom,
        more: Callable[[], Iterable[Any]] = tuple,
        client_id: bytes = b"",
        within: Reentrance | None = None,
    ) -> None:
        self.address = address
        self.options = options
        self.clock = clock
        self.client: Any = None
        self.channels: dict[int, Any] = {}
        self.gated: list[Any] = []
        self._entropy = entropy
        self._more = more
        self._spare: Self | None = None
        self._start_session(client_id, within=within)
        _connections.add(self)

    def _start_session(
        self, client_id: bytes = b"", parent: SessionLink | None = None, within: Reentrance | None = None
    ) -> None:
        self.session = ClientSession(self._entropy(16), client_id)
        self.events: deque[Event] = self.session.events
        self.link = SessionLink(self.session, self.address, self.options, self.clock, self._more, parent, within)
        self.io = SessionIO(self.session, self.link)
        self.pipeline = PublishPipeline(self.session, self.io)

    @property
    def closed(self) -> bool:
        """True if the connection is closed permanently. A connection whose socket broke is resumed by its next use."""
        return self.link.is_closed

    def connect(self) -> None:
        """Connect for the first time.

        Raises:
            ConnectionLost: no broker answers.
            OpenDataError: the broker refuses, or can't be started.
        """
        self.link.reentrance.check()
        with self.link.reentrance:
            self.link.connect()

    def free(self) -> Self:
        """Return this connection; in code that interrupted a call on it, return another one to the same broker.

        A signal handler, for instance, can publish over the other one while the interrupted call is suspended.
        """
        if not self.link.reentrance.is_entered():
            return self
        if self._spare is None or self._spare.closed:
            options = replace(self.options, pipelined=False)
            self._spare = type(self)(
                self.address,
                options,
                clock=self.clock,
                entropy=self._entropy,
                client_id=self.session.client,
                within=self.link.reentrance,
            )
        return self._spare.free()

    def fileno(self) -> int:
        """Return the descriptor to poll for reading; it changes with a resume."""
        with self.link.lock:
            return self.link.ensure_open().fd

    # ------------------------------------------------------------ requests
    def call(self, message: Request[Reply], timeout: float | None = None) -> Reply:
        """Send a request and wait for its reply; deliveries that arrive in the meantime are kept in ``events``.

        Raises:
            ProtocolError: the reply has another type than the message declares.
            OpenDataError: the broker's reply was an error, or the connection could not be resumed.
            ConnectionInUse: the call interrupted another one and concerns an exclusive queue of this session.
            socket.timeout: no reply in time; the broker may still execute the request.
        """
        link = self.link
        if link.reentrance.is_entered():
            if getattr(message, "exclusive", False):
                link.reentrance.refuse()
            return self.free().call(message, timeout)
        with link.reentrance, link.lock:
            return self._call(message, timeout)

    def _call(self, message: Request[Reply], timeout: float | None = None) -> Reply:
        try:
            reply = self.io.exchange(message, self.session.start_call, timeout)
        finally:
            self.session.calls.pop(message.rid, None)
        return message.reply(reply)

    def publish(self, message: Publish, timeout: float | None = None) -> PublishConfirm:
        """Store a message, see :meth:`.SessionIO.publish`; also works in code that interrupted a call."""
        return self.free().io.publish(message, timeout)

    def settle(self, channel: int, outcome: int, leases: list[Lease]) -> None:
        """End leases; the settlement is sent immediately and kept until the broker confirms it.

        Never blocks under an event loop.
        """
        if len(leases) > _MAX_LEASES:
            for start in range(0, len(leases), _MAX_LEASES):
                self.settle(channel, outcome, leases[start : start + _MAX_LEASES])
            return
        if self.link.reentrance.is_entered():
            return self.link.reentrance.later(partial(self.settle, channel, outcome, leases))
        with self.link.lock:
            self._settle(channel, outcome, leases)

    def _settle(self, channel: int, outcome: int, leases: list[Lease]) -> None:
        if self.link.state is _CLOSED:
            raise ConnectionLost("the connection is closed")
        self.io.post(frame(self.session.settle(outcome, channel, leases)))

    def settle_message(self, channel: int, outcome: Outcome, message: TaskMessage) -> None:
        """Settle a message as :meth:`settle`, and report the state of its task, if ``message.run`` has one."""
        link = self.link
        if link.reentrance.is_entered():
            return link.reentrance.later(partial(self.settle_message, channel, outcome, message))
        with link.lock:
            if link.state is _CLOSED:
                raise ConnectionLost("the connection is closed")
            with link.run_lock:
                run = message.run
                is_start = run is _BEGUN and outcome is _ACK and link.takes_reports
                message.run = _ACKNOWLEDGED if is_start else _SETTLED
            if is_start:
                self.session.settlements.report(_START, message.lease, None)
            elif type(run) is TaskReport and link.takes_reports:
                self.session.settlements.report(outcome, message.lease, run)
            else:
                self.io.post(frame(self.session.settle(outcome, channel, [message.lease])))
                return
            self.session.held.pop(message.lease, None)
            self.io.post(b"")  # in one frame with the pending reports

    @property
    def takes_reports(self) -> bool:
        """True if the broker requests reports of task outcomes; it may change with a resume."""
        return self.link.takes_reports

    def settle_task(self, channel: int, outcome: int, lease: Lease, report: TaskReport) -> None:
        """End a lease and report the outcome of its task.

        With :attr:`.Outcome.REPORT`, the message was acknowledged when its task began, and the call only reports the
        outcome. This works as :meth:`settle`, but under an event loop the report of a success may wait some
        milliseconds for the next frame.

        Raises:
            RequestError: the report is not valid; :meth:`.TaskReport.cut` makes reports valid.
        """
        succeeded = report.state == _SUCCEEDED
        if not succeeded and report.fault:
            raise RequestError(report.fault)
        link = self.link
        if not link.takes_reports:
            if outcome != _REPORT:
                self.settle(channel, outcome, [lease])
            return
        if link.reentrance.is_entered():
            return link.reentrance.later(partial(self.settle_task, channel, outcome, lease, report))
        with link.lock:
            if link.state is _CLOSED:
                raise ConnectionLost("the connection is closed")
            self.session.settlements.report(outcome, lease, report)
            if outcome != _REPORT:
                self.session.held.pop(lease, None)
            elif succeeded and (observer := link.observer) is not None and observer.will_flush():
                return
            self.io.post(b"")

    def report_running(self, running: list[RunningLate], socket: FramedSocket | None) -> FramedSocket | None:
        """Report all running tasks whose messages are not acknowledged; the report replaces the last one.

        Args:
            socket: the return value of the last call with the same report. If it is still the current socket, nothing
                is sent. After a resume, the broker may be another process, which does not have the report.

        Returns:
            The current socket, which has the report; None while there is no socket.
        """
        with self.link.lock:
            current = self.link.current
            if current is not None and current is not socket and self.link.takes_reports:
                self.io.post(self.session.settlements.take_reports(running))
            return current

    def flush_reports(self) -> None:
        """Send the reports that are waiting for the next frame."""
        with self.link.lock:
            if self.session.settlements.reports:
                self.io.post(b"")

    # ------------------------------------------------------------ consuming
    def consume(self, message: Consume) -> None:
        """Start a consumer.

        Raises:
            ConsumerTagInUse: the channel has a consumer with this tag, which continues.
        """
        key = (message.channel, message.tag)
        self.link.reentrance.check()
        with self.link.reentrance, self.link.lock:
            self.check_tag(*key)
            self.link.ensure_open()  # a resume restarts the session's consumers
            self.session.consumers[key] = message  # its deliveries may arrive before the reply
            try:
                self._call(message)
            except BaseException:
                self.session.consumers.pop(key, None)
                raise

    def check_tag(self, channel: int, tag: str) -> None:
        """Raise :class:`ConsumerTagInUse` if the channel has a consumer with this tag."""
        if (channel, tag) in self.session.consumers:
            raise ConsumerTagInUse(f"consumer tag {tag!r} is in use on channel {channel}: choose another one", tag=tag)

    def cancel(self, channel: int, tag: str) -> None:
        """Cancel a consumer. Its deliveries that are not consumed yet return to their queue."""
        if (channel, tag) in self.session.consumers:
            self.end_consumer(channel, tag)

    def end_consumer(self, channel: int, tag: str) -> None:
        """End a consumer as :meth:`cancel`, also if only the broker knows it because its start was interrupted."""
        self.link.reentrance.check()
        with self.link.reentrance, self.link.lock:
            consumer = self.session.consumers.get((channel, tag))
            self._call(Cancel(0, channel, tag))
            self.session.cancelled(channel, tag)
            unread = self.session.take_deliveries(channel, tag)
            if unread and not (consumer is not None and consumer.no_ack):
                self._settle(channel, Outcome.RELEASE, [delivery.lease for delivery in unread])

    def get(self, channel: int, queue: str, *, no_ack: bool) -> Delivery | None:
        """Lease one message of the queue; return None if there is none."""
        self.link.reentrance.check()
        with self.link.reentrance, self.link.lock:
            answer: Got = self._call(Get(0, channel, queue, no_ack))
            if answer.delivery is not None and no_ack:
                self.session.held.pop(answer.delivery.lease, None)
            return answer.delivery

    def set_prefetch(self, channel: int, count: int) -> None:
        """Limit the unsettled deliveries that the channel may hold; 0 means no limit."""
        self.link.reentrance.check()
        with self.link.reentrance, self.link.lock:
            self.session.prefetch[channel] = count
            if not self._will_resume():
                self.io.send(Qos(0, channel, count))

    def set_credit(self, channel: int, count: int) -> None:
        """Set the number of further deliveries that the channel's consumers may receive, besides the prefetch limit."""
        self.link.reentrance.check()
        with self.link.reentrance, self.link.lock:
            self.session.credit[channel] = count
            if not self._will_resume():
                self.io.send(Credit(channel, count))

    def _will_resume(self) -> bool:
        """Return True if an event loop is about to resume, which sends the whole session state to the broker."""
        link = self.link
        return link.current is None and self.session.is_known and link.observer is not None and not link.is_closed

    def drain(self, timeout: float | None = None) -> None:
        """Wait until there is an event; None waits indefinitely.

        Raises:
            socket.timeout: there is no event in time.
        """
        if self.events:
            return
        self.link.reentrance.check()
        with self.link.reentrance:
            self._drain(timeout)

    def _drain(self, timeout: float | None) -> None:
        link = self.link
        deadline = None if timeout is None else self.clock.monotonic() + timeout
        while True:
            with link.lock:
                current = link.ensure_open(link.max_patience, deadline)
                self.io.check_alive()
                if self.events:
                    return
                if link.current is not current:
                    continue  # the connection broke just now
                waker = link.make_waker()
            link.reentrance.run()
            rest = None if deadline is None else deadline - self.clock.monotonic()
            if rest is not None and rest <= 0:
                raise TimeoutError("no event in time")
            limits = [limit for limit in (rest, current.silence) if limit is not None]
            if current.wait(min(limits, default=None), waker=waker):
                waker.clear()

    # ------------------------------------------------------------ channels and closing
    def add_channel(self, channel: Any) -> int:
        """Give a channel the lowest free number, from 1 up."""
        with self.link.lock:
            number = next(n for n in range(1, len(self.channels) + 2) if n not in self.channels)
            self.channels[number] = channel
            return number

    def close_channel(self, number: int) -> None:
        """End a channel's consumers and release its leases."""
        if self.link.reentrance.is_entered():
            return self.link.reentrance.later(partial(self.close_channel, number))
        with self.link.reentrance, self.link.lock:
            if self.channels.pop(number, None) is None:
                return
            try:
                if self.link.current is not None and not self.closed:
                    self._call(CloseChannel(0, number))
            finally:
                self.session.close_channel(number)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every publish is durable, see :meth:`PublishPipeline.flush`."""
        self.pipeline.flush(timeout)

    def close(self) -> None:
        """End the session: settlements are delivered, leases are released immediately.

        Errors of closing are not raised.

        Raises:
            PublishFailed: publishes of the pipeline were not confirmed. The session has ended nevertheless.
        """
        link, spare = self.link, self._spare
        if link.reentrance.is_entered():
            return link.reentrance.later(self.close)
        if spare is not None:
            self._spare = None
            spare.close()
        with link.reentrance, link.lock:
            if self.closed:
                return self.pipeline.raise_failures()
            try:
                self.pipeline.close()
                if link.current is None and self.session.is_known and self.session.settlements.unconfirmed:
                    link.resume_once()
                link.begin_close()
                if link.current is not None:
                    answer = self.io.exchange(Goodbye(0), self.session.start_request, self.options.close_timeout)
                    assert isinstance(answer, Ok)
            except (OpenDataError, OSError):
                pass
            finally:
                link.close()
            self.pipeline.raise_failures()

    def abandon(self) -> None:
        """End the session without waiting for the broker. Outcomes of its tasks may be reported in another session."""
        if self.link.reentrance.is_entered():
            return self.link.reentrance.later(self.abandon)
        if self._spare is not None:
            self._spare.abandon()
        with self.link.reentrance, self.link.lock:
            current = self.link.current
            if not self.closed and current is not None:
                with contextlib.suppress(OSError):
                    current.send_now(frame(Goodbye(self.session.last_rid + 1, tasks_go_on=True)))
            self.link.close()
            self.pipeline.log_failures()

    def after_fork_in_child(self) -> None:
        """Leave the session to the parent process; the next use opens a session of this process."""
        parents = self.link
        self._spare = None
        self._start_session(parent=parents)
        parents.leave_to_parent()
        self.gated.clear()
        for channel in self.channels.values():
            channel.after_fork_in_child()

    def renew_locks(self) -> None:
        """Replace the session of this process, unless it is connected."""
        if self.link.state is LinkState.NEW:
            self._start_session(parent=self.link)


_connections: weakref.WeakSet[BrokerConnection] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for connection in list(_connections):
        connection.after_fork_in_child()
    renew_after_patching(_renew_locks)


def _renew_locks() -> None:
    for connection in list(_connections):
        connection.renew_locks()


os.register_at_fork(after_in_child=_after_fork_in_child)
