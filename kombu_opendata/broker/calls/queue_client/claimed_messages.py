"""Messages that a Read has leased, and its reply; limits of the queue client's calls."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

from ....errors import StoreError
from ....protocol import messages as m
from ....protocol.messages import Outcome
from ....storage.clock import Clock
from ....storage.read.queue_pages import QueuePages
from ....storage.state.queue_buckets import QueueEntry
from ...delivery.background import Background
from ...delivery.instance_core import Traffic
from ...delivery.lease_expiry import TimedLeases, session_of
from ...delivery.lease_tokens import LeaseTable
from ...model.queue import BrokerQueue
from ...model.sessions import Session

log = logging.getLogger(__name__)

#: maximum number of messages that one Read claims
MAX_QUANTITY = 1000
#: maximum number of rows of a page
MAX_PAGE = 1000
#: maximum lease or delay: thirty days
MAX_MS = 30 * 86_400_000
MAX_WAIT_MS = 3_600_000
#: size limit of the messages in a reply, unless the first one is larger
PAGE_BYTES = 4 << 20


class Claiming(NamedTuple):
    """Components that the reads of one instance use."""

    sessions: Mapping[bytes, Session]
    leases: LeaseTable
    timed: TimedLeases
    pages: QueuePages
    background: Background
    clock: Clock
    traffic: Traffic


class ClaimOutcome(Enum):
    """Result of a claim."""

    CLAIMED = auto()
    TAKEN = auto()  # the message was removed, is in flight or delayed, or its partition is at its limits
    EXPIRED = auto()
    OVER = (
        auto()
    )  # no more claims: the queue was deleted, paused or is at its limits, or the client is gone or suspended


class Claimed:
    """Messages that a Read has claimed so far."""

    def __init__(self, uses: Claiming, session: Session, queue: BrokerQueue, msg: m.Read) -> None:
        self._uses = uses
        self._session, self._queue, self._msg = session, queue, msg
        self._holder = Session(session_of(session.client), session.name)
        self._rows: list[m.ReadRow] = []
        self._received: list[int] = []  # for each row
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_enough(self) -> bool:
        return len(self._rows) >= self._msg.quantity or self._bytes >= PAGE_BYTES

    async def claim(self, id: int) -> ClaimOutcome:
        """Load a message, and claim it if possible."""
        queue, now_ms = self._queue, self._uses.clock.now_ms
        envelope = await queue.fetch(id)
        session = self._uses.sessions.get(self._session.id)
        if session is None or session.connection is None or session.suspended or queue.deleting or queue.is_paused:
            return ClaimOutcome.OVER
        if not session.rights.read[queue.name]:  # the right existed when the call began
            return ClaimOutcome.OVER
        entry, now = queue.messages.available.get(id), now_ms()
        if entry is None or envelope is None or not entry.is_visible(now):
            return ClaimOutcome.TAKEN
        if 0 < entry.deadline <= now:
            return ClaimOutcome.EXPIRED
        if queue.flow is not None and not queue.room(now):
            return ClaimOutcome.OVER
        if queue.messages.is_limited(entry, now):
            return ClaimOutcome.TAKEN
        self.add(entry, envelope)
        self._uses.traffic.delivered += 1
        return ClaimOutcome.CLAIMED

    def add(self, entry: QueueEntry, envelope: bytes | None = None) -> None:
        """Lease a ready message with this payload; None means that the payload is in memory."""
        queue, msg = self._queue, self._msg
        loaded = queue.claim(entry, self._holder, msg.vt_ms)
        if envelope is None:
            envelope = loaded or b""
        returned = entry.returned or entry.attempts > 1
        self._rows.append((entry.id, entry.claimed_at, entry.attempts, entry.lease_until, envelope, returned))
        self._received.append(entry.received_at)
        self._bytes += len(envelope)
        if msg.pop:
            self._uses.leases.end(self._holder, queue, entry, Outcome.ACK)
        else:
            self._uses.timed.note(queue.name, entry)

    def clear(self) -> None:
        """Discard the messages, because their queue was deleted."""
        self._rows.clear()
        self._received.clear()

    def answer(self) -> None:
        """Reply to the Read; first read the times of receipt from the store, unless they are in memory."""
        if all(self._received):
            self._answer()
        else:
            self._uses.background.run(self._session, self._msg.rid, self.look_up_and_answer(), once=True)

    async def look_up_and_answer(self) -> None:
        """Reply as :meth:`answer`, for a call that already runs in the background."""
        unknown = [row[0] for row, at in zip(self._rows, self._received, strict=True) if not at]
        if unknown:
            try:
                metadata = await self._uses.pages.metadata(unknown)
            except StoreError as exc:
                log.error("the times when messages were received can't be read: %s", exc)
                metadata = {}
            received = {id: about.received_at_ms for id, about in metadata.items()}
            self._received = [at or received.get(row[0], 0) for row, at in zip(self._rows, self._received, strict=True)]
        self._answer()

    def _answer(self) -> None:
        answer = m.ReadMessages(self._msg.rid, self._rows, self._received)
        self._uses.background.answer(self._session, self._msg.rid, answer, self._bytes)
