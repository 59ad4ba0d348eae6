"""The duties that keep an instance in order, done by the broker itself and on request.

=================  ===================================================================  ============================
duty               what it does                                                         by itself
=================  ===================================================================  ============================
``route``          routes stored messages that their publish did not route              at once
``expire_leases``  returns what sessions hold that did not come back                    every half second
``collect``        removes what is past its retention or deadline, frees the space      every ten seconds
=================  ===================================================================  ============================

A duty runs once at a time: who asks for one that is under way waits for its end and gets its report. A request puts the
broker's own collecting off until the next request is overdue, so that a broker that somebody looks after does it when
they say, and one that nobody looks after does it all the same. Leases are never put off: the tasks of a killed worker
wait for that.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from ..errors import RequestError, StoreFull
from . import leases
from .instance import Instance

log = logging.getLogger(__name__)

ROUTE, EXPIRE_LEASES, COLLECT = "route", "expire_leases", "collect"
DUTIES = (ROUTE, EXPIRE_LEASES, COLLECT)

#: the longest that a request puts the broker's own collecting off
MAX_PUT_OFF_SECONDS = 3600.0
_BROKER = "broker"
_EXPIRED = "%d leases ended, as their clients did not come back: the messages are delivered again"

Counts = dict[str, int]


class LastRun:
    """When a duty was done last, by whom, and what a client asked last."""

    def __init__(self) -> None:
        self.runs = 0
        self.at_ms = 0
        self.by = ""
        self.seconds = 0.0
        self.asked_at_ms = 0
        self.asked_by = ""

    def done(self, at_ms: int, by: str, seconds: float) -> None:
        """It was done."""
        self.runs += 1
        self.at_ms, self.by, self.seconds = at_ms, by, seconds

    def report(self) -> dict[str, Any]:
        """For the status call; a time of 0 is never."""
        return {
            "at_ms": self.at_ms,
            "by": self.by,
            "seconds": round(self.seconds, 4),
            "asked_at_ms": self.asked_at_ms,
            "asked_by": self.asked_by,
        }


class Maintenance:
    """The duties of one instance.

    Attributes:
        grace_ms: how long a session without a connection keeps its leases.
        cursors: what has messages to route that their publish did not route; each call routes a part of them and
            returns how many.
        collected: settled messages that were removed after their retention, since the start.
    """

    def __init__(self, instance: Instance, *, grace_ms: int, interval_seconds: float) -> None:
        self.cursors: list[Callable[[], Awaitable[int]]] = [instance.staging.router.routed_since]
        self.last = {duty: LastRun() for duty in DUTIES}
        self._instance = instance
        self.grace_ms = grace_ms
        self._interval = interval_seconds
        self._own_at = instance.loop.time() + interval_seconds
        self._expired_reported = 0
        self._staged_reported = 0
        self.collected = 0
        self._running: dict[str, asyncio.Task[Counts]] = {}
        self._own: asyncio.Task[None] | None = None
        self._duties: dict[str, Callable[[], Awaitable[Counts]]] = {
            ROUTE: self._route,
            EXPIRE_LEASES: self._expire_leases,
            COLLECT: self._collect,
        }

    # ------------------------------------------------------------------ on request
    async def run(self, duties: Iterable[str], by: str, *, again_in_seconds: float = 0.0) -> dict[str, Any]:
        """Do these duties, in their order; none named is all of them. Returns the report.

        Args:
            by: who asks.
            again_in_seconds: when they mean to ask again, 0 if they don't say.

        Raises:
            RequestError: no such duty, or a time that is none.
            StoreFull: the store takes no writes now.
            StoreError: the store failed for good.
        """
        wanted = check_duties(duties)
        if not 0 <= again_in_seconds < math.inf:
            raise RequestError(f"again in {again_in_seconds} s: give a number of seconds, or 0", value=again_in_seconds)
        now_ms = self._instance.engine.clock.now_ms()
        for duty in wanted:
            self.last[duty].asked_at_ms, self.last[duty].asked_by = now_ms, by
        if COLLECT in wanted:
            # Twice: a tick that is late, or waits behind a long task, is no reason to step in.
            self._put_off(min(2 * again_in_seconds, MAX_PUT_OFF_SECONDS))
        began = self._instance.loop.time()
        counts: Counts = {}
        joined = []
        for duty in wanted:
            if duty in self._running:
                joined.append(duty)
            counts |= await self._once(duty, by)
        seconds = self._instance.loop.time() - began
        return {"duties": wanted, **counts, "seconds": round(seconds, 4), "joined": joined}

    def _put_off(self, seconds: float) -> None:
        self._own_at = self._instance.loop.time() + max(seconds, self._interval)

    async def _once(self, duty: str, by: str) -> Counts:
        """Do a duty, or wait for the one under way. It goes on when the caller is cancelled."""
        task = self._running.get(duty)
        if task is None:
            task = self._running[duty] = self._instance.loop.create_task(self._do(duty, by))
            task.add_done_callback(lambda done: self._ended(duty, done))
        return await asyncio.shield(task)

    def _ended(self, duty: str, task: asyncio.Task[Counts]) -> None:
        self._running.pop(duty, None)
        exc = None if task.cancelled() else task.exception()
        if exc is not None and not isinstance(exc, StoreFull):
            log.error("instance %s: %s failed", self._instance.name, duty, exc_info=exc)
            self._instance.fail(exc)

    async def _do(self, duty: str, by: str) -> Counts:
        loop, last = self._instance.loop, self.last[duty]
        began = loop.time()
        counts = await self._duties[duty]()
        if duty == COLLECT and by != _BROKER:
            self._expired_reported = self._instance.engine.expired
            self._staged_reported = self._instance.engine.staging.removed
        last.done(self._instance.engine.clock.now_ms(), by, loop.time() - began)
        return counts

    # ------------------------------------------------------------------ by itself
    def tick(self) -> None:
        """Called twice a second: leases now, the rest when it is due."""
        if EXPIRE_LEASES not in self._running and (expired := leases.expire(self._instance, self.grace_ms)):
            self.last[EXPIRE_LEASES].done(self._instance.engine.clock.now_ms(), _BROKER, 0.0)
            self._instance.notices.add("leases", _EXPIRED, expired)
        if self._own is None and self._instance.loop.time() >= self._own_at:
            self._own = self._instance.loop.create_task(self._run_own())

    async def _run_own(self) -> None:
        try:
            await self._once(ROUTE, _BROKER)
            await self._once(COLLECT, _BROKER)
        except StoreFull as exc:
            log.warning("instance %s: %s", self._instance.name, exc.text)
        except Exception:
            return  # the instance has failed: see _ended
        finally:
            self._own = None
            self._own_at = max(self._own_at, self._instance.loop.time() + self._interval)

    async def close(self) -> None:
        """Stop what is under way; what it did so far stands."""
        tasks: list[asyncio.Task[Any]] = [*self._running.values(), *([self._own] if self._own else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------ the duties
    async def _route(self) -> Counts:
        return {"routed": sum([await cursor() for cursor in self.cursors])}

    async def _expire_leases(self) -> Counts:
        expired = leases.expire(self._instance, self.grace_ms)
        self._instance.notices.add("leases", _EXPIRED, expired)
        return {"leases_expired": expired}

    async def _collect(self) -> Counts:
        engine = self._instance.engine
        settled = await engine.collector.sweep()
        self.collected += settled
        await self._instance.staging.collect()
        expired = engine.expired - self._expired_reported
        if engine.is_dirty:
            await engine.checkpoint()
        if settled or expired:
            await engine.tidy()
        removed = engine.staging.removed - self._staged_reported
        return {"settled_collected": settled, "expired_removed": expired, "staged_removed": removed}

    def report(self) -> dict[str, Any]:
        """What the status call says."""
        return {duty: last.report() for duty, last in self.last.items()}


def check_duties(duties: Iterable[str]) -> list[str]:
    """The duties that were named, each once and in their order; all of them when none was.

    Raises:
        RequestError: no such duty.
    """
    named = set(duties)
    unknown = sorted(named.difference(DUTIES))
    if unknown:
        raise RequestError(f"no maintenance duty {unknown[0]!r}: there are {', '.join(DUTIES)}", duty=unknown[0])
    return [duty for duty in DUTIES if duty in named or not named]
