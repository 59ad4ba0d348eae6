"""Waiting in tests: for a condition on the event loop, for turns of the loop, and until a random moment of a fault.

Tests of other processes wait with :func:`.processes.wait_until`.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Awaitable, Callable


async def until(
    condition: Callable[[], object | Awaitable[object]], seconds: float = 60, poll_seconds: float = 0.005
) -> None:
    """Check the condition, a function or a coroutine, in each turn of the event loop or at an interval.

    Raises:
        TimeoutError: the condition does not hold after ``seconds``.
    """
    async with asyncio.timeout(seconds):
        while True:
            answer = condition()
            if (await answer) if inspect.isawaitable(answer) else answer:
                return
            await asyncio.sleep(poll_seconds)


async def turns(count: int = 1) -> None:
    """Let the event loop run what is ready, ``count`` times."""
    for _ in range(count):
        await asyncio.sleep(0)


def random_moment(dice: random.Random, seconds: float) -> None:
    """Let a random part of ``seconds`` pass before a fault, which may happen at any moment."""
    time.sleep(dice.random() * seconds)


def pass_time(seconds: float) -> None:
    """Let time pass on the clock of another process, where the time itself is what is tested."""
    time.sleep(seconds)
