"""Ten million waiting messages in our broker: its memory, its rates against an empty queue, its restart.

The rates on the empty queue are taken before the fill, on the same store and queue, with the same clients. Those with
the backlog are taken right after the fill, while compactions of it are under way, and again when they are over. Then
RabbitMQ is filled with as many, as far as it goes, and takes turns with ours.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path

from kombu_opendata import QueueClient

from . import clients
from .disk_samples import bytes_in
from .peers import Peer, broker_pid, our_broker, server_pid, started
from .processes import BenchError, end, run_alone, tree_of, wait_at_rest
from .results import Results
from .targets import EMPTY, OURS, RABBITMQ
from .workloads import PUBLISHERS, Sizes, publish_and_consume, publish_together, rate, unconfirmed

QUEUE = "bench-backlog"
FILL_STEPS = 10
_REST_SECONDS = 1800.0
#: after which RabbitMQ gets no more messages
_PEER_FILL_SECONDS = 600.0
#: it gets so many at a time, so that little more is sent when the time is over
_PEER_STEP = 100_000
_AT_REST, _BUSY = "backlog.", "backlog.busy"


def steps(sizes: Sizes, names: Collection[str]) -> int:
    """How often `measure` calls back."""
    return 3 * sizes.rounds + FILL_STEPS * (1 + (RABBITMQ in names)) + 2 * sizes.restarts


def measure(names: Collection[str], sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Measures everything about the backlog; calls `step` with a word of progress as it goes."""
    with our_broker(folder / "backlog") as peer, ExitStack() as stack:
        store = folder / "backlog" / "store"
        run_alone(clients.declare, peer, QUEUE)
        with QueueClient(peer.url, name="keeper") as keeper:  # without a client the broker would end
            for _ in range(sizes.rounds):
                _sample_rates(peer, EMPTY, sizes, results, _AT_REST, _BUSY)
                step("rates on an empty queue")
            _fill(peer, sizes, results, step)
            results.add("backlog.diskfilled", OURS, bytes_in(store) / 1e6)
            compacting = 0
            for _ in range(sizes.rounds):
                _sample_rates(peer, OURS, sizes, results, _BUSY)
                disk = keeper.status()["instances"]["default"]["disk"]
                compacting += bool(disk["compactions_running"])
                step("rates during compactions")
            results.remarks.append(f"Backlog: compactions ran after {compacting} of the {sizes.rounds} samples.")
            wait_at_rest(server_pid(peer), seconds=_REST_SECONDS)
            results.add("backlog.disk", OURS, bytes_in(store) / 1e6)
            beside = None
            try:
                beside = _filled_rabbitmq(sizes, results, folder / "backlog-rabbitmq", stack, step, names)
            except BenchError as error:
                stack.close()  # or ours would be measured beside what it still does
                results.remarks.append(f"Backlog: RabbitMQ could not be filled: {str(error).splitlines()[-1]}")
            for _ in range(sizes.rounds):
                _sample_rates(peer, OURS, sizes, results, _AT_REST)
                results.add("backlog.memory", OURS, memory_mb(store, "VmRSS"))
                if beside is not None:
                    _sample_rates(beside, RABBITMQ, sizes, results, _AT_REST)
                    results.add("backlog.memory", RABBITMQ, tree_memory_mb(server_pid(beside)))
                step("rates with the backlog")
        stack.close()
        results.add("backlog.peak", OURS, memory_mb(store, "VmHWM"))
        _check_depth(peer, sizes)
        for key, number in (("backlog.term", signal.SIGTERM), ("backlog.kill", signal.SIGKILL)):
            for _ in range(sizes.restarts):
                _restart(peer, store, number, key, results)
                step("restart")
        results.remarks.append(f"Memory after the last restart: {memory_mb(store, 'VmRSS'):.0f} MB.")


