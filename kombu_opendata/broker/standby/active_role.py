"""The active role: the right to serve a store. One broker has it; the others are standbys."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from ...errors import OpenDataError
from ..delivery.active_lease import ActiveLease
from ..wire.standbys import Gate, Standby, Standbys

#: exit codes of a broker that failed, and of a broker that another one has replaced
EXIT_FAILED, EXIT_FENCED = 1, 6


@dataclass(frozen=True)
class ActiveRoleSettings:
    """The settings of a broker that concern the other brokers of its store.

    Attributes:
        standby: wait if another broker is active; this broker can then be replaced by others, too.
        take_over: replace the active broker even if it is alive.
        renew_seconds: how often the active broker reads its record.
        instances: the instances that are opened at startup.
        id: the id of this process.
        key: for the active record.
        tls: creates the context for connections to the active broker.
        serves_tls: clients use TLS at this broker.
    """

    standby: bool
    take_over: bool
    renew_seconds: float
    instances: tuple[str, ...]
    tls: Callable[[], ssl.SSLContext]
    serves_tls: bool = False
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    key: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)


@dataclass(frozen=True)
class ClientEntry:
    """The parts of a broker that its active role controls.

    Attributes:
        fenced: called when another broker has taken over.
        read_ahead: reads the data that opening these instances needs; never fails.
    """

    gate: Gate
    standbys: Standbys
    active_lease: ActiveLease
    fenced: Callable[[OpenDataError], None]
    read_ahead: Callable[[Iterable[str]], Awaitable[None]]


class ActiveRole:
    """The right to serve one store; this one is of a store that only this process can reach: memory.

    Attributes:
        instances: the instances that must be open before this broker serves.
    """

    instances: tuple[str, ...] = ()

    async def take(self, front: ClientEntry, addresses: tuple[str, ...]) -> None:
        """Wait until this broker is the active one.

        Args:
            addresses: where clients reach it, as far as that is known.

        Raises:
            StoreInUse: another broker is active, and this one must not wait.
            NewerFormat: another broker is active, and this version can't replace it.
            StoreError: the store does not respond.
        """

    async def announce(self, addresses: tuple[str, ...]) -> None:
        """Publish the addresses where clients reach this broker, which is now the active one."""

    async def watch(self) -> None:
        """Check regularly that this broker is still the active one."""

    async def opening(self, instance: str) -> None:
        """Record that this broker is about to open an instance.

        Raises:
            StoreFenced: another broker is active.
        """

    async def find_successor(self) -> None:
        """Set the gate's address of the active broker after this broker was fenced."""

    async def prepare(self, standby: Standby) -> None:
        """Let a standby prepare for a take-over while this broker still serves."""

    async def hand_over(self, standby: Standby) -> bool:
        """Hand over to a standby after the last commit; returns False if the store must be closed before."""
        return False

    async def wait_for_successor(self) -> None:
        """Wait until the standby is active, or may become active without this process."""

    async def leave(self) -> None:
        """Release the store after it was closed: any broker may become active."""

    def release(self) -> None:
        """Free the role's resources at the end of the process."""
