"""Other brokers of the store: the gate that redirects clients to the active broker, and the connected standbys."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from ...errors import NotActive, ProtocolError
from ...protocol import messages as m
from ...protocol.messages import prove
from .connection_limits import Slot

log = logging.getLogger(__name__)

#: intervals without a heartbeat after which a standby can't take over
_SILENT_INTERVALS = 3
#: minimum difference between the clocks for a warning; a smaller difference may be caused by a stopped process
_CLOCK_SECONDS = 60.0


class Gate:
    """Gate that every client passes before its login. It is open unless this broker is the standby.

    Attributes:
        active: the addresses of the active broker.
        sends_away: True if another broker is active.
        watchers: called after each change of the gate.
    """

    def __init__(self) -> None:
        self.active: tuple[str, ...] = ()
        self.watchers: list[Callable[[], None]] = []
        self.sends_away = False
        self._is_known = asyncio.Event()  # cleared while clients must wait for the decision
        self._is_known.set()

    def send_away(self) -> None:
        """Redirect clients to the active broker."""
        self.sends_away = True
        self._is_known.set()
        self._changed()

    def hold(self) -> None:
        """Make clients wait, because this broker is about to become active."""
        self.sends_away = False
        self._is_known.clear()
        self._changed()

    def open(self) -> None:
        """Let clients pass, because this broker is active."""
        self.sends_away = False
        self._is_known.set()
        self._changed()

    def _changed(self) -> None:
        for watcher in self.watchers:
            watcher()

    @property
    def is_open(self) -> bool:
        return self._is_known.is_set() and not self.sends_away

    async def check(self) -> None:
        """Let a client pass, after a wait if necessary.

        Raises:
            NotActive: the client must connect to the active broker.
        """
        while not self._is_known.is_set():
            await self._is_known.wait()
        if self.sends_away:
            raise self.refusal()

    def refusal(self) -> NotActive:
        """Return the error for clients while another broker is active."""
        where = ", ".join(self.active)
        if where:
            text = f"this broker is not the active one of its store: connect to {where}"
        else:
            text = "this broker is not the active one of its store, and none is known now: try again"
        return NotActive(text, active=",".join(self.active))


class StandbyConnection(Protocol):
    """Connection of a standby."""

    slot: Slot

    def send_all(self, outgoing: list[Any]) -> None: ...


class Standby:
    """Connected standby.

    Attributes:
        heard_at: the time of its last message, by the event loop's clock.
        since: the time of its connection, in seconds since the Unix epoch.
        prepares: True if it supports the message Prepare.
        is_prepared: set when the standby has sent Prepared, or has disconnected.
    """

    __slots__ = ("addresses", "connection", "heard_at", "id", "is_prepared", "prepares", "since", "timer")

    def __init__(self, hello: m.StandbyHello, connection: StandbyConnection, heard_at: float) -> None:
        self.id, self.addresses, self.prepares = hello.id, hello.addresses, hello.prepares
        self.connection = connection
        self.is_prepared = asyncio.Event()
        self.heard_at = heard_at
        self.since = time.time()
        self.timer: asyncio.TimerHandle | None = None


def _ignore() -> None:
    """Do nothing."""


class Standbys:
    """Connected standbys, and their heartbeats.

    Args:
        is_sure: returns True if this broker is certainly active. If not, it sends no heartbeats, so that a standby
            checks whether it may take over.
        replaced: called with the addresses of a standby that has taken over.
        now: the event loop's clock.

    Attributes:
        seen_at: the time at which a standby was last connected, in seconds since the Unix epoch; None if never.
    """

    def __init__(
        self,
        is_sure: Callable[[], bool],
        replaced: Callable[[list[str]], None],
        now: Callable[[], float],
    ) -> None:
        self._is_sure = is_sure
        self._now = now
        self._replaced = replaced
        self._key = ""
        self._heartbeat_seconds = 1.0
        self._welcomed: Callable[[], None] = _ignore
        self.seen_at: float | None = None
        self._connected: dict[StandbyConnection, Standby] = {}

    def admit(self, key: str, heartbeat_seconds: float = 1.0, welcomed: Callable[[], None] = _ignore) -> None:
        """Begin to admit standbys, because this broker is active.

        Args:
            key: the key in the active record.
            heartbeat_seconds: the interval of the heartbeats of both sides.
            welcomed: called when a standby has connected.
        """
        self._key, self._heartbeat_seconds, self._welcomed = key, heartbeat_seconds, welcomed

    def takes(self, connection: StandbyConnection, message: Any) -> bool:
        """Handle a message of a standby; return False for a message of a client.

        Raises:
            ProtocolError: the standby has not proved that it reads the same store.
        """
        known = self._connected.get(connection)
        if known is not None:
            known.heard_at = self._now()
            if isinstance(message, m.Prepared):
                known.is_prepared.set()
            return True
        if not isinstance(message, m.StandbyHello):
            return False
        if self._proves(message, "successor"):
            self._replaced(message.addresses)
            return True
        if not self._is_sure() or not self._proves(message, "standby"):
            raise ProtocolError("this is not the active broker of the standby's store, or no longer")
        connection.slot.logged_in()
        standby = self._connected[connection] = Standby(message, connection, self._now())
        heartbeat_ms = int(1000 * self._heartbeat_seconds)
        proof = prove(self._key, "active", message.id, message.nonce, message.addresses)
        connection.send_all([m.StandbyWelcome(message.rid, proof, heartbeat_ms)])
        self._beat(standby)
        log.info("a standby is connected: %s", ", ".join(standby.addresses))
        self._welcomed()
        ahead = message.now_ms / 1000 - standby.since
        if message.now_ms and abs(ahead) > _CLOCK_SECONDS:
            text = (
                "the standby's clock is %.0f s %s this one's: after a take-over delays and times to live would end %s"
            )
            words = ("ahead of", "too early") if ahead > 0 else ("behind", "too late")
            log.warning(text, abs(ahead), *words)
        return True

    def _proves(self, hello: m.StandbyHello, role: str) -> bool:
        """Return True if the sender can read the store of which this broker is, or was, active."""
        proof = prove(self._key, role, hello.id, hello.nonce, hello.addresses) if self._key else b""
        return bool(proof) and hmac.compare_digest(hello.proof, proof)

    def _beat(self, standby: Standby) -> None:
        if self._is_sure():
            standby.connection.send_all([m.BrokerHeartbeat()])
        standby.timer = asyncio.get_running_loop().call_later(self._heartbeat_seconds, self._beat, standby)

    def discard(self, connection: Any) -> None:
        """Remove a closed connection."""
        standby = self._connected.pop(connection, None)
        if standby is not None:
            self.seen_at = time.time()
            standby.is_prepared.set()
            if standby.timer is not None:
                standby.timer.cancel()
            log.warning("a standby has disconnected: %s", ", ".join(standby.addresses))

    @property
    def ready(self) -> list[Standby]:
        """Standbys that can take over, the longest connected first."""
        silent = self._now() - _SILENT_INTERVALS * self._heartbeat_seconds
        return [standby for standby in self._connected.values() if standby.heard_at > silent]

    def report(self) -> list[dict[str, Any]]:
        """Return the report for the status call."""
        return [{"addresses": standby.addresses, "since_ms": int(1000 * standby.since)} for standby in self.ready]

    @property
    def seen_at_ms(self) -> int:
        """Time at which a standby was last connected; 0 if none was connected since startup."""
        return int(1000 * (time.time() if self.ready else self.seen_at or 0))
