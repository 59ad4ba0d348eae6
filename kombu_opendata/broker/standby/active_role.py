"""Active role: the right to serve a store. One broker has it; the other brokers of the store are standbys."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from ...errors import OpenDataError
from ..delivery.active_lease import ActiveLease
from ..wire.standby_connections import Gate, Standby, Standbys

#: exit codes of a broker that failed, and of a broker that was replaced
EXIT_FAILED, EXIT_FENCED = 1, 6


@dataclass(frozen=True)
class ActiveRoleSettings:
    """Settings that concern the other brokers of the store."""

    standby: bool  # wait if another broker is active; when this broker is active, another standby can replace it
    take_over: bool  # replace the active broker even if it is alive
    renew_seconds: float  # the interval at which the active broker reads its record
    instances: tuple[str, ...]  # the instances that are opened at startup
    tls: Callable[[], ssl.SSLContext]  # creates the context for connections to the active broker
    serves_tls: bool = False  # True if this broker's clients use TLS
    #: id and key of this broker for the active record
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    key: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)


@dataclass(frozen=True)
class ClientEntry:
    """Parts of a broker that its active role controls."""

    gate: Gate
    standbys: Standbys
    active_lease: ActiveLease
    fenced: Callable[[OpenDataError], None]  # called when another broker has taken over
    #: reads the data that is necessary to open these instances; never fails
    read_ahead: Callable[[Iterable[str]], Awaitable[None]]


class ActiveRole:
    """Right to serve one store. This class is for a store that only this process can reach: in memory."""

    instances: tuple[str, ...] = ()  # the instances that must be open before this broker serves

    async def take(self, front: ClientEntry, addresses: tuple[str, ...]) -> None:
        """Wait until this broker is the active broker; ``addresses`` are those for clients, as far as they are known.

        Raises:
            StoreInUse: another broker is active, and this one is no standby.
            NewerFormat: the active broker has a newer version, which this one can't replace.
            StoreError: the store does not respond.
        """

    async def announce(self, addresses: tuple[str, ...]) -> None:
        """Publish the addresses of this broker, which is now active, for clients."""

    async def watch(self) -> None:
        """Check periodically that this broker is still active."""

    async def opening(self, instance: str) -> None:
        """Record that this broker is about to open an instance; raise StoreFenced if another broker is active."""

    async def find_successor(self) -> None:
        """Set the gate's address of the active broker after this broker was fenced."""

    async def prepare(self, standby: Standby) -> None:
        """Let a standby prepare for a take-over while this broker still serves."""

    async def hand_over(self, standby: Standby) -> bool:
        """Hand over to a standby after the last commit; return False if the store must be closed first."""
        return False

    async def wait_for_successor(self) -> None:
        """Wait until the standby is active, or may become active without this process."""

    async def leave(self) -> None:
        """Release the store after it was closed: any broker may become active."""

    def release(self) -> None:
        """Free the role's resources at the end of the process."""
