"""Active role for a folder: the lock on the folder. Its standby is a second process on the same host.

The record only has the addresses of the active broker. A stopped process (SIGSTOP) still has its lock, so it is not
replaced.
"""

from __future__ import annotations

import asyncio
import logging
import os

from ...errors import NewerFormat, OpenDataError
from ...protocol.messages import TakeOver
from ..wire.standby_connections import Standby
from .active_link import connect
from .active_record import RECORD_NAME, ActiveRecord, decode, encode
from .active_role import EXIT_FAILED, EXIT_FENCED, ActiveRole, ActiveRoleSettings, ClientEntry
from .store_lock import StoreLock

log = logging.getLogger(__name__)

#: interval at which a standby tries to lock the folder
_TRY_SECONDS = 0.05
#: interval at which a standby without a connection reads the address of the active broker
_LOOK_SECONDS = 0.5
#: interval at which the active broker checks that it still owns the folder, and renews its mark for other hosts
_WATCH_SECONDS = 0.5


class FolderActiveRole(ActiveRole):
    """Active role of the process that has the folder's lock. The kernel releases the lock of a process that ends.

    Unless it is a standby, it takes the lock when it is created: see :meth:`.StoreLock.acquire`.
    """

    def __init__(self, lock: StoreLock, settings: ActiveRoleSettings) -> None:
        self._lock, self._settings = lock, settings
        self._front: ClientEntry
        if not settings.standby:
            lock.acquire()

    async def take(self, front: ClientEntry, addresses: tuple[str, ...]) -> None:
        self._front = front
        if self._lock.try_acquire():
            return
        log.info("standby: another broker owns the store")
        self._find_active(front)
        front.gate.send_away()
        follow_task = asyncio.get_running_loop().create_task(self._follow(front, addresses))
        try:
            while not self._lock.try_acquire():
                if follow_task.done():
                    follow_task.result()
                await asyncio.sleep(_TRY_SECONDS)
        finally:
            follow_task.cancel()
        front.gate.hold()
        log.warning("take-over: the broker that owned the store has ended")

    async def _follow(self, front: ClientEntry, addresses: tuple[str, ...]) -> None:
        """Stay connected to the active broker, and redirect clients to it."""
        while True:
            record = self._find_active(front)
            if record is not None:
                link = await connect(record, self._settings.id, list(addresses), self._settings.tls)
                try:
                    if link is not None and await link.ended:
                        front.gate.hold()
                finally:
                    if link is not None:
                        link.close()
            await asyncio.sleep(_LOOK_SECONDS)

    def _find_active(self, front: ClientEntry) -> ActiveRecord | None:
        """Return the record, and set the gate's address of the active broker."""
        record, gate = self._read(), front.gate
        if record is not None and gate.active != tuple(record.addresses):
            gate.active = tuple(record.addresses)
            log.info("standby: the active broker is at %s", ", ".join(gate.active))
        return record

    def _read(self) -> ActiveRecord | None:
        assert self._lock.folder is not None
        text = self._lock.folder.read_text(RECORD_NAME)
        try:
            return decode(text.encode()) if text else None
        except NewerFormat:
            raise
        except OpenDataError as exc:
            log.error("%s", exc.text)
            return None

    async def announce(self, addresses: tuple[str, ...]) -> None:
        assert self._lock.folder is not None
        key = self._settings.key
        record = ActiveRecord(id=self._settings.id, addresses=list(addresses), tls=self._settings.serves_tls, key=key)
        self._lock.folder.replace(RECORD_NAME, encode(record))
        self._front.standbys.admit(key)

    async def watch(self) -> None:
        """End the process without a close, which would write, when another host takes the store or it is deleted."""
        while not self._lock.lost:
            if other_host := self._lock.renew():
                log.critical(
                    "a broker on another host (%s) has taken over the store's folder: this broker ends", other_host
                )
                os._exit(EXIT_FENCED)
            await asyncio.sleep(_WATCH_SECONDS)
        log.critical("the store's folder was deleted or replaced while the broker ran: the broker ends")
        os._exit(EXIT_FAILED)

    async def hand_over(self, standby: Standby) -> bool:
        standby.connection.send_all([TakeOver()])
        return False

    def release(self) -> None:
        self._lock.release()
