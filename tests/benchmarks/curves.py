"""Curves of our broker's rates, times and memory along one size at a time, from none to the largest (ours only).

Each point has a new broker and store. The broker is at rest when the point is measured: compactions of what
was published to get there are over.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from kombu_opendata import QueueClient
from kombu_opendata.errors import OpenDataError

from . import clients
from .curve_rows import CURVES, Curve
from .machine import bytes_in
from .peers import Peer, our_broker, server_pid
from .processes import BenchError, beside, cpu_seconds, end, memory_mb, run_alone, run_together, wait_at_rest
from .results import Results
from .workloads import PUBLISHERS, Sizes, publish_together, rate, unconfirmed

QUEUE = "bench-curves"
EXCHANGE = "bench-topic"
_FILLERS = 4
#: of each of many consumers, and the processes that these share
SMALL_PREFETCH, PROCESSES = 10, 2
#: of a queue
BINDINGS_EACH = 100
#: messages of one fill
_FILL = 1_000_000
_REST_SECONDS = 3600.0
#: a slow point's publishers get fewer messages, so that they take about so long at most
_SLOW_SECONDS = 20.0
#: it takes some seconds to see that a broker is at rest, so that is not done for smaller sizes
_RESTS_FROM = 1_000


@dataclass
class Place:
    """A broker that a point is measured with, and what its clients do."""

    peer: Peer
    store: Path
    size: int
    exchange: str = ""
    keys: Sequence[str] = (QUEUE,)
    fills: bool = False
    """The consumed messages are published for that, as the measured publishes go elsewhere."""
    consumers: int = 1
    prefetch: int = 100
    during_rates: Callable[[], AbstractContextManager[None]] = nullcontext
    """The context in which rates are measured."""
    during_publishes: Callable[[], AbstractContextManager[None]] = nullcontext

    def pid(self) -> int:
        return server_pid(self.peer)


def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Measure all points; one that fails is reported, and the others continue."""
    for curve in CURVES:
        for size in _sizes_of(curve, sizes):
            try:
                with our_broker(folder / f"curve-{curve.key}-{size}") as peer:
                    place = Place(peer, folder / f"curve-{curve.key}-{size}" / "store", size)
                    _measure_point(curve, place, sizes, results)
            except (BenchError, OpenDataError, OSError) as error:
                results.failures[f"{curve.title}: {size:,}"] = str(error).strip()
            step(f"{curve.title}: {size:,}")


def _sizes_of(curve: Curve, sizes: Sizes) -> tuple[int, ...]:
    found: tuple[int, ...] = getattr(sizes, f"curve_{curve.key}")
    return found


def _measure_point(curve: Curve, place: Place, sizes: Sizes, results: Results) -> None:
    def add(quantity: str, value: float) -> None:
        results.add_point(curve.key, quantity, place.size, value)

    run_alone(clients.declare, place.peer, QUEUE)
    # As long as this client is connected, the broker does not end for want of clients.
    with QueueClient(place.peer.url, name="keeper") as keeper:
        keeper.status()
        _PREPARE[curve.key](place)
        waiting = run_alone(clients.depth, place.peer, QUEUE)
        with place.during_rates():
            if place.size >= _RESTS_FROM:
                wait_at_rest(place.pid(), seconds=_REST_SECONDS)
            if curve.stores:
                add("disk", bytes_in(place.store / "default") / 1e6)
            for number in range(sizes.rounds):
                if place.exchange:  # the routes of the last round's keys are known by now
                    place.keys = [f"part.{binding}.{number}" for binding in range(place.size)]
                _sample(place, sizes, add)
                if not waiting:
                    keeper.purge(QUEUE)
            add("memory", memory_mb(place.pid()))
        keeper.send(QUEUE, 1)
    for _ in range(sizes.restarts if curve.restarts else 0):
        end(place.pid(), with_signal=signal.SIGTERM, grace_seconds=60.0)
        add("restart", run_alone(clients.first_delivery, place.peer, QUEUE))
        with QueueClient(place.peer.url) as client:
            client.send(QUEUE, 1)


