"""Time, as the client gets it from outside."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """The three functions of time that a client needs; tests give their own.

    Attributes:
        wall: seconds since the Unix epoch.
        monotonic: seconds that only go up.
        sleep: wait for some seconds.
    """

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


SYSTEM = Clock()
