"""Waiting messages: ten million in our broker and in RabbitMQ, and a million in ours, RabbitMQ and Redis.

Our rates on an empty queue are taken before the fill, on the same store and queue, with the same clients; those with
the backlog right after the fill, during its compactions, and again at rest. RabbitMQ then gets the messages that it
takes in ten minutes, and takes turns with ours. A restart is timed from the start of the server's program, or from the
connect of the client that starts ours, to the first message in a client's callback.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from kombu_opendata import QueueClient

from . import clients
from .machine import bytes_in
from .peers import Peer, our_broker, server_pid, started
from .processes import BenchError, end, memory_mb, run_alone, tree_memory_mb, wait_at_rest, wait_until
from .results import Results
from .targets import EMPTY, OURS, RABBITMQ
from .workloads import PUBLISHERS, Sizes, publish_and_consume, publish_together, rate, unconfirmed

QUEUE = "bench-backlog"
FILL_STEPS = 10
_REST_SECONDS = 1800.0
#: after which RabbitMQ gets no more messages, and how many it gets at a time
_PEER_FILL_SECONDS, _PEER_STEP = 600.0, 100_000
_AT_REST, _BUSY = "backlog.", "backlog.busy"
Step = Callable[[str], None]


def _fill(peer: Peer, count: int, step: Step, steps: int = FILL_STEPS, seconds: float = 1e9) -> list[float]:
    """Publish in equal steps until the time is over; return the rate of each."""
    each, rates, began = count // PUBLISHERS // steps, list[float](), time.monotonic()
    while len(rates) < steps and time.monotonic() - began < seconds:
        rates.append(rate(*publish_together(unconfirmed(peer), QUEUE, each)))
        step(f"{peer.title}: filled to {len(rates) * each * PUBLISHERS:,}")
    return rates


def _restart(peer: Peer, number: int) -> tuple[float, float]:
    """Restart our broker; return the seconds to its end and to the first delivery."""
    stopping = end(server_pid(peer), with_signal=number, grace_seconds=60.0)
    return stopping, run_alone(clients.first_delivery, peer, QUEUE)


def _started(name: str, folder: Path, stack: ExitStack, results: Results) -> Peer | None:
    """A server with an empty queue; None and a remark if it does not start."""
    try:
        peer = started(name, folder, stack)
    except BenchError as error:
        peer = f"did not start: {error}"
    if isinstance(peer, str):
        results.remarks.append(f"Backlog in {name}: {peer}")
        return None
    run_alone(clients.declare, peer, QUEUE)
    return peer


# ---------------------------------------------------------------------- ten million
def measure(names: Collection[str], sizes: Sizes, results: Results, folder: Path, step: Step) -> None:
    """Measure ten million messages that wait in our broker, and in RabbitMQ."""

    def sample(peer: Peer, series: str, *prefixes: str) -> None:
        published, consumed = publish_and_consume(peer, QUEUE, sizes.backlog_sample_each)
        for prefix in prefixes:
            results.add(f"{prefix}publish", series, published)
            results.add(f"{prefix}consume", series, consumed)

    with our_broker(folder / "backlog") as peer, ExitStack() as stack:
        store = folder / "backlog" / "store"
        run_alone(clients.declare, peer, QUEUE)
        with QueueClient(peer.url, name="keeper") as keeper:  # without a client the broker would end
            for _ in range(sizes.rounds):
                sample(peer, EMPTY, _AT_REST, _BUSY)
            rates = ", ".join(f"{value:,.0f}" for value in _fill(peer, sizes.backlog, step))
            results.remarks.append(f"Backlog: filled in {FILL_STEPS} steps, without waiting, at {rates} msg/s.")
            results.add("backlog.diskfilled", OURS, bytes_in(store) / 1e6)
            compacting = 0
            for _ in range(sizes.rounds):
                sample(peer, OURS, _BUSY)
                compacting += bool(keeper.status()["instances"]["default"]["disk"]["compactions_running"])
            results.remarks.append(f"Backlog: compactions ran after {compacting} of the {sizes.rounds} samples.")
            wait_at_rest(server_pid(peer), seconds=_REST_SECONDS)
            results.add("backlog.disk", OURS, bytes_in(store) / 1e6)
            beside = _filled_rabbitmq(sizes, results, folder, stack, step) if RABBITMQ in names else None
            for _ in range(sizes.rounds):
                sample(peer, OURS, _AT_REST)
                results.add("backlog.memory", OURS, memory_mb(server_pid(peer)))
                if beside is not None:
                    sample(beside, RABBITMQ, _AT_REST)
                    results.add("backlog.memory", RABBITMQ, tree_memory_mb(server_pid(beside)))
                step("rates with the backlog")
        stack.close()
        results.add("backlog.peak", OURS, memory_mb(server_pid(peer), "VmHWM"))
        waiting = run_alone(clients.depth, peer, QUEUE)
        # A consumer may settle one prefetch more than it was asked to.
        if not sizes.backlog - 200 * sizes.rounds <= waiting <= sizes.backlog:
            raise BenchError(f"{waiting:,} messages wait where it should be {sizes.backlog:,}")
        for key, number in (("backlog.term", signal.SIGTERM), ("backlog.kill", signal.SIGKILL)):
            for _ in range(sizes.restarts):
                stopping, seconds = _restart(peer, number)
                results.add(key, OURS, seconds)
                if number == signal.SIGTERM:
                    results.remarks.append(f"A stop by SIGTERM took {stopping:.2f} s.")
                step("restart")
        results.remarks.append(f"Memory after the last restart: {memory_mb(server_pid(peer)):.0f} MB.")


def _filled_rabbitmq(sizes: Sizes, results: Results, folder: Path, stack: ExitStack, step: Step) -> Peer | None:
    """RabbitMQ with as many waiting messages, or those that it took until ten minutes were over, at rest."""
    place, began = folder / "backlog-rabbitmq", time.monotonic()
    try:
        if (peer := _started(RABBITMQ, place, stack, results)) is None:
            return None
        _fill(peer, sizes.backlog, step, max(FILL_STEPS, sizes.backlog // _PEER_STEP), _PEER_FILL_SECONDS)
        wait_at_rest(server_pid(peer), seconds=_REST_SECONDS)
        waiting = run_alone(clients.depth, peer, QUEUE)
    except BenchError as error:
        stack.close()  # or ours would be measured beside its remaining work
        results.remarks.append(f"Backlog: RabbitMQ could not be filled: {str(error).splitlines()[-1]}")
        return None
    results.remarks.append(
        f"Backlog: RabbitMQ took {waiting:,} messages and was at rest after {time.monotonic() - began:,.0f} s; its "
        f"disk had {bytes_in(place) / 1e6:,.0f} MB then."
    )
    return peer


# ---------------------------------------------------------------------- a million in each broker
def measure_peers(names: Collection[str], sizes: Sizes, results: Results, folder: Path, step: Step) -> None:
    """Measure a million messages that wait in each of the named brokers that this machine has."""
    with ExitStack() as stack:
        brokers: list[tuple[Peer, Path, ExitStack]] = []
        for name in sizes.backlog_peers:
            own, place = stack.enter_context(ExitStack()), folder / f"peers-backlog-{name}"
            if name == OURS and name in names:
                peer: Peer | None = own.enter_context(our_broker(place))
                assert peer is not None
                run_alone(clients.declare, peer, QUEUE)
            else:
                peer = _started(name, place, own, results) if name in names else None
            if peer is not None:
                brokers.append((peer, place, own))
        with ExitStack() as keepers:
            for peer, _place, _own in brokers:
                if peer.name == OURS:  # without a client the broker would end
                    keepers.enter_context(QueueClient(peer.url, name="keeper")).status()
                for filled in _fill(peer, sizes.peers_backlog, step):
                    results.add("peers_backlog.fill", peer.name, filled)
                _wait_depth(peer, sizes.peers_backlog // PUBLISHERS // FILL_STEPS * PUBLISHERS * FILL_STEPS)
            for peer, _place, _own in brokers:
                wait_at_rest(server_pid(peer), seconds=_PEER_FILL_SECONDS)
            for number in range(1, sizes.rounds + 1):
                for peer, _place, _own in brokers:
                    published, consumed = publish_and_consume(peer, QUEUE, sizes.backlog_sample_each)
                    results.add("peers_backlog.publish", peer.name, published)
                    results.add("peers_backlog.consume", peer.name, consumed)
                    step(f"{peer.title} with a backlog, round {number}")
            for peer, place, _own in brokers:
                results.add("peers_backlog.memory", peer.name, tree_memory_mb(server_pid(peer)))
                results.add("peers_backlog.disk", peer.name, bytes_in(place) / 1e6)
        for peer, place, own in brokers:
            seconds = _restart(peer, signal.SIGTERM)[1] if peer.name == OURS else _restart_peer(peer, place, own)
            results.add("peers_backlog.restart", peer.name, seconds)
            step(f"{peer.title}: restart with a backlog")


def _wait_depth(peer: Peer, count: int) -> None:
    what = f"{count:,} messages in {peer.title}"
    wait_until(lambda: run_alone(clients.depth, peer, QUEUE) == count, what, seconds=600.0, poll_seconds=1.0)


def _restart_peer(peer: Peer, place: Path, stack: ExitStack) -> float:
    """Seconds from the start of the server to a message; a client tries all the time to get one."""
    stack.close()
    ready = place / "client-is-ready"
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(run_alone, clients.first_delivery_at, peer, QUEUE, str(ready))
        wait_until(lambda: ready.exists() or taken.done(), "a client", seconds=60.0)
        began = time.monotonic()
        started(peer.name, place, stack, urlsplit(peer.url).port or 0)
        at: float = taken.result()
    return at - began
