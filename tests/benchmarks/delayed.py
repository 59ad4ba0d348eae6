"""Many messages that fall due at one moment, and the rate of their deliveries from then on (ours only)."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from . import clients
from .clients import HEADERS, Content
from .peers import Peer, our_broker, server_pid
from .processes import BenchError, Waiter, memory_mb, run_alone, run_together
from .results import Results
from .targets import OURS
from .workloads import PUBLISHERS, Sizes, rate, unconfirmed

_QUEUE = "bench-delayed"
_DAY_SECONDS = 86_400.0
#: the time for publishing, beyond that of the rate of the sample before
_SLACK, _SLACK_SECONDS, _TRIES = 1.5, 20.0, 4
#: from the start of the consumer to the moment
_AHEAD_SECONDS = 15.0


def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Publish messages with the same `eta` and consume them when it has come."""
    each = sizes.delayed // PUBLISHERS
    count = each * PUBLISHERS
    with our_broker(folder / "delayed") as peer:
        name, due_at, published = _fill(peer, each)
        waiting = memory_mb(server_pid(peer))
        step("messages that are not due yet")
        time.sleep(max(0.0, due_at - _AHEAD_SECONDS - time.time()))
        times: list[float]
        began, times = run_alone(take_times, peer, name, count)
        if began > due_at - 1:
            raise BenchError(f"the consumer began {began - due_at:.3f} s after the messages were due")
        if times[0] < due_at or len(times) != count:
            raise BenchError(
                f"{len(times):,} deliveries of {count:,}, the first {times[0] - due_at:.3f} s after its time"
            )
        results.add("delayed.rate", OURS, count / (times[-1] - due_at))
        results.add("delayed.first", OURS, 1000 * (times[0] - due_at))
        results.add("delayed.memory", OURS, memory_mb(server_pid(peer), "VmHWM"))
        tenth = count // 10
        slices = [tenth / (times[(n + 1) * tenth - 1] - times[n * tenth]) for n in range(10)]
        results.remarks.append(
            f"Delayed: {count:,} messages were published at {published:,.0f} msg/s; then the broker took {waiting:.0f} "
            "MB. Tenths of them were delivered at " + ", ".join(f"{value:,.0f}" for value in slices) + " msg/s."
        )


def _fill(peer: Peer, each: int) -> tuple[str, float, float]:
    """Publish messages of which none is due when the last one is there.

    Returns:
        Their queue, when they are due (seconds since the epoch), and the messages per second.

    Raises:
        BenchError: publishing them took longer each time than the time before.
    """
    speed = _publish(peer, sample := f"{_QUEUE}-sample", max(1, each // 10), time.time() + _DAY_SECONDS)
    run_alone(clients.delete, peer, sample)
    for number in range(_TRIES):
        seconds = _SLACK * each * PUBLISHERS / speed + _SLACK_SECONDS
        name, due_at = f"{_QUEUE}-{number}", time.time() + seconds
        speed = _publish(peer, name, each, due_at)
        if time.time() < due_at - _AHEAD_SECONDS:
            return name, due_at, speed
        run_alone(clients.delete, peer, name)
    raise BenchError(f"{each * PUBLISHERS:,} messages could not be published within {seconds:.0f} s")


def _publish(peer: Peer, name: str, each: int, due_at: float) -> float:
    """Publish with eight processes; return the messages per second."""
    run_alone(clients.declare, peer, name)
    content = Content(headers={**HEADERS, "eta": datetime.fromtimestamp(due_at, UTC).isoformat()})
    return rate(*run_together(clients.publish, [(unconfirmed(peer), name, each, "", (), content)] * PUBLISHERS))


def take_times(barrier: Waiter, peer: Peer, name: str, count: int) -> tuple[float, list[float]]:
    """Consume messages; return when it began and when each was delivered (since the epoch)."""
    times: list[float] = []
    timing = clients.consume(barrier, peer, name, count, look=lambda _message: times.append(time.time()))
    return time.time() - time.monotonic() + timing.start, times
