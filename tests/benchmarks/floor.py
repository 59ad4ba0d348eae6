"""The floor of the CPU numbers: the same clients on Kombu's in-memory transport, with no broker at all."""

from __future__ import annotations

from statistics import median

from . import clients
from .kombu_api import Queue
from .peers import Peer
from .processes import Waiter, run_alone
from .results import Results
from .workloads import Sizes, cpu_microseconds

MEMORY = Peer("memory", "memory://")
QUEUE = "bench-floor"


def measure(sizes: Sizes, results: Results) -> None:
    """Adds one remark with the medians of the rounds."""
    rounds = [run_alone(round_trip, sizes.publish) for _ in range(sizes.rounds)]
    publish, consume = (median(one) for one in zip(*rounds, strict=True))
    results.remarks.append(
        f"The floor, Kombu's in-memory transport: {publish:.0f} µs of client CPU per publish, "
        f"{consume:.0f} µs per consume + ack."
    )


def round_trip(barrier: Waiter, count: int) -> tuple[float, float]:
    """CPU µs per publish and per consume + ack; the in-memory queues live as long as this process."""
    with clients.connected(MEMORY) as connection:
        Queue(QUEUE, durable=True)(connection.default_channel).declare()
    published = clients.publish(barrier, MEMORY, QUEUE, count)
    consumed = clients.consume(barrier, MEMORY, QUEUE, count)
    return cpu_microseconds(published), cpu_microseconds(consumed)
