"""The right to serve a store. One broker has it and is active; the others are standbys."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ...errors import OpenDataError
from ..delivery.active_lease import ActiveLease
from ..wire.gate import Gate
from ..wire.standbys import Standby, Standbys

#: exit codes of a broker that failed, and of one that another broker has replaced
EXIT_FAILED, EXIT_FENCED = 1, 6


@dataclass(frozen=True)
class ActiveRoleSettings:
    """What a broker says of itself to the other brokers of its store.

    Attributes:
        standby: wait if another broker is active; it is then also replaced by others.
        take_over: replace the active broker even if it is alive.
        renew_seconds: how often the active broker reads its record.
        instances: opened at the start.
        id: of this process.
        key: for the active record.
        tls: makes the context for connections to the active broker.
        serves_tls: whether clients use TLS here.
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
class Front:
    """What a seat controls of its broker.

    Attributes:
        fenced: to be called when another broker has taken over.
        read_ahead: reads what opening these instances will read; never fails.
    """

    gate: Gate
    standbys: Standbys
    tenure: ActiveLease
    fenced: Callable[[OpenDataError], None]
    read_ahead: Callable[[Iterable[str]], Awaitable[None]]


class ActiveRole(Protocol):
    """The right to serve one store.

    Attributes:
        instances: those that must be open before this broker serves.
    """

    instances: tuple[str, ...]

    async def take(self, front: Front, addresses: tuple[str, ...]) -> None:
        """Return when this broker is the active one.

        Args:
            addresses: where clients reach it, as far as that is known.

        Raises:
            StoreInUse: another broker is, and this one shall not wait.
            NewerFormat: another broker is, and this version can't replace it.
            StoreError: the store does not answer.
        """

    async def announce(self, addresses: tuple[str, ...]) -> None:
        """Say where clients reach this broker, which is the active one now."""

    async def watch(self) -> None:
        """As long as this broker is active, check that it still is."""

    async def opening(self, instance: str) -> None:
        """This broker is about to open an instance.

        Raises:
            StoreFenced: another broker is active.
        """

    async def find_successor(self) -> None:
        """Tell the gate who is active after this broker was fenced."""

    async def prepare(self, standby: Standby) -> None:
        """This broker still serves, and will hand over: let the standby do beforehand what it can."""

    async def hand_over(self, standby: Standby) -> bool:
        """Everything is committed: let a standby go on; returns False if the store must be closed before."""

    async def wait_for_successor(self) -> None:
        """Wait until the standby goes on, or may do so without this process."""

    async def leave(self) -> None:
        """The store is closed: anybody may go on."""

    def release(self) -> None:
        """The process ends."""


class FreeSeat:
    """A store that only this process can reach: memory."""

    instances: tuple[str, ...] = ()

    async def take(self, front: Front, addresses: tuple[str, ...]) -> None: ...

    async def announce(self, addresses: tuple[str, ...]) -> None: ...

    async def watch(self) -> None: ...

    async def opening(self, instance: str) -> None: ...

    async def find_successor(self) -> None: ...

    async def prepare(self, standby: Standby) -> None: ...

    async def hand_over(self, standby: Standby) -> bool:
        return False

    async def wait_for_successor(self) -> None: ...

    async def leave(self) -> None: ...

    def release(self) -> None: ...
