"""The entry of a message in a queue, the rules for its deadlines, and the loaded buckets of entries.

The arguments of a queue that determine the state of a message (deadlines, delays, counting of bytes) are part of its
declaration, which is stored, so a replay of the journal has the same results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any, NamedTuple

import msgspec

from ...protocol.queue_arguments import DEFAULT_RETRY_MAX_DELAY_MS
from ..records import active

MAX_DEADLINE_MS = (1 << 63) - 1
_MAX_RETENTION_SECONDS = 0xFFFF_FFFF
#: the metadata header with a message's TTL in ms, unless that is the record's retention in whole seconds
TTL_HEADER = "x-opendata-ttl-ms"
_MAX_TTL_DIGITS = 19


def retention_of(ttl_ms: int) -> int:
    """Return the retention of a message's metadata record, whole seconds rounded up; 0 if there is no TTL (-1)."""
    return min(-(-ttl_ms // 1000), _MAX_RETENTION_SECONDS) if ttl_ms > 0 else int(ttl_ms == 0)


def is_exact(ttl_ms: int) -> bool:
    """Return True if the retention equals the TTL exactly, so that no header is needed."""
    return ttl_ms < 0 or ttl_ms == 1000 * retention_of(ttl_ms)


def stored_deadline(received_at: int, retention_seconds: int, headers: Mapping[str, str]) -> int:
    """Return the time at which a stored message expires, by its metadata; 0 for never."""
    if not retention_seconds:
        return 0
    ttl, text = 1000 * retention_seconds, headers.get(TTL_HEADER, "")
    # a publisher may have set the header: it is used only if it agrees with the retention
    if text.isdecimal() and len(text) <= _MAX_TTL_DIGITS and retention_of(int(text)) == retention_seconds:
        ttl = int(text)
    return min(received_at + ttl, MAX_DEADLINE_MS)


class DeadlineRules(NamedTuple):
    """The limits of one durable or transient queue."""

    message_ttl_ms: int = -1  # -1: no TTL
    retry_delay_ms: int = 0
    retry_max_delay_ms: int = 0
    counts_bytes: bool = False

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> DeadlineRules:
        """Return the limits in a declaration's arguments, which the broker has checked."""
        delay = _int(arguments, "x-retry-delay", 0)
        longest = _int(arguments, "x-retry-max-delay", max(delay, DEFAULT_RETRY_MAX_DELAY_MS))
        counts_bytes = _int(arguments, "x-max-length-bytes", -1) >= 0
        return cls(_int(arguments, "x-message-ttl", -1), delay, longest, counts_bytes)

    def deadline(self, own: int, visible: int, now: int) -> int:
        """Return the expiry of a message in this queue, which has a TTL; ``own`` is the message's deadline, or 0."""
        queue_deadline = min(max(visible, now) + self.message_ttl_ms, MAX_DEADLINE_MS)
        return min(own, queue_deadline) if own else queue_deadline

    def retry_at(self, at: int, attempts: int) -> int:
        """Return the time at which a message is visible again after its return; 0 means immediately.

        Args:
            at: the time of the return.
            attempts: the number of attempts so far.
        """
        if not self.retry_delay_ms:
            return 0
        return at + min(self.retry_delay_ms << min(attempts - 1, 62), self.retry_max_delay_ms)


def _int(arguments: Mapping[str, Any], name: str, default: int) -> int:
    """Return an argument; an invalid one, which a version without checks accepted, counts as missing."""
    value = arguments.get(name)
    return value if type(value) is int and value >= 0 else default


#: a row of an active record: id, priority, visible or claimed at, deadline or end of the lease, attempts
Row = tuple[int, int, int, int, int]


class QueueRow(msgspec.Struct, array_like=True, gc=False):
    """A stored message that is added to a queue, as in the journal.

    ``priority`` is the stored one: lower first. ``deadline_ms`` is 0 if it never expires. ``size`` is in bytes, and 0
    if the queue does not count them.
    """

    id: int
    bucket: int
    priority: int
    visible_at_ms: int
    deadline_ms: int
    size: int


class QueueEntry(msgspec.Struct, eq=False, gc=False):
    """One message in one queue.

    Attributes:
        priority: the stored priority, lower first.
        size: in bytes; 0 if the queue does not count bytes.
        received_at: the time at which the broker received the message; 0 in an entry that was loaded from the store.
        session: the holder of the lease.
        envelope: the message itself in a transient queue, whose messages are not stored; None in a durable queue.
        returned: True if the message was delivered before and returned, since its entry was loaded. This is not stored:
            earlier deliveries are known by ``attempts``, except those that cost no attempt.
    """

    queue: str
    bucket: int
    id: int
    priority: int
    visible_at: int
    deadline: int
    attempts: int = 0
    size: int = 0
    received_at: int = 0
    claimed_at: int = 0
    lease_until: int = 0
    session: bytes = b""
    envelope: bytes | None = None
    returned: bool = False

    def is_visible(self, now: int) -> bool:
        """Return True if the message, which is available, can be delivered now.

        A message that was returned immediately is visible from the millisecond after its claim, so that no two claims
        have the same time, which is their token. It need not wait for that millisecond: its claim is dated ahead.
        """
        return self.visible_at <= now or self.visible_at == self.claimed_at + 1


def _available_rows(entries: Iterable[QueueEntry]) -> list[Row]:
    return [(e.id, e.priority, e.visible_at, e.deadline, e.attempts) for e in entries]


class QueueBucket:
    """The loaded entries of one bucket. No available message expires before ``next_deadline``; 0 if none expires."""

    __slots__ = ("_last", "_record", "available", "in_flight", "next_deadline", "stored")

    def __init__(self) -> None:
        self.available: dict[int, QueueEntry] = {}
        self.in_flight: dict[int, QueueEntry] = {}
        self.next_deadline = 0
        self.stored = False  # the store has a record of it
        self._record = b""  # the last one
        self._last: QueueEntry | None = None  # its last available message

    def rows(self) -> tuple[list[Row], list[Row]]:
        """Return the two lists of the RFC's active record."""
        return _available_rows(self.available.values()), self._rows_in_flight()

    def _rows_in_flight(self) -> list[Row]:
        return [(e.id, e.priority, e.claimed_at, e.lease_until, e.attempts) for e in self.in_flight.values()]

    def record(self) -> bytes:
        """Return the RFC's active record.

        A checkpoint rewrites every bucket that changed. Usually messages were added at the end and left from the start
        since the last record: then only the new ones are encoded, and the others are copied from it.
        """
        available, last, old = self.available, self._last, b""
        new: list[QueueEntry] = []
        for entry in reversed(available.values()):
            if entry is last:  # by its id, a message that left and came again would be taken for the one before
                break
            new.append(entry)
        if len(new) < len(available):
            old = active.encoded_available(self._record, next(iter(available)), len(available) - len(new))
            if not old:  # a message in between has left
                new = list(reversed(available.values()))
        self._record = active.encode(_available_rows(reversed(new)), self._rows_in_flight(), old)
        self._last = new[0] if new else last
        return self._record

    def forget_record(self) -> None:
        """Encode all messages for the next record, because one of them has changed."""
        self._record, self._last = b"", None

    def expired(self, now: int, fresh: Set[int]) -> list[QueueEntry]:
        """Return the available messages that have expired, except ``fresh`` ones; also set the next deadline."""
        entries = [e for e in self.available.values() if 0 < e.deadline <= now and e.id not in fresh]
        expired_ids = {entry.id for entry in entries}
        deadlines = [e.deadline for e in self.available.values() if e.deadline and e.id not in expired_ids]
        self.next_deadline = min(deadlines, default=0)
        return entries
