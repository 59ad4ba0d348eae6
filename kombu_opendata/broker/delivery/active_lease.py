"""The active lease: the time for which this broker is certain to be the active one of its store.

Stores are safe without it: the write of a fenced broker fails, so it can't confirm anything. But a fenced broker could
still send replies that need no write (an empty queue, a message of a transient queue). Therefore a broker that a
standby may replace checks before it sends anything that its active lease is not over, and otherwise waits until its
record was read again.

Times are seconds since the boot, a clock that also runs while the process or the host sleeps.
"""

from __future__ import annotations

import asyncio
import math
import time

from ...errors import OpenDataError

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def seconds_since_boot() -> float:
    """Return the time of the clock of all active leases and claims on this host.

    Clocks of different hosts are never compared.
    """
    return time.clock_gettime(_CLOCK)


class ActiveLease:
    """The time for which this broker is certain to be the active one; unlimited if no broker can replace it.

    Attributes:
        ends_at: by :func:`seconds_since_boot`.
        lost: the reason why this broker is no longer the active one.
    """

    __slots__ = ("_changed", "ends_at", "lost")

    def __init__(self) -> None:
        self.ends_at = math.inf
        self.lost: OpenDataError | None = None
        self._changed = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """The lease is over: nothing may be sent."""
        return self.ends_at < seconds_since_boot()

    def extend(self, ends_at: float) -> None:
        """Extend the lease to this time, after a proof that this broker is the active one."""
        if self.lost is None:
            self.ends_at = ends_at
            self._changed.set()

    def lose(self, error: OpenDataError) -> None:
        """End the lease: another broker is active, or will be, so nothing may be sent any more."""
        self.lost = self.lost or error
        self.ends_at = -math.inf
        self._changed.set()

    async def renewed(self) -> None:
        """Wait until the lease is not over.

        Raises:
            StoreFenced: another broker is active.
        """
        while self.is_over:
            if self.lost is not None:
                raise self.lost
            self._changed.clear()
            await self._changed.wait()
