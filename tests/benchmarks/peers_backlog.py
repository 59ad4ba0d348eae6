"""As many waiting messages in each broker: ours, RabbitMQ and Redis, side by side, and what each makes of them.

Each has one queue, which is filled as fast as Kombu can. The rates with that backlog are taken in turns. A restart is
timed from the start of the server's program, or from the connect of the client that starts ours, to the first message
in a client's callback.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from kombu_opendata import QueueClient

from . import clients
from .backlog import FILL_STEPS, tree_memory_mb
from .disk_samples import bytes_in
from .peers import Peer, our_broker, server_pid, started
from .processes import BenchError, end, run_alone, wait_at_rest, wait_until
from .results import Results
from .targets import OURS, RABBITMQ, REDIS
from .workloads import PUBLISHERS, Sizes, publish_and_consume, publish_together, rate, unconfirmed

QUEUE = "bench-peers-backlog"
MEASURED = (OURS, RABBITMQ, REDIS)
_SECONDS = 600.0


@dataclass
class Broker:
    """One of them; its server runs until the stack is closed."""

    peer: Peer
    folder: Path
    stack: ExitStack
    keeper: ExitStack = field(default_factory=ExitStack)
    """Holds the client without which ours would end while nothing is measured."""


def steps(sizes: Sizes, names: Collection[str]) -> int:
    """How often `measure` calls back, if all start."""
    return (FILL_STEPS + sizes.rounds + 1) * len([name for name in MEASURED if name in names])


def measure(names: Collection[str], sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Measures those of the brokers named that this machine has."""
    with ExitStack() as stack:
        brokers = [_start(name, folder / f"backlog-{name}", stack, results) for name in MEASURED if name in names]
        running = [broker for broker in brokers if broker is not None]
        for broker in running:
            _fill(broker, sizes, results, step)
        for broker in running:
            wait_at_rest(server_pid(broker.peer), seconds=_SECONDS)
        for number in range(1, sizes.rounds + 1):
            for broker in running:
                published, consumed = publish_and_consume(broker.peer, QUEUE, sizes)
                results.add("peers_backlog.publish", broker.peer.name, published)
                results.add("peers_backlog.consume", broker.peer.name, consumed)
                step(f"{broker.peer.title} with a backlog, round {number}")
        for broker in running:
            results.add("peers_backlog.memory", broker.peer.name, tree_memory_mb(server_pid(broker.peer)))
            results.add("peers_backlog.disk", broker.peer.name, bytes_in(broker.folder) / 1e6)
            restarted = _restart_ours(broker) if broker.peer.name == OURS else _restart_peer(broker)
            results.add("peers_backlog.restart", broker.peer.name, restarted)
            step(f"{broker.peer.title}: restart with a backlog")


def _start(name: str, folder: Path, stack: ExitStack, results: Results) -> Broker | None:
    own = stack.enter_context(ExitStack())
    if name == OURS:
        broker = Broker(own.enter_context(our_broker(folder)), folder, own)
        run_alone(clients.declare, broker.peer, QUEUE)
        keeper = own.enter_context(broker.keeper).enter_context(QueueClient(broker.peer.url, name="keeper"))
        keeper.status()
        return broker
    try:
        peer = started(name, folder, own)
    except BenchError as error:
        peer = f"did not start: {error}"
    if isinstance(peer, str):
        results.remarks.append(f"Backlog in each broker: {name}: {peer}")
        return None
    run_alone(clients.declare, peer, QUEUE)
    return Broker(peer, folder, own)


def _fill(broker: Broker, sizes: Sizes, results: Results, step: Callable[[str], None]) -> None:
    each = sizes.peers_backlog // PUBLISHERS // FILL_STEPS
    for number in range(1, FILL_STEPS + 1):
        filled = publish_together(unconfirmed(broker.peer), QUEUE, each)
        results.add("peers_backlog.fill", broker.peer.name, rate(*filled))
        step(f"{broker.peer.title}: filled to {number * each * PUBLISHERS:,}")
    count = each * PUBLISHERS * FILL_STEPS
    wait_until(
        lambda: run_alone(clients.depth, broker.peer, QUEUE) == count,
        f"{count:,} messages in {broker.peer.title}",
        seconds=_SECONDS,
        poll_seconds=1.0,
    )


def _restart_ours(broker: Broker) -> float:
    broker.keeper.close()
    end(server_pid(broker.peer), with_signal=signal.SIGTERM, grace_seconds=60.0)
    seconds: float = run_alone(clients.first_delivery, broker.peer, QUEUE)
    return seconds


def _restart_peer(broker: Broker) -> float:
    """Seconds from the start of the server to a message; a client tries all the time to get one."""
    port = urlsplit(broker.peer.url).port or 0
    broker.stack.close()
    ready = broker.folder / "client-is-ready"
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(run_alone, clients.first_delivery_at, broker.peer, QUEUE, str(ready))
        wait_until(lambda: ready.exists() or taken.done(), "a client", seconds=60.0)
        began = time.monotonic()
        started(broker.peer.name, broker.folder, broker.stack, port)
        at: float = taken.result()
    return at - began
