"""The right to serve a store: who has its lock, or its record, is the active broker, and all others are standbys."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from typing import Protocol

from ...configuration.options import BrokerOptions
from ...errors import NewerFormat, OpenDataError
from ..standby.active_record import RECORD_NAME, ActiveRecord, decode, encode
from ..wire.gate import Gate
from .store_lock import StoreLock

log = logging.getLogger(__name__)

EXIT_FAILED = 1
#: how often a standby tries to lock a folder
_TRY_SECONDS = 0.05
#: how often it reads where the active broker is
_LOOK_SECONDS = 1.0
#: how often the active broker checks that the store's folder is still there
_WATCH_SECONDS = 0.5


def choose_seat(options: BrokerOptions) -> Seat:
    """The seat of a store. That of a folder is taken already, unless this broker may be the standby.

    Raises:
        StoreInUse: another broker owns the folder.
        StoreUnwritable, UnsafeFolder: the folder can't be used.
    """
    folder = options.folder
    if folder is None:
        return FreeSeat()
    lock = StoreLock(folder)
    if not options.standby:
        lock.acquire()
    return FolderSeat(lock)


class Seat(Protocol):
    """The right to serve one store."""

    async def take(self, gate: Gate) -> None:
        """Return when this broker is the active one."""

    async def announce(self, addresses: tuple[str, ...]) -> None:
        """Say where clients reach this broker, which is the active one now."""

    async def watch(self) -> None:
        """Return never, and end the process when the store is gone."""

    def release(self) -> None:
        """Let another broker be active."""


class FreeSeat:
    """A store that only this process can reach."""

    async def take(self, gate: Gate) -> None: ...

    async def announce(self, addresses: tuple[str, ...]) -> None: ...

    async def watch(self) -> None: ...

    def release(self) -> None: ...


class FolderSeat:
    """Who has the lock of the folder is active. The kernel releases the lock of a process that ends."""

    def __init__(self, lock: StoreLock) -> None:
        self._lock = lock
        self._id = secrets.token_hex(8)

    async def take(self, gate: Gate) -> None:
        loop = asyncio.get_running_loop()
        look_at = loop.time()
        while not self._lock.try_acquire():
            if not gate.sends_away:
                gate.send_away()
                log.info("standby: another broker owns the store")
            if loop.time() >= look_at:
                self._look(gate)
                look_at = loop.time() + _LOOK_SECONDS
            await asyncio.sleep(_TRY_SECONDS)
        if gate.sends_away:
            log.warning("take-over: the broker that owned the store is gone")
        gate.hold()

    def _look(self, gate: Gate) -> None:
        assert self._lock.folder is not None
        text = self._lock.folder.read_text(RECORD_NAME)
        try:
            active = tuple(decode(text.encode()).addresses) if text else ()
        except NewerFormat:
            raise
        except OpenDataError as exc:
            log.error("%s", exc.text)
            active = ()
        if active != gate.active:
            gate.active = active
            log.info("standby: the active broker is at %s", ", ".join(active) or "an address that is not known")

    async def announce(self, addresses: tuple[str, ...]) -> None:
        assert self._lock.folder is not None
        self._lock.folder.replace(RECORD_NAME, encode(ActiveRecord(id=self._id, addresses=list(addresses))))

    async def watch(self) -> None:
        """End the process when its store is deleted. A clean close would write to a new folder."""
        while not self._lock.lost:  # noqa: ASYNC110 - there is no event for a deleted folder
            await asyncio.sleep(_WATCH_SECONDS)
        log.critical("the store's folder was deleted or replaced while the broker ran: it ends at once")
        os._exit(EXIT_FAILED)

    def release(self) -> None:
        self._lock.release()
