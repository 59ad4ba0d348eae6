"""5,000 TLS connections, each with a consumer and its queue (ours only).

They connect as fast as they can while a neighbour publishes and consumes. Then messages are published to random ones
of the queues, at a rate and one after another. The clients are plain sockets that four processes watch by epoll, so
that they leave the machine to the broker.
"""

from __future__ import annotations

import os
import random
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from kombu_opendata.protocol.framing import PREAMBLE, PREAMBLE_BYTES, FrameReader, broker_messages, frame
from kombu_opendata.protocol.messages import (
    Consume,
    DeclareQueue,
    Deliver,
    Hello,
    Outcome,
    Publish,
    PublishConfirm,
    Qos,
    Settle,
)  # fmt: skip

from ..support.certificates import Authority
from ..support.processes import children
from ..support.served import ServedBroker
from . import servers
from .processes import BenchError, Waiter, memory_mb, run_together
from .results import Results
from .targets import OURS
from .workloads import Sizes

_PROCESSES = 4
_SECONDS = 120.0
#: messages a second to random queues, and for how long
_RATE = 200
_NEIGHBOUR_RATE = 100


def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Add a sample of each row."""
    place = folder / "connections"
    place.mkdir()
    issued = Authority(place).issue("broker", "127.0.0.1")
    port = servers.free_ports(1)[0]
    options = [f"--tls-cert={issued.chain}", f"--tls-key={issued.key}"]
    with children() as started:
        broker = ServedBroker(place, "--store", f"{place}/store", "--listen", f"tcp:127.0.0.1:{port}", *options)
        started.add(broker)
        before = memory_mb(broker.pid)
        watched: dict[str, float] = {}
        watcher = threading.Thread(target=_watch, args=(broker.pid, place, watched))
        watcher.start()
        arguments = [(port, str(place), number, sizes.connections // _PROCESSES) for number in range(_PROCESSES)]
        arguments.append((port, str(place), -1, sizes.connections))
        answers = run_together(clients, arguments, deadline_seconds=4 * _SECONDS)
        watcher.join()
    memory, times = watched["resident"], next(answer for answer in answers if answer is not None)
    results.add("connections.memory", OURS, memory)
    results.add("connections.each", OURS, 1e3 * (memory - before) / sizes.connections)
    for key in ("connect", "neighbour", "p50", "p99"):
        results.add(f"connections.{key}", OURS, times[key])
    step(f"{sizes.connections} connections")


def _watch(pid: int, place: Path, found: dict[str, float]) -> None:
    """Note the memory when all are connected and have got messages."""
    until = time.monotonic() + 3 * _SECONDS
    while not (place / "done").exists() and time.monotonic() < until:
        time.sleep(0.1)
        if (place / "published").exists() and "resident" not in found:
            found["resident"] = memory_mb(pid)


# ------------------------------------------------------------ the clients
class Client:
    """One TLS connection."""

    def __init__(self, port: int, context: ssl.SSLContext, name: str) -> None:
        plain = socket.create_connection(("127.0.0.1", port), timeout=_SECONDS)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = context.wrap_socket(plain, server_hostname="127.0.0.1")
        self.queue = name
        self._reader: FrameReader[Any] = FrameReader(broker_messages)
        self._settled = 0
        self._skip = PREAMBLE_BYTES
        self.sock.sendall(PREAMBLE + frame(Hello(1, os.urandom(16), name)))
        self.wait(1)

    def wait(self, rid: int) -> Any:
        """The answer to a request."""
        while True:
            for message in self.receive():
                if getattr(message, "rid", None) == rid:
                    return message

    def receive(self) -> list[Any]:
        """Messages that have arrived, at least one piece of them."""
        data = self.sock.recv(16_384)
        if not data:
            raise BenchError("the broker closed a connection")
        data, self._skip = data[self._skip :], max(self._skip - len(data), 0)
        return list(self._reader.feed(data))

    def consume(self) -> None:
        """Consume the connection's queue."""
        declared = DeclareQueue(2, self.queue, True, False, False, {}, False)
        qos, consume = Qos(3, 1, 10), Consume(4, 1, "tag", self.queue, False, False, {})
        self.sock.sendall(frame(declared) + frame(qos) + frame(consume))
        self.wait(4)

    def acknowledge(self) -> None:
        """Acknowledge what is delivered."""
        for message in self.receive():
            if isinstance(message, Deliver):
                self._settled += len(message.deliveries)
                leases = [one.lease for one in message.deliveries]
                self.sock.sendall(frame(Settle(self._settled, Outcome.ACK, 1, leases)))

    def publish(self, seq: int, queue: str) -> float:
        """Publish a message; return the ms until it was confirmed."""
        began = time.perf_counter()
        self.sock.sendall(frame(Publish(seq + 10, seq, "", queue, b"x" * 200, {}, 0, 1)))
        answer = self.wait(seq + 10)
        if not isinstance(answer, PublishConfirm):
            raise BenchError(f"a publish failed: {answer}")
        return 1000 * (time.perf_counter() - began)


def clients(barrier: Waiter, port: int, folder: str, number: int, count: int) -> dict[str, float] | None:
    """Hold connections; or, as number -1, be the neighbour and the publisher."""
    context = ssl.create_default_context(cafile=f"{folder}/ca.pem")
    if number < 0:
        return _publisher(barrier, port, Path(folder), context, count)
    barrier.wait()
    opened = []
    for index in range(count):
        client = Client(port, context, f"q{number * count + index}")
        client.consume()
        opened.append(client)
    Path(folder, f"connected{number}").touch()
    selector = selectors.DefaultSelector()
    for client in opened:
        selector.register(client.sock, selectors.EVENT_READ, client)
    while not Path(folder, "done").exists():
        for key, _events in selector.select(0.2):
            key.data.acknowledge()
    return None


def _publisher(barrier: Waiter, port: int, folder: Path, context: ssl.SSLContext, count: int) -> dict[str, float]:
    own = Client(port, context, "neighbour")
    own.consume()
    barrier.wait()
    began = time.monotonic()
    seq, storm = 0, []
    while not all((folder / f"connected{number}").exists() for number in range(_PROCESSES)):
        if time.monotonic() - began > 2 * _SECONDS:
            raise BenchError("not all clients are connected")
        seq += 1
        storm.append(own.publish(seq, "elsewhere"))
        time.sleep(1 / _NEIGHBOUR_RATE)
    connect = time.monotonic() - began
    time.sleep(2.0)
    chosen, taken = random.Random(1), []
    for _ in range(10 * _RATE):
        seq += 1
        taken.append(own.publish(seq, f"q{chosen.randrange(count)}"))
        time.sleep(max(0.0, 1 / _RATE - taken[-1] / 1000))
    (folder / "published").touch()
    time.sleep(1.0)
    (folder / "done").touch()
    return {
        "connect": connect,
        "neighbour": quantiles(storm, n=100)[98] if len(storm) > 1 else storm[0],
        "p50": median(taken),
        "p99": quantiles(taken, n=100)[98],
    }
