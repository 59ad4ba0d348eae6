"""Publishes of a session that the broker has not confirmed, and the states of tasks; a resume repeats the publishes.

While its store does not answer, the broker refuses publishes, although some of them may be stored later. If the same
content is then published again over this session, it counts as the same message (:class:`UncertainPublishes`): it gets
the number of the first attempt, by which the broker recognizes a stored message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple, Protocol

from ...errors import FailedPublish, OpenDataError, PublishFailed
from ...protocol.envelope import encode_fields, open_envelope
from ...protocol.framing import Frame, client_messages
from ...protocol.messages import Lease, Publish, Send
from ...protocol.task_reports import TaskReport

#: number of ids that an error or a log line lists
_LISTED_IDS = 20


class PublishInFlight(NamedTuple):
    """Publish in flight.

    Attributes:
        failures: receives an entry if it fails.
        count_in_flight: called with 1 when it is in flight, and with -1 when it is confirmed or has failed.
        on_conflict: called as :data:`.unique_conflict` if another message holds its unique key, before the end of the
            flight is counted.
    """

    size: int
    exchange: str
    routing_key: str
    task_id: str
    message_id: str
    failures: list[FailedPublish]
    count_in_flight: Callable[[int], object] | None = None
    on_conflict: Callable[[str], object] | None = None


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
        if publish.count_in_flight is not None:
            publish.count_in_flight(1)

    def conflict(self, rid: int, holder: str) -> None:
        """Report that another message holds the unique key of a publish."""
        on_conflict = self.by_rid[rid].on_conflict
        if on_conflict is not None:
            on_conflict(holder)

    def remove(self, rid: int) -> None:
        """Forget a publish, which was confirmed or could not be sent."""
        publish = self.by_rid.pop(rid, None)
        if publish is not None:
            self.bytes -= publish.size
            if publish.count_in_flight is not None:
                publish.count_in_flight(-1)

    def fail(self, rid: int, error: OpenDataError) -> None:
        """Forget a publish and add it to its list of failures."""
        publish = self.by_rid.get(rid)
        if publish is not None:
            publish.failures.append(
                FailedPublish(publish.exchange, publish.routing_key, publish.task_id, publish.message_id, error)
            )
            self.remove(rid)


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

    def note(self, frame: Frame) -> None:
        """Record that this request was refused and that it is unknown whether it was stored."""
        message = client_messages.decode(frame[_HEADER_BYTES:])
        if isinstance(message, (Publish, Send)):
            self.numbers[content_of(message)] = message.seq

    def confirm(self, frame: Frame) -> None:
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
                break  # some of the others may be older: two equal messages that were in flight have one entry
            del self.numbers[content]
        number = self.numbers.get(content_of(message), 0)
        return number if number > max(0, last - _REMEMBERED) else None


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
