"""One round of the latency from publish to the start of handling, at several rates.

A message's latency begins at the moment at which the schedule wants it published, not when its publish begins: a
publish that waits for a slow one before it has waited, too ("coordinated omission" is the mistake of leaving that out).
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import clients
from .peers import Peer
from .processes import BenchError, Waiter, run_together
from .results import Results, percentile
from .targets import TITLES
from .workloads import Sizes, a_queue

PREFETCH = 10
PERCENTILES = {"p50": 50.0, "p99": 99.0, "p999": 99.9}
STAGES = ("200", "10", "50", "90")
_FIXED_RATE = 200.0
#: from the start of both processes to the first publish that counts
_LEAD_SECONDS = 0.2
#: of a message that is not measured
_NOT_MEASURED = 0.0
_CAPACITY_ROUNDS = 3
_PR_SET_TIMERSLACK = 29


class Load(NamedTuple):
    """A publisher's messages, and its rate a second; 0 is as fast as they are confirmed."""

    messages: int
    rate: float


class Sent(NamedTuple):
    """The publisher's times; `late` publishes began when the next one was due, or later."""

    start: float
    end: float
    late: int


class Handled(NamedTuple):
    """The latency of each message in seconds, and the time of the last ack."""

    latencies: list[float]
    end: float


def measure_capacities(peers: Sequence[Peer], sizes: Sizes, results: Results) -> None:
    """Measure the messages a second from one publisher to one consumer, and report the rates that follow."""
    for _ in range(min(sizes.rounds, _CAPACITY_ROUNDS)):
        for peer in peers:
            sent, handled = _run(peer, Load(sizes.publish, 0.0))
            seconds = max(sent.end, handled.end) - sent.start
            results.add("latency.capacity", peer.name, sizes.publish / seconds)
    for stage in STAGES[1:]:
        each = ", ".join(f"{stage_rate(stage, peer.name, results):,.0f}/s ({peer.title})" for peer in peers)
        whose = "the smaller capacity, for all brokers" if stage == "50" else "the broker's own capacity"
        results.remarks.append(f"Latency: {stage} % of {whose}: {each}.")


def measure_round(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    """Add a sample of each percentile at each rate."""
    for stage in STAGES:
        rate = stage_rate(stage, peer.name, results)
        load = Load(max(sizes.latency, int(rate * sizes.latency_seconds)), rate)
        sent, handled = _run(peer, load)
        for key, percent in PERCENTILES.items():
            results.add(f"latency.{stage}{key}", peer.name, percentile(handled.latencies, percent) * 1000)
        results.add(f"latency.{stage}late", peer.name, 100 * sent.late / load.messages)


def stage_rate(stage: str, name: str, results: Results) -> float:
    """Return the messages a second of a stage: 200, or a share of the broker's capacity; at 50 % of the smallest one.

    Raises:
        BenchError: the capacity was not measured.
    """
    if stage == "200":
        return _FIXED_RATE
    measured = {series: results.median("latency.capacity", series) for series in TITLES}
    capacities = {series: capacity for series, capacity in measured.items() if capacity is not None}
    if name not in capacities:
        raise BenchError(f"the capacity of {TITLES[name]} was not measured")
    capacity = min(capacities.values()) if stage == "50" else capacities[name]
    return capacity * int(stage) / 100


def _run(peer: Peer, load: Load) -> tuple[Sent, Handled]:
    """Publish and consume in two processes."""
    with a_queue(peer, "latency") as name:
        answers = run_together(_side, [(side, peer, name, load) for side in (_consume, _publish)])
    (sent,) = (answer for answer in answers if isinstance(answer, Sent))
    (handled,) = (answer for answer in answers if isinstance(answer, Handled))
    if len(handled.latencies) != load.messages:
        raise BenchError(f"{len(handled.latencies)} deliveries of {load.messages} messages")
    return sent, handled


def _side(barrier: Waiter, side: Any, peer: Peer, name: str, load: Load) -> Any:
    return side(barrier, peer, name, load)


def _publish(barrier: Waiter, peer: Peer, name: str, load: Load) -> Sent:
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
        late, interval = 0, 1 / load.rate if load.rate else 0.0
        start = time.monotonic() + _LEAD_SECONDS
        for number in range(load.messages):
            due = start + number * interval if interval or not number else time.monotonic()
            if (seconds := due - time.monotonic()) > 0:
                time.sleep(seconds)
            late += interval > 0 and time.monotonic() >= due + interval
            send(due)
        return Sent(start, time.monotonic(), late)


def _consume(barrier: Waiter, peer: Peer, name: str, load: Load) -> Handled:
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
        return Handled(latencies, time.monotonic())
