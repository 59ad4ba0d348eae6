"""Maintenance duties of an instance, which run automatically and on request.

=================  ===================================================================  ============================
duty               work                                                                 run automatically
=================  ===================================================================  ============================
``route``          routes stored messages that their publish did not route              immediately
``expire_leases``  ends the leases of sessions that did not reconnect                   every half second
``collect``        removes messages past their retention or deadline, and frees space    every ten seconds
=================  ===================================================================  ============================

Runs of one duty do not overlap. A request that arrives during a run waits for it and gets the same report. A report
covers everything since the previous report to a client, including automatic runs; so all reports together cover
everything since startup.

A request postpones the automatic collection until the next request is overdue. So a broker collects on request while
requests arrive, and automatically otherwise. The expiry of leases is never postponed, because the tasks of a killed
worker wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...errors import RequestError, StoreFull
from ...storage.engine import Engine
from ..delivery.instance_core import Core
from ..delivery.lease_expiry import LeaseExpiry
from .replay_scheduler import ReplayScheduler
from .staged_job_commits import StagingService

log = logging.getLogger(__name__)

ROUTE, EXPIRE_LEASES, COLLECT = "route", "expire_leases", "collect"
DUTIES = (ROUTE, EXPIRE_LEASES, COLLECT)

#: a request postpones the automatic collection for at most this time
MAX_PUT_OFF_SECONDS = 3600.0
_BROKER = "broker"
_EXPIRED = "%d leases ended because their clients did not come back: the messages are delivered again"

Counts = dict[str, int]


@dataclass(slots=True)
class LastRun:
    """Last run of a duty, and the last request for it; a time of 0 means never."""

    runs: int = 0
    at_ms: int = 0
    by: str = ""
    seconds: float = 0.0
    asked_at_ms: int = 0
    asked_by: str = ""

    def done(self, at_ms: int, by: str, seconds: float) -> None:
        self.runs += 1
        self.at_ms, self.by, self.seconds = at_ms, by, seconds

    def report(self) -> dict[str, Any]:
        return {
            "at_ms": self.at_ms, "by": self.by, "seconds": round(self.seconds, 4),
            "asked_at_ms": self.asked_at_ms, "asked_by": self.asked_by,
        }  # fmt: skip


class _Run(NamedTuple):
    """Counts of a duty, since the last report and since startup."""

    counts: Counts
    totals: Counts


class Maintenance:
    """Duties of one instance."""

    def __init__(
        self, core: Core, engine: Engine, lease_expiry: LeaseExpiry, replays: ReplayScheduler, staging: StagingService
    ) -> None:
        self.last = {duty: LastRun() for duty in DUTIES}
        self._name = core.name
        self._engine = engine
        self._lease_expiry = lease_expiry
        self._replays = replays
        self._staging = staging
        self._failure = core.failure
        self._notices = core.notices
        self._loop = asyncio.get_running_loop()
        self._interval = engine.settings.retention_interval_seconds
        self._own_at = self._loop.time() + self._interval
        self.collected = 0  # settled messages that were removed after their retention, since startup
        self.leases_expired = 0  # leases that ended because their clients did not reconnect, since startup
        self._reported: Counts = {}  # the totals at the last report
        self._running: dict[str, asyncio.Task[_Run]] = {}
        self._own: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ on request
    async def run(self, duties: Iterable[str], by: str, *, again_in_seconds: float = 0.0) -> dict[str, Any]:
        """Run duties for the client ``by``, in their order, and return the report. An empty list means all of them.

        The client's next request is in ``again_in_seconds``; 0 means that the time is not known.

        Raises:
            RequestError: a duty is unknown, or the time is not valid.
            StoreFull: the store takes no writes now.
            StoreError: the store failed permanently.
        """
        names = check_duties(duties)
        if not 0 <= again_in_seconds < math.inf:
            raise RequestError(f"again in {again_in_seconds} s: give a number of seconds, or 0", value=again_in_seconds)
        now_ms = self._engine.clock.now_ms()
        for duty in names:
            self.last[duty].asked_at_ms, self.last[duty].asked_by = now_ms, by
        if COLLECT in names:
            # Twice, because a tick may be late or wait behind a long task.
            put_off_seconds = min(2 * again_in_seconds, MAX_PUT_OFF_SECONDS)
            self._own_at = self._loop.time() + max(put_off_seconds, self._interval)
        began = self._loop.time()
        counts: Counts = {}
        joined_duties = []
        for duty in names:
            if duty in self._running:
                joined_duties.append(duty)
            run = await self._once(duty, by)
            counts |= run.counts
            self._reported |= run.totals
        seconds = self._loop.time() - began
        return {"duties": names, **counts, "seconds": round(seconds, 4), "joined": joined_duties}

    async def _once(self, duty: str, by: str) -> _Run:
        """Run a duty, or wait for the current run. A run continues when its caller is cancelled."""
        task = self._running.get(duty)
        if task is None:
            task = self._running[duty] = self._loop.create_task(self._do(duty, by))
            task.add_done_callback(lambda done: self._ended(duty, done))
        return await asyncio.shield(task)

    def _ended(self, duty: str, task: asyncio.Task[_Run]) -> None:
        self._running.pop(duty, None)
        exc = None if task.cancelled() else task.exception()
        if exc is not None and not isinstance(exc, StoreFull):
            log.error("instance %s: %s failed", self._name, duty)
            self._failure.fail(exc)

    async def _do(self, duty: str, by: str) -> _Run:
        loop, last = self._loop, self.last[duty]
        began = loop.time()
        if duty == ROUTE:
            self._staging.router.wake()
            await self._replays.advance()
        elif duty == EXPIRE_LEASES:
            self._end_leases()
        else:
            await self._collect()
        last.done(self._engine.clock.now_ms(), by, loop.time() - began)
        totals = self._totals(duty)
        return _Run({name: total - self._reported.get(name, 0) for name, total in totals.items()}, totals)

    def _totals(self, duty: str) -> Counts:
        """Return the counts of a duty since startup, from requested and automatic runs."""
        if duty == ROUTE:
            return {"routed": self._staging.router.planner.routed + self._replays.routed}
        if duty == EXPIRE_LEASES:
            return {"leases_expired": self.leases_expired}
        return {
            "settled_collected": self.collected,
            "expired_removed": self._engine.operations.expired,
            "staged_removed": self._engine.staging.removed,
        }

    # ------------------------------------------------------------------ automatic runs
    def tick(self) -> None:
        """Run the duties that are due. Called twice per second."""
        if EXPIRE_LEASES not in self._running and self._end_leases():
            self.last[EXPIRE_LEASES].done(self._engine.clock.now_ms(), _BROKER, 0.0)
        if self._own is None and self._loop.time() >= self._own_at:
            self._own = self._loop.create_task(self._run_own())

    async def _run_own(self) -> None:
        try:
            await self._once(ROUTE, _BROKER)
            await self._once(COLLECT, _BROKER)
        except StoreFull as exc:
            log.warning("instance %s: %s", self._name, exc.text)
        except Exception:
            return  # the instance has failed: see _ended
        finally:
            self._own = None
            self._own_at = max(self._own_at, self._loop.time() + self._interval)

    async def close(self) -> None:
        """Cancel the current runs; their changes so far stay."""
        tasks: list[asyncio.Task[Any]] = [*self._running.values(), *([self._own] if self._own else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------ the duties
    def _end_leases(self) -> int:
        expired = self._lease_expiry.expire()
        self.leases_expired += expired
        self._notices.add("leases", _EXPIRED, expired)
        return expired

    async def _collect(self) -> None:
        engine = self._engine
        expired_before = engine.operations.expired
        settled = await engine.collector.sweep()
        self.collected += settled
        early = await self._keep_size()
        await self._staging.collect()
        if engine.commits.is_dirty:
            await engine.commits.checkpoint()
        if settled or early or engine.operations.expired > expired_before:
            await engine.upkeep.tidy()

    async def _keep_size(self) -> int:
        """Remove settled messages before the end of their retention if the store is too large; return their number."""
        limit, notices = self._engine.size_limit, self._notices
        early = await limit.step()
        size = f"{limit.limit_bytes / (1 << 20):,.0f} MiB"
        notices.add("retention bytes", f"%d settled messages were removed early to keep the store below {size}", early)
        if limit.is_stuck:
            text = "instance %s: the store is larger than %s, and no settled message is left to remove"
            notices.say(logging.WARNING, "too large", text, self._name, size)
        return early

    def report(self) -> dict[str, Any]:
        return {duty: last.report() for duty, last in self.last.items()}


def check_duties(duties: Iterable[str]) -> list[str]:
    """Return the duties of these names, in their order and without duplicates. No names mean all duties.

    Raise RequestError for an unknown name.
    """
    names = set(duties)
    unknown = sorted(names.difference(DUTIES))
    if unknown:
        raise RequestError(f"no maintenance duty {unknown[0]!r}: there are {', '.join(DUTIES)}", duty=unknown[0])
    return [duty for duty in DUTIES if duty in names or not names]
