"""The other brokers of the store: the gate that sends clients to the active one, and the connected standbys."""

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
#: a difference between the clocks that is logged; a smaller one may be caused by a frozen process
_CLOCK_SECONDS = 60.0


class Gate:
    """The gate that every client passes before its login. It is open unless this broker is the standby.

    Attributes:
        active: the addresses of the active broker.
        sends_away: another broker is active.
        watchers: called after each change.
    """

    def __init__(self) -> None:
        self.active: tuple[str, ...] = ()
        self.watchers: list[Callable[[], None]] = []
        self.sends_away = False
        self._is_known = asyncio.Event()  # it is known whether clients may pass
        self._is_known.set()

    def send_away(self) -> None:
        """Send clients to the active broker, which is another one."""
        self.sends_away = True
        self._is_known.set()
        self._changed()

    def hold(self) -> None:
        """Make clients wait, because this broker is about to be the active one."""
        self.sends_away = False
        self._is_known.clear()
        self._changed()

    def open(self) -> None:
        """Let clients pass, because this broker is the active one."""
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
        text = f"this broker is not the active one of its store: connect to {where}" if where else (
            "this broker is not the active one of its store, and none is known now: try again"
        )  # fmt: skip
        return NotActive(text, active=",".join(self.active))


class StandbyConnection(Protocol):
    """A standby's connection."""

    slot: Slot

    def send_all(self, outgoing: list[Any]) -> None: ...


class Standby:
    """One connected standby.

    Attributes:
        heard_at: when it last sent a message, by the monotonic clock.
        since: when it connected, in seconds since the Unix epoch.
        prepares: it supports the message Prepare.
        is_prepared: set when it has answered Prepare, or disconnected.
    """

    __slots__ = ("addresses", "connection", "heard_at", "id", "is_prepared", "prepares", "since", "timer")

    def __init__(self, hello: m.StandbyHello, connection: StandbyConnection) -> None:
        self.id, self.addresses, self.prepares = hello.id, hello.addresses, hello.prepares
        self.connection = connection
        self.is_prepared = asyncio.Event()
        self.heard_at = time.monotonic()
        self.since = time.time()
        self.timer: asyncio.TimerHandle | None = None


def _ignore() -> None:
    """Do nothing."""


class Standbys:
    """The connected standbys, and their heartbeats.

    Args:
        is_sure: returns whether this broker is certain to be the active one. If not, it is silent, so that a standby
            checks whether it may take over.
        replaced: called with the addresses of a standby that has taken over.

    Attributes:
        seen_at: when a standby was last connected, in seconds since the Unix epoch; None if never.
    """

    def __init__(self, is_sure: Callable[[], bool], replaced: Callable[[list[str]], None]) -> None:
        self._is_sure = is_sure
        self._replaced = replaced
        self._key = ""
        self._heartbeat_seconds = 1.0
        self._welcomed: Callable[[], None] = _ignore
        self.seen_at: float | None = None
        self._connected: dict[StandbyConnection, Standby] = {}

    def admit(self, key: str, heartbeat_seconds: float = 1.0, welcomed: Callable[[], None] = _ignore) -> None:
        """Begin to admit standbys: this broker is the active one.

        Args:
            key: the key in the active record.
            heartbeat_seconds: the interval in which both sides send.
            welcomed: called when a standby has connected.
        """
        self._key, self._heartbeat_seconds, self._welcomed = key, heartbeat_seconds, welcomed

    def takes(self, connection: StandbyConnection, message: Any) -> bool:
        """Take a message if it comes from a standby; returns whether it does.

        Raises:
            ProtocolError: the standby has not proved that it reads the same store.
        """
        known = self._connected.get(connection)
        if known is not None:
            known.heard_at = time.monotonic()
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
        standby = self._connected[connection] = Standby(message, connection)
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
        """Return whether the sender reads the store of which this broker is, or was, the active one."""
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
        """The standbys that can take over, the longest connected first."""
        silent = time.monotonic() - _SILENT_INTERVALS * self._heartbeat_seconds
        return [standby for standby in self._connected.values() if standby.heard_at > silent]

    def report(self) -> list[dict[str, Any]]:
        """Return the report for the status call."""
        return [{"addresses": each.addresses, "since_ms": int(1000 * each.since)} for each in self.ready]

    @property
    def seen_at_ms(self) -> int:
        """The time when a standby was last connected; 0 if none was since startup."""
        return int(1000 * (time.time() if self.ready else self.seen_at or 0))