def _filled_rabbitmq(
    sizes: Sizes,
    results: Results,
    folder: Path,
    stack: ExitStack,
    step: Callable[[str], None],
    names: Collection[str],
) -> Peer | None:
    """RabbitMQ with as many waiting messages, or those that it took until ten minutes were over, at rest."""
    if RABBITMQ not in names:
        return None
    peer = started(RABBITMQ, folder, stack)
    if isinstance(peer, str):
        results.remarks.append(f"Backlog: RabbitMQ: {peer}")
        return None
    run_alone(clients.declare, peer, QUEUE)
    began, steps = time.monotonic(), max(FILL_STEPS, sizes.backlog // _PEER_STEP)
    each = sizes.backlog // PUBLISHERS // steps
    for number in range(1, steps + 1):
        if time.monotonic() - began < _PEER_FILL_SECONDS:
            publish_together(unconfirmed(peer), QUEUE, each)
        if number % (steps // FILL_STEPS) == 0:
            step(f"RabbitMQ filled to {number * each * PUBLISHERS:,}")
    wait_at_rest(server_pid(peer), seconds=_REST_SECONDS)
    waiting, seconds = run_alone(clients.depth, peer, QUEUE), time.monotonic() - began
    results.remarks.append(
        f"Backlog: RabbitMQ took {waiting:,} messages and was at rest after {seconds:,.0f} s; its disk had "
        f"{bytes_in(folder) / 1e6:,.0f} MB then."
    )
    return peer


def _sample_rates(peer: Peer, series: str, sizes: Sizes, results: Results, *prefixes: str) -> None:
    """A sample of both rates, for the rows that begin with these prefixes."""
    published, consumed = publish_and_consume(peer, QUEUE, sizes)
    for prefix in prefixes:
        results.add(f"{prefix}publish", series, published)
        results.add(f"{prefix}consume", series, consumed)


def _fill(peer: Peer, sizes: Sizes, results: Results, step: Callable[[str], None]) -> None:
    each = sizes.backlog // PUBLISHERS // FILL_STEPS
    rates = []
    for number in range(FILL_STEPS):
        rates.append(rate(*publish_together(unconfirmed(peer), QUEUE, each)))
        step(f"filled to {(number + 1) * each * PUBLISHERS:,}")
    results.remarks.append(
        f"Backlog: {PUBLISHERS} processes sent {sizes.backlog:,} messages in {FILL_STEPS} steps, without waiting, at "
        + ", ".join(f"{one:,.0f}" for one in rates)
        + " msg/s."
    )


def _check_depth(peer: Peer, sizes: Sizes) -> None:
    waiting = run_alone(clients.depth, peer, QUEUE)
    # A consumer may settle one prefetch more than it was asked to.
    if not sizes.backlog - 200 * sizes.rounds <= waiting <= sizes.backlog:
        raise BenchError(f"{waiting:,} messages wait where it should be {sizes.backlog:,}")


def _restart(peer: Peer, store: Path, number: int, key: str, results: Results) -> None:
    pid = broker_pid(store)
    if pid is None:
        raise BenchError(f"no broker runs on {store}: broker.pid is missing or stale")
    stopping = end(pid, with_signal=number, grace_seconds=60.0)
    seconds = run_alone(clients.first_delivery, peer, QUEUE)
    results.add(key, OURS, seconds)
    if number == signal.SIGTERM:
        results.remarks.append(f"A stop by SIGTERM took {stopping:.2f} s.")


def memory_mb(store: Path, what: str) -> float:
    """The broker's memory in MB (10⁶ bytes): `VmRSS`, or the highest so far, `VmHWM`.

    Raises:
        BenchError: no broker runs on this folder.
    """
    pid = broker_pid(store)
    if pid is None:
        raise BenchError(f"no broker runs on {store}: broker.pid is missing or stale")
    return kilobytes(pid, what) * 1024 / 1e6


def tree_memory_mb(pid: int) -> float:
    """The resident memory of a process and of those that it started, in MB (10⁶ bytes)."""
    return sum(kilobytes(one, "VmRSS") for one in tree_of(pid)) * 1024 / 1e6


def kilobytes(pid: int, what: str) -> int:
    """One field of a process's memory, or 0 if it has ended; where there is no /proc, what ``ps`` says is resident."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        found = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], check=False, capture_output=True, text=True)
        return int(found.stdout or 0)
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{what}:")), 0)
