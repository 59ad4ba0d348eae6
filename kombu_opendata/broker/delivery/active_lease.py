"""How long this broker may answer before it must look again whether it is still the active one of its store.

Whatever is stored proves itself: a fenced broker's write fails, so it can't confirm it. But answers that cost no write
(an empty queue, a message of a transient queue) would go on. So before it sends anything, a broker that a standby may
replace checks that its tenure is not over, and otherwise waits until its record was read again.

The time is that since the boot, which goes on while the process or the host sleeps.
"""

from __future__ import annotations

import asyncio
import math
import time

from ...errors import OpenDataError

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def seconds_since_boot() -> float:
    """The clock of all tenures and claims on this host. Two hosts' clocks are never compared."""
    return time.clock_gettime(_CLOCK)


class ActiveLease:
    """The time for which this broker is surely the active one; without an end where nobody can replace it.

    Attributes:
        ends_at: by :func:`seconds_since_boot`.
        lost: why this broker is not the active one any more.
    """

    __slots__ = ("_changed", "ends_at", "lost")

    def __init__(self) -> None:
        self.ends_at = math.inf
        self.lost: OpenDataError | None = None
        self._changed = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether nothing may be sent now."""
        return self.ends_at < seconds_since_boot()

    def extend(self, ends_at: float) -> None:
        """This broker was the active one a moment ago, so it is until then."""
        if self.lost is None:
            self.ends_at = ends_at
            self._changed.set()

    def lose(self, error: OpenDataError) -> None:
        """Another broker is active, or will be: nothing may be sent any more."""
        self.lost = self.lost or error
        self.ends_at = -math.inf
        self._changed.set()

    async def renewed(self) -> None:
        """Wait until the tenure is not over.

        Raises:
            StoreFenced: another broker is active.
        """
        while self.is_over:
            if self.lost is not None:
                raise self.lost
            self._changed.clear()
            await self._changed.wait()
