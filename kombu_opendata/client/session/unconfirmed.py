"""Settlements and publishes of a session that the broker has not confirmed; a resume repeats them.

The broker may refuse a publish although it is stored, when its store does not answer. A publish of the same content
over this session then counts as the same message (:class:`UncertainPublishes`): it gets the number of the first
attempt, by which the broker recognizes a stored message.
"""

from __future__ import annotations

import hashlib
from collections import deque
from enum import Enum
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from ...errors import FailedPublish, OpenDataError, PublishFailed
from ...protocol.envelope import encode_fields, open_envelope
from ...protocol.framing import client_messages, frame
from ...protocol.messages import Lease, Publish, Reported, ReportTasks, RunningLate, Send, Settle
from ...protocol.task_reports import TaskReport

#: limit for the characters of unconfirmed reports; further reports omit their texts, because one frame (Resume) has all
MAX_TEXTS = 4 << 20


class Settlements:
    """Settlements of one session on its connection.

    Attributes:
        unconfirmed: unconfirmed settlements, in order: outcome, queue, message id, token, and the report of the task,
            if there is one.
        reports: those of the unconfirmed settlements that are not sent yet: they wait for the next frame with reports.
    """

    __slots__ = ("_confirmed", "_reported", "_settled", "_texts", "reports", "unconfirmed")

    def __init__(self) -> None:
        self.unconfirmed: deque[tuple[int, str, int, int] | Reported] = deque()
        self.reports: list[Reported] = []
        self._settled = 0  # on this connection
        self._confirmed = 0  # of these
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
        for _ in range(min(settled - self._confirmed, len(unconfirmed))):
            unconfirmed.popleft()
        self._confirmed = max(settled, self._confirmed)
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
        self._settled = self._confirmed = self._texts = 0


#: number of ids that an error or a log line lists
_LISTED_IDS = 20


class PublishInFlight(NamedTuple):
    """Publish in flight; ``failures`` receives an entry if it fails."""

    size: int
    exchange: str
    routing_key: str
    task_id: str
    message_id: str
    failures: list[FailedPublish]


class PublishesInFlight:
    """Publishes in flight on one session, by request id.

    Attributes:
        by_rid: the publishes, oldest first.
        bytes: the size of their frames.
    """

    __slots__ = ("by_rid", "bytes")

    def __init__(self) -> None:
        self.by_rid: dict[int, PublishInFlight] = {}
        self.bytes = 0

    def add(self, rid: int, publish: PublishInFlight) -> None:
        self.by_rid[rid] = publish
        self.bytes += publish.size

    def remove(self, rid: int) -> PublishInFlight | None:
        """Forget a publish, which was confirmed or could not be sent."""
        publish = self.by_rid.pop(rid, None)
        if publish is not None:
            self.bytes -= publish.size
        return publish

    def fail(self, rid: int, error: OpenDataError) -> None:
        """Forget a publish and add it to its list of failures."""
        publish = self.remove(rid)
        if publish is not None:
            publish.failures.append(
                FailedPublish(publish.exchange, publish.routing_key, publish.task_id, publish.message_id, error)
            )


def publish_failed(failed: list[FailedPublish], more: str = "") -> PublishFailed:
    """Return the error that reports these publishes."""
    ids = ", ".join(entry.task_id or entry.message_id or entry.routing_key for entry in failed[:_LISTED_IDS])
    rest = f" and {len(failed) - _LISTED_IDS} more" if len(failed) > _LISTED_IDS else ""
    return PublishFailed(
        f"{len(failed)} publishes were not confirmed: {ids}{rest}; the first: {failed[0].error}{more}", failed=failed
    )


_HEADER_BYTES = 4  # of the length of a frame
#: the broker remembers a session's last 1,024 numbers
_REMEMBERED = 1000


class UncertainPublishes:
    """Uncertain publishes of one session.

    Attributes:
        numbers: numbers of the publishes, by content.
    """

    __slots__ = ("numbers",)

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}

    def note(self, frame: bytes) -> None:
        """Record that this request was refused and that it is unknown whether it was stored."""
        message = client_messages.decode(frame[_HEADER_BYTES:])
        if isinstance(message, (Publish, Send)):
            self.numbers[content_of(message)] = message.seq

    def confirm(self, frame: bytes) -> None:
        """Record that this request was stored."""
        message = client_messages.decode(frame[_HEADER_BYTES:])
        if isinstance(message, (Publish, Send)):
            self.numbers.pop(content_of(message), None)

    def number_of(self, message: Any, last: int) -> int | None:
        """Return the number of an earlier attempt to publish this message, if the broker still remembers it.

        ``last`` is the number of the session's last publish.
        """
        for content, number in list(self.numbers.items()):
            if number > last - _REMEMBERED:
                break
            del self.numbers[content]
        return self.numbers.get(content_of(message))


def content_of(message: Publish | Send) -> bytes:
    """Return a digest of the content that identifies a message; its time does not count."""
    envelopes = [message.envelope] if isinstance(message, Publish) else [envelope for envelope, *_ in message.messages]
    digest = hashlib.blake2b(repr((message.exchange, message.routing_key, len(envelopes))).encode(), digest_size=16)
    for envelope in envelopes:
        opened = open_envelope(envelope)
        if opened is None:
            digest.update(envelope)
        else:
            body, content_type, encoding, headers, properties, *_ = opened
            timeless = {name: value for name, value in properties.items() if name != "timestamp"}
            digest.update(encode_fields((body, content_type, encoding, headers, timeless)))
    return digest.digest()


class TaskRun(Enum):
    """State of a task for which no report is pending."""

    BEGUN = "it runs, or will: an ack reports its start"
    ACKNOWLEDGED = "it runs; its end is reported separately"
    SETTLED = "the message is settled, and nothing is to be reported any more"


class TaskMessage(Protocol):
    """Message that was delivered.

    Attributes:
        run: the state of its task, if a worker reports it: the report for its settlement, or a :class:`TaskRun`.
    """

    lease: Lease
    run: TaskReport | TaskRun | None
