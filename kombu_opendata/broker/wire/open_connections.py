"""Open connections of a broker, and counters of refused connections."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from ...errors import AccessRefused, NotActive, OpenDataError
from ...protocol.messages.message_base import WireMessage
from ..access.audit import Audit
from ..access.quotas import Quotas
from ..delivery.rate_limited_log import Notices
from ..delivery.slow_turns import SlowTurns
from ..metrics.metric_catalogue import MetricsSnapshot
from .connection_limits import Admission, ConnectionLimits, Slot
from .logins import Logins
from .partial_frames import DEFAULT_BYTES, PartialFrames
from .standby_connections import Gate, Standbys

log = logging.getLogger(__name__)

#: received bytes after which memory is checked
LOOK_BYTES = 8 << 20


class OpenConnection(Protocol):
    """Open connection of a client."""

    slot: Slot

    def check_login(self, logins: Logins) -> None: ...

    def check_stuck(self) -> None: ...

    def say_goodbye(self, message: WireMessage) -> None: ...


class Connections:
    """Open connections.

    Attributes:
        admission: limits the number of connections.
        gate: redirects the clients of a standby.
        standbys: the connected standbys.
        quotas: the limits of users and instances.
        opened: the number of connections since startup.
        refused: the number of connections that were refused or cut off, by the error's code.
        partial_frames: limits the memory of incomplete messages.
        slow_turns: the slow steps of the event loop.
        received_bytes: number of bytes since the last :meth:`look`.
        idle_since: the time at which the last connection was closed, by the event loop's clock.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        quotas: Quotas,
        standbys: Standbys,
        check_memory: Callable[[], None],
        partial_frames_bytes: int = DEFAULT_BYTES,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._check_memory = check_memory
        self.admission = Admission(limits)
        self.gate = Gate()
        self.standbys = standbys
        self.quotas = quotas
        self.open: dict[OpenConnection, None] = {}
        self.opened = 0
        self.refused: Counter[str] = Counter()
        self.notices = Notices(log, self._loop.time)
        self.slow_turns = SlowTurns(self._loop)
        self.audit = Audit(self._loop.time)
        self.idle_since = self._loop.time()
        self.received_bytes = 0
        self.partial_frames = PartialFrames(self._loop.time, partial_frames_bytes)

    def look(self) -> None:
        """Check the memory after many bytes have arrived."""
        self.received_bytes = 0
        self._check_memory()

    def add(self, connection: OpenConnection) -> None:
        """Add a new connection."""
        self.open[connection] = None
        self.opened += 1

    def discard(self, connection: OpenConnection) -> None:
        """Remove a closed connection."""
        self.open.pop(connection, None)
        self.standbys.discard(connection)
        self.idle_since = self._loop.time()

    def tick(self, *, memory_is_full: bool) -> None:
        """Log counts; while memory is scarce, also end connections that hold memory and neither send nor read.

        Called twice per second.
        """
        self.notices.tick()
        self.slow_turns.tick()
        self.partial_frames.tick(memory_is_full=memory_is_full)
        if memory_is_full:
            for connection in list(self.open):
                connection.check_stuck()

    def close_logs(self) -> None:
        """Log the remaining counts, at shutdown."""
        self.notices.close()
        self.audit.close()

    def turned_away(self, exc: OpenDataError, who: str) -> None:
        """Count and log a client that was refused before it got a connection."""
        self.note_refused(exc, "a connection was refused", who)

    def note_refused(self, exc: OpenDataError, what: str, who: str) -> None:
        """Count and log a connection that was closed or refused.

        Args:
            what: the event; one of a few texts.
            who: the client.
        """
        self.refused[exc.code] += 1
        if isinstance(exc, NotActive):
            return  # a standby refuses all clients
        if isinstance(exc, AccessRefused) and exc.right:
            self.audit.refused(exc, who)
            return
        kind = f"{what} ({exc.code})"  # a flood of one kind must not hide the others
        self.notices.say(logging.WARNING, kind, "%s (%s): %s", what, who, exc.text, code=exc.code)

    def check_logins(self, logins: Logins) -> None:
        """End the connections of users who were removed or have a new secret."""
        for connection in list(self.open):
            connection.check_login(logins)

    def say_goodbye(self, message: WireMessage) -> None:
        """Notify all clients that the broker stops, or that another broker is active, and close their connections."""
        for connection in list(self.open):
            connection.say_goodbye(message)

    def measure(self, snapshot: MetricsSnapshot) -> None:
        """Add the connections to a scrape of the metrics."""
        snapshot.set("connections", len(self.open))
        snapshot.set("connections_limit", self.admission.limits.connections)
        snapshot.set("connections_not_logged_in", self.admission.strangers)
        snapshot.set("connections_opened_total", self.opened)
        for code, count in self.refused.items():
            snapshot.set("connections_refused_total", count, code)
        for cause, steps in self.slow_turns.counts.items():
            snapshot.set("event_loop_slow_steps_total", steps, cause)
            snapshot.set("event_loop_slow_seconds_total", self.slow_turns.seconds[cause], cause)
