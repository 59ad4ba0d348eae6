"""Broker: composition of instances and connections, startup, periodic work and shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any

from ...errors import OpenDataError, PreconditionFailed, StoreFenced, StoreSilent
from ...masking import masked
from ...protocol.messages import BrokerGoodbye, Failed
from ...storage.clock import Clock, SystemClock
from ...storage.databases import Databases
from ...storage.slatedb import ffi_choice
from ...version import __version__
from ..access.quotas import Quotas
from ..calls.admin_calls import Directory
from ..delivery.active_lease import ActiveLease, seconds_since_boot
from ..endpoints.health import Health
from ..metrics.metric_catalogue import MetricsSnapshot
from ..standby.active_role import ActiveRole, ClientEntry
from ..wire.broker_settings import BrokerSettings
from ..wire.connection import ConnectionProtocol
from ..wire.connection_limits import Slot, descriptor_limit
from ..wire.listener import Listening
from ..wire.logins import Logins
from ..wire.open_connections import Connections
from ..wire.partial_frames import DEFAULT_BYTES
from ..wire.standby_connections import Standby, Standbys
from .file_reloads import Reloading
from .instance_registry import Instances
from .memory_watch import MemoryWatch

log = logging.getLogger(__name__)

_TICK_SECONDS = 0.5
#: delay of the shutdown after a hand-over request, for its reply to be sent
_ANSWER_SECONDS = 0.05
#: maximum time that a stopped broker continues to open its store
_BEGIN_SECONDS = 10.0


class Server:
    """Broker. :meth:`run` serves until :meth:`stop`.

    Args:
        clock: the system's if None.
        databases: those of the store; made from its URL if None.
        since_boot: the clock of active leases, see :mod:`..delivery.active_lease`.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        active_role: ActiveRole | None = None,
        clock: Clock | None = None,
        databases: Databases | None = None,
        since_boot: Callable[[], float] = seconds_since_boot,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.settings = settings
        quotas = Quotas(settings.instance_limits, settings.connection_limits)
        active_lease = ActiveLease(since_boot)
        limits, memory_bytes = settings.connections.within(descriptor_limit()), settings.memory_limit_bytes
        standbys = Standbys(lambda: not active_lease.is_over, self._replaced, loop.time)
        self.connections = Connections(
            limits, quotas, standbys, self._check_memory, memory_bytes // 4 if memory_bytes else DEFAULT_BYTES
        )
        if settings.users is not None:
            quotas.update(settings.users.users, settings.users.instances)
        self.logins = Logins(settings.users, loop.time) if settings.users is not None else None
        self.reloading = Reloading(self.connections, self.logins, settings.tls)
        self.active_role = active_role or ActiveRole()
        self.front = ClientEntry(
            self.connections.gate, standbys, active_lease, self.fenced, lambda names: self.instances.read_ahead(names)
        )
        directory = Directory(
            status=self.status,
            listing=lambda: self.instances.listing(),
            create=lambda name: self.instances.create(name),
            hand_over=self.hand_over,
            reload=self.reloading.reload,
        )
        clock = clock or SystemClock()
        self.instances = Instances(
            settings,
            clock,
            directory,
            self.front.active_lease,
            self.active_role.opening,
            self._instance_failed,
            databases or Databases(settings.store),
            self.connections.slow_turns,
        )
        self.memory: MemoryWatch | None = None
        if settings.memory_limit_bytes is not None:
            instances = self.instances
            self.memory = MemoryWatch(settings.memory_limit_bytes, instances.free_memory, instances.change_memory)
        self._successor: Standby | None = None
        self._fenced: OpenDataError | None = None
        self.health = Health(self.connections.gate, self.instances.open, clock)
        self.listening = Listening(settings, self.connections, self.connection)
        self._stopping = asyncio.Event()
        self._stopped_by = ""
        self._periodic: list[asyncio.Task[None]] = []

    def connection(self, slot: Slot) -> ConnectionProtocol:
        return ConnectionProtocol(slot, self.connections, self.instances.host_for, self.logins, self.settings)

    def measure(self, snapshot: MetricsSnapshot) -> None:
        """Add the totals over all connections and instances to a scrape of the metrics."""
        self.connections.measure(snapshot)
        self.instances.measure(snapshot)
        snapshot.set("active", int(self.health.state == "active"))
        snapshot.set("standbys", len(self.front.standbys.ready))
        if self.memory is not None:
            self.memory.measure(snapshot)
        if self.settings.tls is not None:
            self.settings.tls.measure(snapshot)

    def _check_memory(self) -> None:
        if self.memory is not None:
            self.memory.tick()

    # ------------------------------------------------------------------ life cycle
    async def run(self, begin: Coroutine[Any, Any, None] | None = None) -> str:
        """Serve until stopped; return the reason for the stop. ``begin`` runs in parallel.

        Raise OpenDataError if ``begin`` or an engine failed.
        """
        ticking = self.keep(self._tick_forever())
        beginning = asyncio.create_task(begin) if begin is not None else None
        if beginning is not None:
            beginning.add_done_callback(self._begun)
        try:
            await self._stopping.wait()
            if beginning is not None:
                await self._begun_at_last(beginning)
            return self._stopped_by
        finally:
            ticking.cancel()
            await self.close()
            self._stop_periodic()

    async def _begun_at_last(self, beginning: asyncio.Task[None]) -> None:
        """Wait for the startup of a stopped broker; raise its error, or StoreSilent."""
        await asyncio.wait({beginning}, timeout=_BEGIN_SECONDS)
        if not beginning.done():
            text = f"the store did not answer for {_BEGIN_SECONDS:g} s while the broker opened it, until it was stopped"
            raise StoreSilent(text, deadline_seconds=_BEGIN_SECONDS)
        beginning.result()

    def _begun(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.stop("it could not start")

    def keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run periodic work until the shutdown."""
        self._periodic.append(asyncio.create_task(work))
        self._periodic[-1].add_done_callback(self._periodic_ended)
        return self._periodic[-1]

    def _stop_periodic(self) -> None:
        for task in self._periodic:
            task.cancel()

    async def become_active(self, addresses: tuple[str, ...], instances: tuple[str, ...]) -> bool:
        """Wait until this broker is active, and open the instances; return False if it was stopped before.

        ``addresses`` are this broker's for clients, as far as they are known. Raise StoreInUse if another broker is
        active and this one is no standby, StoreError or StartError if a store can't be opened.
        """
        await ffi_choice.select()  # takes a tenth of a second: done now, so that a take-over does not wait for it
        if not await self._unless_stopped(self.active_role.take(self.front, addresses)):
            return False
        self.keep(self.active_role.watch())
        names = sorted({*instances, *self.active_role.instances})
        results = await asyncio.gather(*map(self.instances.get, names), return_exceptions=True)
        for failure in results:
            if isinstance(failure, BaseException):
                raise failure
        return True

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Wait for work until :meth:`stop`; return True if the work is done."""
        task, stopping = asyncio.create_task(work), asyncio.create_task(self._stopping.wait())
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if task.done():
            task.result()
            return True
        task.cancel()
        await asyncio.wait({task})
        return False

    def _periodic_ended(self, task: asyncio.Task[None]) -> None:
        """Stop the broker after an unexpected error in its periodic work, without which leases would not expire."""
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.critical("the broker stops: its periodic work failed", exc_info=exc)
            self.instances.fail(exc)
            self.stop(f"the broker failed: {exc!r}")

    def stop(self, reason: str) -> None:
        """End :meth:`run`."""
        self._stopped_by = self._stopped_by or reason
        self.health.stop()
        self._stopping.set()

    def _instance_failed(self, name: str, exc: BaseException) -> None:
        if isinstance(exc, StoreFenced):
            self.fenced(exc)
        else:
            self.stop(f"instance {name} failed: {exc}")

    # ------------------------------------------------------------------ take-over by another broker
    def fenced(self, error: OpenDataError) -> None:
        """Stop sending replies and end, because another broker has taken over."""
        self.front.active_lease.lose(error)
        self._fenced = self._fenced or error
        self.stop(error.text)

    def _replaced(self, addresses: list[str]) -> None:
        """Handle a standby's report of its take-over; notify clients before the close, because the store may hang."""
        log.warning("the standby at %s reports that it has taken over", ", ".join(addresses))
        self.front.gate.active = tuple(addresses)
        self.fenced(StoreFenced(f"another broker, at {', '.join(addresses)}, has taken over the store: this one ends"))
        self._send_clients_away()

    def hand_over(self) -> list[str]:
        """Stop, and let a connected standby take over; return its addresses, or raise PreconditionFailed."""
        standbys = self.front.standbys.ready
        if not standbys:
            raise PreconditionFailed(
                "no standby is connected that could take over: start one with --standby, or end this broker with "
                "'opendata-queue broker stop' or SIGTERM"
            )
        asyncio.get_running_loop().call_later(_ANSWER_SECONDS, self.terminate, "hand-over")
        return standbys[0].addresses

    def terminate(self, reason: str) -> None:
        """Stop, and let a connected standby take over immediately, if there is one."""
        standbys = self.front.standbys.ready
        if standbys and not self._stopping.is_set():
            self._successor = standbys[0]
            reason = f"{reason}: {', '.join(standbys[0].addresses)} takes over"
        self.stop(reason)

    # ------------------------------------------------------------------ shutdown
    async def close(self) -> None:
        """Commit everything, send the clients a goodbye, and close the stores or leave them to another broker.

        Raise StoreFenced if another broker has taken over, or the error of a store that failed.
        """
        if self.logins is not None:
            self.logins.close()
        self.connections.close_logs()
        failures: list[BaseException] = []
        if self._successor is not None:
            await self.instances.shorten_recovery()  # while this broker still serves
            await self.active_role.prepare(self._successor)
        if self._fenced is None:
            failures += await self.instances.end_calls()
            self._fenced = next((exc for exc in failures if isinstance(exc, StoreFenced)), None)
        if self._fenced is not None:
            await self.active_role.find_successor()
            self._send_clients_away()
            raise self._fenced
        if self._successor is not None:
            await self._hand_over_to(self._successor)
            return
        self.listening.close()
        self.connections.say_goodbye(BrokerGoodbye("the broker stops"))
        failures += await self.instances.close()
        if failures:
            raise failures[0]
        await self.active_role.leave()

    async def _hand_over_to(self, standby: Standby) -> None:
        self.front.gate.active = tuple(standby.addresses)
        self.front.active_lease.lose(StoreFenced("this broker has handed over"))
        goes_on = await self.active_role.hand_over(standby)
        self._send_clients_away()
        if goes_on:
            await self.instances.stop()
            await self.active_role.wait_for_successor()
            return
        failures = await self.instances.close()
        self._stop_periodic()
        self.active_role.release()
        if failures:
            raise failures[0]

    def _send_clients_away(self) -> None:
        self.front.gate.send_away()
        refusal = self.front.gate.refusal()
        self.connections.say_goodbye(Failed(0, refusal.code, refusal.text, refusal.values))
        self.listening.close()

    # ------------------------------------------------------------------ periodic work
    async def _tick_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self.instances.tick()
            self.health.tick()
            self._check_memory()
            self.connections.tick(memory_is_full=self.memory is not None and self.memory.is_full)
            self.connections.audit.tick()
            idle = self.settings.idle_exit_seconds
            if idle and not self.connections.open and loop.time() - self.connections.idle_since > idle:
                self.stop(f"no client for {idle:g} s")
            self.reloading.tick()
            if self.settings.tls is not None:
                self.settings.tls.tick()

    # ------------------------------------------------------------------ status
    async def status(self) -> dict[str, Any]:
        """Return the report of the status call. The times of two queues' metrics may differ by some milliseconds."""
        queues = {name: await instance.queue_metrics() for name, instance in list(self.instances.open.items())}
        return {
            "version": __version__,
            "pid": os.getpid(),
            "state": self.health.state,
            "fault": self.health.fault,
            "store": masked(self.settings.store),
            "idle_exit_seconds": self.settings.idle_exit_seconds,
            "standbys": self.front.standbys.report(),
            "standby_expected": self.settings.expects_standby,
            "standby_seen_at_ms": self.front.standbys.seen_at_ms,
            "memory": self.memory.report() if self.memory is not None else {},
            "connections": len(self.connections.open),
            "connections_limit": self.connections.admission.limits.connections,
            "connections_not_logged_in": self.connections.admission.strangers,
            "instances": {
                name: {**instance.report(), "queues": queues[name]}
                for name, instance in self.instances.open.items()
                if name in queues
            },
        }
