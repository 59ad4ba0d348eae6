"""Active lease: the time for which this broker is certainly the active broker of its store.

Stores are safe without an active lease: the write of a fenced broker fails, so the broker can't confirm anything. But
a fenced broker could still send replies that need no write (an empty queue, a message of a transient queue). Therefore
a broker that a standby may replace sends data only during its active lease; after its end, the broker waits until it
has read its record again.

Times are seconds since the boot, by a clock that also runs while the process or the host sleeps.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from ...errors import OpenDataError

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def seconds_since_boot() -> float:
    """Return the time of the clock of all active leases and claims on this host.

    Clocks of different hosts are never compared.
    """
    return time.clock_gettime(_CLOCK)


class ActiveLease:
    """Time for which this broker is certainly active; unlimited if no other broker can replace it.

    Attributes:
        now: the clock, :func:`seconds_since_boot`.
        ends_at: by this clock.
        lost: the reason why this broker is no longer active.
    """

    __slots__ = ("_changed", "ends_at", "lost", "now")

    def __init__(self, now: Callable[[], float] = seconds_since_boot) -> None:
        self.now = now
        self.ends_at = math.inf
        self.lost: OpenDataError | None = None
        self._changed = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """True if the lease is over, so that nothing may be sent."""
        return self.ends_at < self.now()

    def extend(self, ends_at: float) -> None:
        """Extend the lease to this time, after a proof that this broker is active."""
        if self.lost is None:
            self.ends_at = ends_at
            self._changed.set()

    def lose(self, error: OpenDataError) -> None:
        """End the lease permanently, because another broker is or will be active."""
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
