"""Watches of clients for results."""

from __future__ import annotations

from ...errors import RequestError
from ...protocol.messages import ResultsChanged
from ...storage.records.results import INTERIM, Result
from ..model.sessions import Session
from .outbox import Outbox

#: maximum length of the names of results, chords and their members
MAX_NAME_BYTES = 1024
#: maximum time to live of a result: a hundred years, so that its expiry fits the record
MAX_TTL_MS = 100 * 366 * 86_400_000
#: maximum number of results that one client may wait for at a time
MAX_WATCHES = 1_000_000
#: maximum size of a result that is pushed; the watchers of a larger result are notified to request it
_PUSH_BYTES = 64 << 10


class ResultWatches:
    """Watches of one instance's clients."""

    def __init__(self, outbox: Outbox, *, limit: int = MAX_WATCHES) -> None:
        self._limit = limit
        self._outbox = outbox
        self._watchers: dict[bytes, set[Session]] = {}
        self._watched: dict[Session, dict[bytes, bool]] = {}  # True after the session was notified of the result

    # ------------------------------------------------------------------ watching
    def watch(self, session: Session, name: bytes) -> None:
        self._watchers.setdefault(name, set()).add(session)
        self._watched.setdefault(session, {})[name] = False

    def unwatch(self, session: Session, name: bytes) -> None:
        watchers, watched = self._watchers.get(name), self._watched.get(session)
        if watchers is not None:
            watchers.discard(session)
            if not watchers:
                del self._watchers[name]
        if watched is not None:
            watched.pop(name, None)
            if not watched:
                del self._watched[session]

    def check_room(self, session: Session, names: int) -> None:
        """Limit the watches of a client.

        Raises:
            RequestError: the client would have more than the limit.
        """
        count = len(self._watched.get(session, ())) + names
        if count > self._limit:
            raise RequestError(
                f"a client may wait for {self._limit} results at a time, not {count}: forget some first",
                limit=self._limit,
            )

    def is_waiting(self, session: Session, name: bytes) -> bool:
        """Return True if the session watches a result and was not notified of it yet."""
        return self._watched.get(session, {}).get(name) is False

    def forget_session(self, session: Session) -> None:
        """Remove the watches of a session without a connection; the client renews them when it reconnects."""
        for name in list(self._watched.get(session, ())):
            self.unwatch(session, name)

    def changed(self, name: bytes, result: Result) -> None:
        """Notify all watchers of a result, after the commit."""
        for session in list(self._watchers.get(name, ())):
            self.push(session, name, result)

    def push(self, session: Session, name: bytes, result: Result) -> None:
        """Notify one session; any result except an intermediate state ends its watch."""
        ends = result.kind != INTERIM
        if ends:
            self.unwatch(session, name)
        else:
            self._watched[session][name] = True
        connection = session.connection
        is_small = result.place is None and len(result.value) <= _PUSH_BYTES
        fits = connection is not None and connection.writable and is_small
        self._outbox.reply(session, ResultsChanged([(name, result.value if fits else None, ends)]))
