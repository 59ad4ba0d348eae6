"""What a measured Kombu client does. Each function runs in a process of its own and returns plain numbers.

A message is what Celery sends for ``add(2, 2)``: a JSON body and a few headers, published to the default exchange
with the queue's name. Consumers take messages with ``on_message``, as Celery's worker does.
"""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from .kombu_api import Connection, Queue
from .peers import Peer
from .processes import Waiter

BODY = [[2, 2], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
HEADERS = {"lang": "py", "task": "bench.add", "id": "5a3f1f6e-7d7e-4f7b-9a55-0f1f6e7d7e4f", "retries": 0}
WARM_UP = 50
TIMEOUT_SECONDS = 120.0


class Timing(NamedTuple):
    """One client's measured stretch; start and end on the clock that all processes share."""

    messages: int
    start: float
    end: float
    cpu_seconds: float


@contextmanager
def connected(peer: Peer) -> Iterator[Any]:
    """A connection to the peer, as an application makes it."""
    if peer.url.startswith("opendata"):
        importlib.import_module("kombu_opendata")
    with Connection(peer.url, transport_options=dict(peer.options)) as connection:
        connection.connect()
        yield connection


def declare(barrier: Waiter, peer: Peer, name: str) -> None:
    """Makes an empty durable queue."""
    with connected(peer) as connection:
        queue = Queue(name, durable=True, queue_arguments=peer.arguments)(connection.default_channel)
        queue.declare()
        queue.purge()


def delete(barrier: Waiter, peer: Peer, name: str) -> None:
    """Removes a queue with all that waits in it."""
    with connected(peer) as connection:
        Queue(name, durable=True)(connection.default_channel).delete()


def depth(barrier: Waiter, peer: Peer, name: str) -> int:
    """How many messages wait in a queue."""
    with connected(peer) as connection:
        # Not a passive declare: to Kombu's Redis transport an empty queue does not exist.
        declared = connection.default_channel.queue_declare(
            name, durable=True, auto_delete=False, arguments=peer.arguments
        )
        return int(declared.message_count)


def publish(barrier: Waiter, peer: Peer, name: str, count: int) -> Timing:
    """Publishes `count` messages one at a time; the warm-up ones come from the same number."""
    with connected(peer) as connection, connection.Producer(serializer="json") as producer:

        def send(number: int) -> None:
            for _ in range(number):
                producer.publish(BODY, exchange="", routing_key=name, delivery_mode=2, headers=HEADERS)

        warm_up = min(WARM_UP, count // 10)
        send(warm_up)
        gc.collect()
        barrier.wait()
        start, cpu = time.monotonic(), time.process_time()
        send(count - warm_up)
        flush(producer.channel)
        return Timing(count - warm_up, start, time.monotonic(), time.process_time() - cpu)


def flush(channel: Any) -> None:
    """Wait until the broker has what was published without waiting; only our channels can."""
    if hasattr(channel, "flush"):
        channel.flush()


def consume(barrier: Waiter, peer: Peer, name: str, count: int, prefetch: int = 100) -> Timing:
    """Consumes and acks at least `count` messages (the last batch may bring more).

    The stretch ends when the channel is closed, and so with the last ack processed.
    """
    seen = 0

    def take(message: Any) -> None:
        nonlocal seen
        seen += 1
        message.ack()

    with connected(peer) as connection:
        channel = connection.channel()
        consumer = connection.Consumer(
            [Queue(name, durable=True)], channel=channel, on_message=take, auto_declare=False
        )
        consumer.qos(prefetch_count=prefetch)
        gc.collect()
        barrier.wait()
        start, cpu = time.monotonic(), time.process_time()
        consumer.consume()
        while seen < count:
            connection.drain_events(timeout=TIMEOUT_SECONDS)
        channel.close()
        timing = Timing(seen, start, time.monotonic(), time.process_time() - cpu)
    return timing


def first_delivery(barrier: Waiter, peer: Peer, name: str) -> float:
    """Seconds from the start of connecting to the first message in the callback."""
    taken: list[float] = []

    def take(message: Any) -> None:
        if not taken:
            taken.append(time.perf_counter())
            message.ack()

    start = time.perf_counter()
    with connected(peer) as connection:
        with connection.Consumer([Queue(name, durable=True)], on_message=take, prefetch_count=1, auto_declare=False):
            while not taken:
                connection.drain_events(timeout=TIMEOUT_SECONDS)
        return taken[0] - start


def first_connect(barrier: Waiter, peer: Peer) -> float:
    """Seconds until a new client has a channel; the import of the transport is not in it."""
    if peer.url.startswith("opendata"):
        importlib.import_module("kombu_opendata")
    connection = Connection(peer.url, transport_options=dict(peer.options))
    connection.get_transport_cls()
    start = time.perf_counter()
    connection.connect()
    _ = connection.default_channel
    seconds = time.perf_counter() - start
    connection.release()
    return seconds
