"""The holders of messages: sessions, and clients with timed leases."""

from __future__ import annotations

from collections.abc import Mapping

from ....protocol.messages.queue_messages import StateRow
from ....storage.read.queue_pages import RUNNING, Row
from ....storage.state.queue_buckets import QueueEntry
from ....storage.state.settled_list import LISTS
from ...delivery.lease_expiry import TimedLeases, is_timed, session_of
from ...model.sessions import Session


class Holders:
    """The holders of one instance's messages."""

    def __init__(self, sessions: Mapping[bytes, Session], timed: TimedLeases) -> None:
        self._sessions = sessions
        self._timed = timed

    def of(self, entry: QueueEntry) -> Session:
        """Return the holder of a message, as a session."""
        return self._sessions.get(entry.session) or self._timed.holder(entry)

    def name(self, holder: bytes) -> str:
        """Return the name of a lease's session; empty if it is not known."""
        session = self._sessions.get(holder)
        return session.name if session is not None else self._timed.name_of(holder)

    def worker(self, holder: bytes) -> bytes:
        """Return the worker of a lease's session. The client of a session from before a restart is not known."""
        session = self._sessions.get(holder)
        if session is not None:
            return session_of(session.client)
        return holder if is_timed(holder) else session_of(holder)

    def row(self, row: Row) -> StateRow:
        """Return a row for the client, with Kombu's priority and the holder's name."""
        holder = self.name(row.session) if row.session else ""
        priority = 0 if row.state in LISTS or row.state == RUNNING else 255 - row.priority
        return (
            row.id, row.state, priority, row.visible_at_ms, row.attempts, row.token, row.lease_until_ms, holder,
            row.settled_at_ms,
        )  # fmt: skip