def _sample(place: Place, sizes: Sizes, add: Callable[[str, float], None]) -> None:
    """One sample of each rate and of the latency."""
    with place.during_publishes():
        taken = run_alone(clients.publish_seconds, place.peer, 2 * sizes.curve_latency, place.exchange, place.keys)
        latency = median(taken[len(taken) // 2 :])  # those before are a warm-up
        add("latency", 1000 * latency)
        each = min(sizes.curve_sample_each, max(1, int(_SLOW_SECONDS / latency / PUBLISHERS)))
        count = PUBLISHERS * each
        _rate(place, "publish", count, clients.publish, [_publisher(place, n, each) for n in range(PUBLISHERS)], add)
    if place.fills:
        count = PUBLISHERS * sizes.curve_sample_each
        fill(place.peer, count + place.consumers * place.prefetch)
    else:  # as many as were published
        count += len(taken)
    processes = min(place.consumers, PROCESSES)
    consumer = (place.peer, QUEUE, count // processes, place.prefetch, place.consumers // processes)
    _rate(place, "consume", count, clients.consume, [consumer] * processes, add)


def _rate(
    place: Place, quantity: str, count: int, function: Callable[..., clients.Timing],
    arguments: Sequence[tuple[Any, ...]], add: Callable[[str, float], None],
) -> None:  # fmt: skip
    """Add a rate, and the broker's CPU for a message."""
    before = cpu_seconds(place.pid())
    timings = run_together(function, arguments)
    add(quantity, rate(*timings))
    add(f"{quantity}_cpu", 1e6 * (cpu_seconds(place.pid()) - before) / count)


def _publisher(place: Place, number: int, each: int) -> tuple[Any, ...]:
    """The arguments of one; each begins at another key, so that of many keys as many as possible are used."""
    first = number * each % len(place.keys)
    return place.peer, QUEUE, each, place.exchange, [*place.keys[first:], *place.keys[:first]][:each]


# ------------------------------------------------------------ the sizes
def fill(peer: Peer, count: int) -> None:
    """Publish as fast as possible."""
    for start in range(0, count, _FILL):
        publishers = _FILLERS if count >= 1000 * _FILLERS else 1
        each, more = divmod(min(_FILL, count - start), publishers)
        publish_together(unconfirmed(peer), QUEUE, each, publishers)
        if more:
            publish_together(unconfirmed(peer), QUEUE, more, 1)


def _settle(place: Place) -> None:
    for start in range(0, place.size, _FILL):
        count = min(_FILL, place.size - start)
        fill(place.peer, count)
        run_alone(clients.consume, place.peer, QUEUE, count)


def _declare(place: Place) -> None:
    place.keys, place.fills = [f"bench-curve-{number}" for number in range(place.size)], True
    with QueueClient(place.peer.url) as client:
        for key in place.keys:
            client.create(key)


def _bind(place: Place) -> None:
    place.exchange, place.fills = EXCHANGE, True
    with QueueClient(place.peer.url) as client:
        client.declare_exchange(EXCHANGE)
        for number in range(place.size):
            queue = f"bench-curve-{number // BINDINGS_EACH}"
            client.create(queue)
            client.bind(queue, EXCHANGE, f"part.{number}.*")


def _consume(place: Place) -> None:
    place.consumers, place.prefetch, place.fills = place.size, SMALL_PREFETCH, True
    arguments = place.peer, QUEUE, place.size, SMALL_PREFETCH
    place.during_publishes = partial(beside, clients.keep_consuming, *arguments)


def _connect(place: Place) -> None:
    place.during_rates = partial(beside, clients.keep_connected, place.peer, place.size)


_PREPARE: dict[str, Callable[[Place], None]] = {
    "backlog": lambda place: fill(place.peer, place.size),
    "history": _settle,
    "queues": _declare,
    "bindings": _bind,
    "consumers": _consume,
    "connections": _connect,
}
