"""One round of the latency from publish to the start of handling, at 200 messages a second and at half capacity.

A message's latency begins at the moment at which the schedule wants it published, not when its publish begins: a
publish that waits for a slow one before it has waited, too ("coordinated omission" is the mistake of leaving that out).
"""

from __future__ import annotations

import ctypes
import gc
import math
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from . import clients
from .peers import Peer
from .processes import BenchError, Waiter, run_together
from .results import Results, percentile
from .workloads import Sizes, a_queue

PREFETCH = 10
PERCENTILES = {"p50": 50.0, "p99": 99.0, "p999": 99.9}
#: messages a second
_RATE = 200.0
#: from the start of both processes to the first publish that counts
_LEAD_SECONDS = 0.2
#: of a message that is not measured
_NOT_MEASURED = 0.0
_PR_SET_TIMERSLACK = 29


class Load(NamedTuple):
    """A publisher's messages, and its rate a second."""

    messages: int
    rate: float


def measure_round(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    """Add a sample of the broker's capacity, and of each percentile at both rates."""
    capacity = sizes.latency / max(_run(peer, Load(sizes.latency, math.inf))[1])  # all were due at the start
    results.add("latency.capacity", peer.name, capacity)
    for stage, rate in (("200", _RATE), ("half", capacity / 2)):
        late, latencies = _run(peer, Load(sizes.latency, rate))
        for key, percent in PERCENTILES.items():
            results.add(f"latency.{stage}{key}", peer.name, percentile(latencies, percent) * 1000)
        results.add(f"latency.{stage}late", peer.name, 100 * late / sizes.latency)


def _run(peer: Peer, load: Load) -> tuple[int, list[float]]:
    """Publish and consume in two processes.

    Returns the number of publishes that began when the next one was due, or later, and the latencies in seconds.
    """
    with a_queue(peer, "latency") as name:
        answers = run_together(_side, [(side, peer, name, load) for side in (_consume, _publish)])
    (late,) = (answer for answer in answers if isinstance(answer, int))
    (latencies,) = (answer for answer in answers if isinstance(answer, list))
    if len(latencies) != load.messages:
        raise BenchError(f"{len(latencies)} deliveries of {load.messages} messages")
    return late, latencies


def _side(barrier: Waiter, side: Any, peer: Peer, name: str, load: Load) -> Any:
    return side(barrier, peer, name, load)


def _publish(barrier: Waiter, peer: Peer, name: str, load: Load) -> int:
    if sys.platform == "linux":  # a sleep may take up to 50 µs longer, unless a thread asks for less
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    with clients.connected(peer) as connection, connection.Producer(serializer="json") as producer:

        def send(due: float) -> None:
            body = [*clients.BODY, due]
            producer.publish(body, exchange="", routing_key=name, delivery_mode=2, headers=clients.HEADERS)

        for _ in range(clients.WARM_UP):
            send(_NOT_MEASURED)
        gc.collect()
        barrier.wait()
        late, interval = 0, 1 / load.rate
        start = time.monotonic() + _LEAD_SECONDS
        for number in range(load.messages):
            due = start + number * interval
            if (seconds := due - time.monotonic()) > 0:
                time.sleep(seconds)
            late += time.monotonic() >= due + interval
            send(due)
        return late


def _consume(barrier: Waiter, peer: Peer, name: str, load: Load) -> list[float]:
    latencies: list[float] = []

    def take(message: Any) -> None:
        now = time.monotonic()
        due = message.payload[-1]
        if due != _NOT_MEASURED:
            latencies.append(now - due)
        message.ack()

    with clients.connected(peer) as connection:
        channel = connection.channel()
        clients.consumer(connection, channel, name, take, PREFETCH).consume()
        gc.collect()
        barrier.wait()
        while len(latencies) < load.messages:
            connection.drain_events(timeout=clients.TIMEOUT_SECONDS)
        channel.close()
        return latencies
