"""Active role for a bucket.

The broker whose id is in the record (:mod:`.active_record`) is active. SlateDB's fencing already prevents that two
brokers write; the record prevents that two brokers *reply*, and has the address for clients.

====================  ===============================================  ================================================
this broker           does                                             becomes
====================  ===============================================  ================================================
starting              reads the record                                 active if it is free: none, ``stopped``, handed
                                                                       over to it, or of a process that has ended here
standing by           follows the active broker over a connection,     active by its ``TakeOver``; claiming if the
                      and sends clients there                          connection is lost
claiming              writes its claim, waits longer than the lease,   active if nothing changed; standing by, or ended
                      and reads ahead what opening will need           without ``--standby``, if the claim was withdrawn
active                reads the record once per period, withdraws a    fenced if the record is of another broker, or has
                      claim, extends its lease                         a newer format, or has a forced claim; stopped,
                                                                       or handing over
handing over          has made its last commit and sent the            ended when the successor has the record, or may
                      ``TakeOver``; writes nothing more                take it
====================  ===============================================  ================================================

Invariants:

* Each write names the version that it replaces. If two brokers write at the same time, one of them fails
  (:class:`.RecordChanged`) and reads the record again.
* The active broker sends to clients only during its lease (:mod:`..delivery.active_lease`), which ends
  ``lease_seconds`` after the *beginning* of its last read of a record without a claim.
* After it has written its claim, a claimant waits for :data:`_MARGIN` times ``lease_seconds``, by its own clock since
  the boot. So the lease ends before the claimant takes the role. The clocks of the hosts may show different times; only
  their speed must agree.
* A broker without a standby has a longer lease and reads less often. When the first standby connects, the active broker
  applies the shorter lease before it writes the record. The lease never becomes longer again.

Heartbeats without a record would be simpler, but a lost connection does not show whether the broker ended or the
network failed. A lock with a time to live in the bucket would need synchronized clocks. A planned hand-over needs no
wait: the active broker commits, stops sending replies, and sends its record and version to the standby, which replaces
the record. If the standby has not done so after a second, the active broker changes the record to ``handing-over``:
the standby may then still take the role without a wait, and any other broker by a claim.

**Clients** are redirected by a broker that stands by; they wait from its take-over until it has opened the instances.

**Errors.** If the record is deleted, the active broker writes it again; a standby that was connected waits for the end
of the lease first. If the bucket does not respond, the active broker stops sending when its lease ends, and serves
again after the next read; a standby tries again every second, and a starting broker fails. The claim of a claimant that
ends stays in the record: the active broker withdraws it, or the next claimant replaces it after waiting as long as for
its own. A write without an answer may have succeeded; a broker that then finds its own id in the record claims the role
as if another broker had it. See RFC 0009.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from msgspec.structs import replace

from ...errors import NewerFormat, StoreError, StoreFenced, StoreInUse
from ...protocol.messages import Prepare, TakeOver
from ..wire.standby_connections import Standby
from .active_link import ActiveLink, connect
from .active_record import (
    ACTIVE,
    HANDING_OVER,
    STOPPED,
    ActiveRecord,
    BucketRecord,
    RecordChanged,
    TakeOverClaim,
    VersionedRecord,
    decode,
    encode,
    has_ended,
    own_process,
)
from .active_role import ActiveRole, ActiveRoleSettings, ClientEntry

log = logging.getLogger(__name__)

#: length of the lease in periods between two reads of the record
LEASE_PERIODS = 3
#: for a broker without --standby, until a standby is connected
UNGUARDED_PERIOD_SECONDS, UNGUARDED_LEASE_SECONDS = 10.0, 25.0
#: factor of the wait after a claim over the lease, for clocks with different speeds
_MARGIN = 1.1
#: interval at which a claiming broker reads the record
_CLAIM_LOOK_SECONDS = 0.5
#: maximum time for a standby to read ahead before this broker hands over
_PREPARE_SECONDS = 5.0
#: maximum time for a standby to take over before the record permits it to do so without the wait of a claim
_SUCCESSOR_SECONDS = 1.0
#: interval between the attempts of a standby while the store does not respond
_RETRY_SECONDS = 1.0


class BucketActiveRole(ActiveRole):
    """Active role of the broker whose id is in the record of a bucket."""

    def __init__(self, record: BucketRecord, settings: ActiveRoleSettings) -> None:
        self._record, self._settings = record, settings
        self._has_standby = settings.standby  # never becomes False again
        self._standby_came = asyncio.Event()
        self._addresses: tuple[str, ...] = ()
        self._mine: VersionedRecord | None = None  # the newest known; None until this broker is active
        self._writing = asyncio.Lock()  # held while the active broker reads or writes its record
        self._front: ClientEntry
        self.instances: tuple[str, ...] = ()
        self._successor = ""
        self._followed_lease = 0.0  # lease of the last active broker that this broker has read from a record
        self._notification: asyncio.Task[ActiveLink | None] | None = None

    @property
    def _period(self) -> float:
        return self._settings.renew_seconds if self._has_standby else UNGUARDED_PERIOD_SECONDS

    @property
    def _lease(self) -> float:
        return LEASE_PERIODS * self._settings.renew_seconds if self._has_standby else UNGUARDED_LEASE_SECONDS

    # ------------------------------------------------------------------ take-over
    async def take(self, front: ClientEntry, addresses: tuple[str, ...]) -> None:
        self._front, self._addresses = front, addresses
        is_first = True
        while self._mine is None:
            try:
                versioned = await self._record.read() or await self._read_again()
                if versioned is None or self._is_free(versioned.record, at_start=is_first):
                    await self._acquire(versioned)
                elif self._settings.standby:
                    await self._stand_by(versioned)
                else:
                    await self._replace_active(versioned)
            except RecordChanged:
                pass
            except NewerFormat:
                raise
            except StoreError as exc:
                if is_first and not self._followed_lease:
                    raise
                log.error("standby: %s", exc.text)
                await asyncio.sleep(_RETRY_SECONDS)
            is_first = False
        front.gate.hold()

    async def _read_again(self) -> VersionedRecord | None:
        """Read the record again after it was deleted: an active broker may write it again until its lease is over."""
        if not self._followed_lease:
            return None  # this broker has never read a record
        log.warning("standby: the active record was deleted")
        await asyncio.sleep(_MARGIN * self._followed_lease)
        return await self._record.read()

    def _is_free(self, record: ActiveRecord, *, at_start: bool) -> bool:
        """Return True if this broker may take the role without a claim."""
        if record.state == HANDING_OVER:
            return record.successor == self._settings.id
        return record.state == STOPPED or (at_start and has_ended(record.process))

    async def _acquire(self, versioned: VersionedRecord | None) -> None:
        """Write this broker's record; raise RecordChanged if another broker was first, or StoreError."""
        settings = self._settings
        before = versioned.record.instances if versioned is not None else []
        record = ActiveRecord(
            id=settings.id,
            addresses=list(self._addresses),
            tls=settings.serves_tls,
            key=settings.key,
            instances=sorted({*settings.instances, *before}),
            lease_seconds=self._lease,
            process=own_process(),
        )
        began = self._front.active_lease.now()
        self._mine = await self._record.write(record, versioned)
        self.instances = tuple(self._mine.record.instances)
        self._extend(began)

    async def _stand_by(self, versioned: VersionedRecord) -> None:
        """Stay connected to the active broker until the connection is lost; then claim the role."""
        gate, record = self._front.gate, versioned.record
        self._followed_lease = record.lease_seconds
        gate.send_away()
        if gate.active != tuple(record.addresses):
            gate.active = tuple(record.addresses)
            log.info("standby: the active broker is at %s", ", ".join(gate.active) or "an unknown address")
        link = await connect(
            record, self._settings.id, list(self._addresses), self._settings.tls, prepare=self._front.read_ahead
        )
        if link is None:
            await self._claim(versioned)
            return
        try:
            take_over = await link.ended
            if take_over is not None:
                log.warning("take-over: the active broker hands over")
                gate.hold()
                await self._acquire(VersionedRecord(decode(take_over.record), take_over.version))
            else:
                log.warning("standby: the connection to the active broker is lost")
        finally:
            link.close()

    async def _replace_active(self, versioned: VersionedRecord) -> None:
        """Replace a broker that has ended, or with ``take_over`` any; raise StoreInUse if it must not be replaced."""
        record, forced = versioned.record, self._settings.take_over
        if not forced:
            link = await connect(record, self._settings.id, list(self._addresses), self._settings.tls)
            if link is not None:
                link.close()
                raise self._in_use(record)
        log.warning("the store has a record of another broker: this one waits %.0f s for it", record.lease_seconds)
        await self._claim(versioned, forced=forced)
        if self._mine is None:
            raise self._in_use(record)

    def _in_use(self, record: ActiveRecord) -> StoreInUse:
        where = ", ".join(record.addresses) or "an unknown address"
        return StoreInUse(
            f"another broker, at {where}, is active on this store: connect to it, start this one as its --standby, or "
            "replace it with --take-over",
            active=",".join(record.addresses),
        )

    async def _claim(self, versioned: VersionedRecord, *, forced: bool = False) -> None:
        """Claim the role, and take it if the active broker does not withdraw the claim within its lease."""
        seconds, other_claim = _MARGIN * versioned.record.lease_seconds, versioned.record.claim
        is_first = other_claim is None or other_claim.id == self._settings.id
        if not is_first and not await self._stays(versioned, seconds):
            return  # the claim of another broker: two claims would only replace each other
        claim = TakeOverClaim(id=self._settings.id, forced=forced)
        claimed = await self._record.write(replace(versioned.record, claim=claim), versioned)
        log.warning("take-over: the active broker can't be reached, and is given %.1f s to answer", seconds)
        if await self._stays(claimed, seconds / 2) and await self._reading_ahead(claimed, seconds / 2):
            await self._acquire(claimed)
            log.warning("take-over: the active broker did not answer")
            # the replaced broker may be alive, but unable to reach the store
            notification = connect(
                versioned.record, self._settings.id, list(self._addresses), self._settings.tls, "successor"
            )
            self._notification = asyncio.get_running_loop().create_task(notification)
        else:
            log.warning("standby: the active broker answered in the store, this one waits on")
            await asyncio.sleep(self._period)

    async def _reading_ahead(self, versioned: VersionedRecord, seconds: float) -> bool:
        """Return the result of :meth:`_stays`, and read ahead during its wait.

        By now, an active broker would probably have withdrawn the claim.
        """
        names = {*self._settings.instances, *versioned.record.instances}
        reading = asyncio.ensure_future(self._front.read_ahead(names))
        try:
            return await self._stays(versioned, seconds)
        finally:
            reading.cancel()

    async def _stays(self, versioned: VersionedRecord, seconds: float) -> bool:
        """Wait; return True if the record did not change."""
        now = self._front.active_lease.now
        ends_at = now() + seconds
        while (remaining := ends_at - now()) > 0:
            await asyncio.sleep(min(remaining, _CLAIM_LOOK_SECONDS))
            current = await self._record.read()
            if current is None or current.version != versioned.version:
                return False
        return True

    # ------------------------------------------------------------------ renewal
    def _extend(self, began: float) -> None:
        if self._has_standby:
            self._front.active_lease.extend(began + self._lease)

    def _note_standby(self) -> None:
        """Shorten the lease after a standby connected, also for a broker that was started without --standby."""
        if not self._has_standby:
            seconds = self._settings.renew_seconds
            log.info("this broker has a standby: it reads its record every %g s from now on", seconds)
            self._has_standby = True
            self._standby_came.set()

    async def announce(self, addresses: tuple[str, ...]) -> None:
        self._addresses = addresses
        if self._current.record.addresses != list(addresses):
            await self._change(addresses=list(addresses))
        self._front.standbys.admit(self._settings.key, self._settings.renew_seconds, self._note_standby)

    async def opening(self, instance: str) -> None:
        await self._front.active_lease.renewed()
        if instance not in self._current.record.instances:
            try:
                await self._change(instances=[*self._current.record.instances, instance])
            except StoreFenced as exc:
                self._front.fenced(exc)
                raise

    @property
    def _current(self) -> VersionedRecord:
        assert self._mine is not None
        return self._mine

    async def _change(self, **fields: object) -> None:
        """Write changed fields of this broker's record; raise StoreFenced if another one is active, or StoreError."""
        async with self._writing:
            while True:
                try:
                    self._mine = await self._record.write(replace(self._current.record, **fields), self._current)
                    return
                except RecordChanged:
                    with suppress(RecordChanged):
                        await self._look()

    async def watch(self) -> None:
        is_silent = False
        while self._front.active_lease.lost is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._period):
                    await self._standby_came.wait()
            self._standby_came.clear()
            try:
                async with self._writing:
                    await self._look()
                if self._current.record.lease_seconds != self._lease:  # the new lease already applies
                    await self._change(lease_seconds=self._lease)
                if is_silent:
                    log.info("the store shows again which broker is active: this one")
                is_silent = False
            except RecordChanged:
                continue
            except StoreFenced as exc:
                self._front.fenced(exc)
            except StoreError as exc:
                if not is_silent:
                    log.error("the active record can't be read: %s", exc.text)
                is_silent = True

    async def _look(self) -> None:
        """Check that this broker is still active, and withdraw the claim of another broker.

        Raise StoreFenced if another one is active, RecordChanged if the record must be read again, or StoreError.
        """
        began = self._front.active_lease.now()
        try:
            versioned = await self._record.read()
        except NewerFormat as exc:
            raise self._lost(()) from exc
        if versioned is None:
            log.error("the active record was deleted: it is written again")
            versioned = await self._record.write(self._current.record, None)
        elif versioned.record.id != self._settings.id or versioned.record.state != ACTIVE:
            raise self._lost(tuple(versioned.record.addresses))
        elif versioned.record.claim is not None:
            if versioned.record.claim.forced:
                raise self._lost(())
            log.warning("another broker could not reach this one and claims its place: the claim is withdrawn")
            versioned = await self._record.write(replace(versioned.record, claim=None), versioned)
        self._mine = versioned
        self._extend(began)

    def _lost(self, active: tuple[str, ...]) -> StoreFenced:
        """End the lease, so that this broker sends no more replies; return the error."""
        self._front.gate.active = active
        where = f", at {', '.join(active)}," if active else ""
        error = StoreFenced(f"another broker{where} has taken over the store: this one ends", url=self._record.url)
        self._front.active_lease.lose(error)
        return error

    # ------------------------------------------------------------------ shutdown
    async def find_successor(self) -> None:
        try:
            versioned = await self._record.read()
        except StoreError:
            return
        if versioned is not None and versioned.record.id != self._settings.id:
            self._front.gate.active = tuple(versioned.record.addresses)

    async def prepare(self, standby: Standby) -> None:
        if standby.prepares:
            standby.connection.send_all([Prepare(self._current.record.instances)])
            with suppress(TimeoutError):
                async with asyncio.timeout(_PREPARE_SECONDS):
                    await standby.is_prepared.wait()

    async def hand_over(self, standby: Standby) -> bool:
        self._successor = standby.id
        standby.connection.send_all([TakeOver(encode(self._current.record), self._current.version)])
        return True

    async def wait_for_successor(self) -> None:
        await asyncio.sleep(_SUCCESSOR_SECONDS)
        try:
            await self._change(state=HANDING_OVER, successor=self._successor, claim=None)
            log.warning("the standby has not taken over yet: the record allows it to")
        except StoreFenced:
            log.info("the standby has taken over")
        except StoreError as exc:
            log.error("it is not known whether the standby has taken over: %s", exc.text)

    async def leave(self) -> None:
        if self._mine is None:
            return  # a standby
        try:
            await self._change(state=STOPPED)
        except StoreError as exc:
            log.warning("the next broker waits %.0f s before it starts: %s", self._lease, exc.text)
