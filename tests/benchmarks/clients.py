"""The measured Kombu clients. Each function runs in a new process and returns plain numbers.

A message is what Celery sends for ``add(2, 2)``: a JSON body and a few headers, published to the default exchange
with the queue's name. Consumers take messages with ``on_message``, as Celery's worker does.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

from .kombu_api import Connection, Queue
from .peers import Peer
from .processes import Waiter

BODY = [[2, 2], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
HEADERS = {"lang": "py", "task": "bench.add", "id": "5a3f1f6e-7d7e-4f7b-9a55-0f1f6e7d7e4f", "retries": 0}
WARM_UP = 50
_RANDOM_BYTES = 8 << 20
logging.getLogger("amqp").setLevel(logging.ERROR)  # it logs each message for a channel that is being closed
TIMEOUT_SECONDS = 120.0
LATENCY_SECONDS = 5.0


class Timing(NamedTuple):
    """One client's measured stretch; start and end on the clock that all processes share."""

    messages: int
    start: float
    end: float
    cpu_seconds: float


@dataclass(frozen=True)
class Content:
    """The content of messages, if it is not Celery's."""

    body_bytes: int = 0
    """The length of random bodies, of which no two that are near each other are alike; 0 for Celery's."""
    priorities: Sequence[int] = (0,)
    """Of the messages, in turn."""
    headers: dict[str, Any] = field(default_factory=lambda: HEADERS)
    tenants: int = 0
    """The values of the header `tenant`, in turn; 0 for messages without it."""
    unique: bool = False
    """Each message has a unique key of its own."""

    def arguments(self) -> dict[str, Any]:
        """Those of each publish, but for the body and the headers."""
        given: dict[str, Any] = {"delivery_mode": 2}
        if not self.body_bytes:
            return given
        return {**given, "content_type": "application/octet-stream", "content_encoding": "binary"}

    def all_headers(self) -> Iterator[dict[str, Any]]:
        """Those of the publishes, without end."""
        if self.unique:
            return ({**self.headers, "x-opendata-unique": f"{os.getpid()}-{number}"} for number in itertools.count())
        if self.tenants:
            return itertools.cycle([{**self.headers, "tenant": f"t{number}"} for number in range(self.tenants)])
        return itertools.repeat(self.headers)

    def bodies(self) -> Iterator[Any]:
        """Those of the publishes, without end."""
        if not self.body_bytes:
            return itertools.repeat(BODY)
        count = max(1, _RANDOM_BYTES // self.body_bytes)
        return itertools.cycle([os.urandom(self.body_bytes) for _ in range(count)])


@contextmanager
def connected(peer: Peer) -> Iterator[Any]:
    """A connection to the peer, as an application makes it."""
    if peer.url.startswith("opendata"):
        importlib.import_module("kombu_opendata")
    with Connection(peer.url, transport_options=dict(peer.options)) as connection:
        connection.connect()
        yield connection


def declare(barrier: Waiter, peer: Peer, *names: str) -> None:
    """Make empty durable queues."""
    with connected(peer) as connection:
        for name in names:
            queue = Queue(name, durable=True, queue_arguments=peer.arguments)(connection.default_channel)
            queue.declare()
            queue.purge()


def delete(barrier: Waiter, peer: Peer, *names: str) -> None:
    """Remove queues with their messages."""
    with connected(peer) as connection:
        for name in names:
            Queue(name, durable=True)(connection.default_channel).delete()


def depth(barrier: Waiter, peer: Peer, name: str) -> int:
    """Return the number of messages that wait in a queue."""
    with connected(peer) as connection:
        return waiting_in(connection, peer, name)


def waiting_in(connection: Any, peer: Peer, name: str) -> int:
    """Return the number of messages that wait in a queue, by an open connection."""
    # Not a passive declare: to Kombu's Redis transport an empty queue does not exist.
    declared = connection.default_channel.queue_declare(name, durable=True, auto_delete=False, arguments=peer.arguments)
    return int(declared.message_count)


def publish(
    barrier: Waiter, peer: Peer, name: str, count: int, exchange: str = "", keys: Sequence[str] = (),
    content: Content | None = None,
) -> Timing:  # fmt: skip
    """Publish `count` messages one at a time; the warm-up ones come from the same number.

    They go to the queue called `name`, or in turn to routing keys of an exchange.
    """
    content = content or Content()
    arguments = {"exchange": exchange, **content.arguments()}
    turns = zip(
        itertools.cycle(keys or [name]), itertools.cycle(content.priorities), content.all_headers(), content.bodies(),
        strict=False,
    )  # fmt: skip
    with connected(peer) as connection, connection.Producer(serializer="json") as producer:

        def send(number: int) -> None:
            for key, priority, headers, body in itertools.islice(turns, number):
                producer.publish(body, routing_key=key, priority=priority, headers=headers, **arguments)

        warm_up = min(WARM_UP, count // 10)
        send(warm_up)
        gc.collect()
        barrier.wait()
        start, cpu = time.monotonic(), time.process_time()
        send(count - warm_up)
        flush(producer.channel)
        return Timing(count - warm_up, start, time.monotonic(), time.process_time() - cpu)


def publish_seconds(barrier: Waiter, peer: Peer, count: int, exchange: str, keys: Sequence[str]) -> list[float]:
    """Return the seconds of each of `count` publishes, or of fewer if they take too long."""
    until = time.perf_counter() + LATENCY_SECONDS
    taken = []
    with connected(peer) as connection, connection.Producer(serializer="json") as producer:
        for key in itertools.islice(itertools.cycle(keys), count):
            start = time.perf_counter()
            if start > until:
                break
            producer.publish(BODY, exchange=exchange, routing_key=key, delivery_mode=2, headers=HEADERS)
            taken.append(time.perf_counter() - start)
    return taken


def flush(channel: Any) -> None:
    """Wait until the broker has all publishes; only our channels can."""
    if hasattr(channel, "flush"):
        channel.flush()


def consume(
    barrier: Waiter, peer: Peer, name: str | Sequence[str], count: int, prefetch: int = 100, consumers: int = 1,
    look: Callable[[Any], None] | None = None,
) -> Timing:  # fmt: skip
    """Consume and ack at least `count` messages of one or more queues (the last batch may bring more).

    Each consumer has a channel. The stretch ends when these are closed, and so with the last ack processed.
    `look` is called with each message.
    """
    seen = 0

    def take(message: Any) -> None:
        nonlocal seen
        seen += 1
        message.ack()
        if look is not None:
            look(message)

    with connected(peer) as connection:
        channels = [connection.channel() for _ in range(consumers)]
        made = [consumer(connection, channel, name, take, prefetch) for channel in channels]
        gc.collect()
        barrier.wait()
        start, cpu = time.monotonic(), time.process_time()
        for each in made:
            each.consume()
        while seen < count:
            connection.drain_events(timeout=TIMEOUT_SECONDS)
        for channel in channels:
            channel.close()
        timing = Timing(seen, start, time.monotonic(), time.process_time() - cpu)
    return timing


def consumer(
    connection: Any, channel: Any, name: str | Sequence[str], take: Callable[[Any], None], prefetch: int
) -> Any:
    """Return a consumer of queues that does not consume yet."""
    queues = [Queue(queue, durable=True) for queue in ([name] if isinstance(name, str) else name)]
    made = connection.Consumer(queues, channel=channel, on_message=take, auto_declare=False)
    made.qos(prefetch_count=prefetch)
    return made


def keep_consuming(ready: Event, over: Event, peer: Peer, name: str, consumers: int, prefetch: int) -> None:
    """Consume and ack with several consumers until it is over."""
    with connected(peer) as connection:
        for _ in range(consumers):
            consumer(connection, connection.channel(), name, lambda message: message.ack(), prefetch).consume()
        ready.set()
        while not over.is_set():
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.2)


def keep_connected(ready: Event, over: Event, peer: Peer, count: int) -> None:
    """Hold idle connections until it is over."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(connected(peer))
        ready.set()
        over.wait()


def first_delivery(barrier: Waiter, peer: Peer, name: str) -> float:
    """Return the seconds from the start of connecting to the first message in the callback."""
    start = time.monotonic()
    return _take_one(peer, name) - start


def first_delivery_at(barrier: Waiter, peer: Peer, name: str, ready_path: str) -> float:
    """Return the time of the first message, of a server that will be started when the file exists."""
    with Connection(peer.url) as connection:
        errors = (OSError, *connection.connection_errors, *connection.channel_errors)
    Path(ready_path).touch()
    until = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            return _take_one(peer, name)
        except errors:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def _take_one(peer: Peer, name: str) -> float:
    """The time of the first message in the callback."""
    taken: list[float] = []

    def take(message: Any) -> None:
        if not taken:
            taken.append(time.monotonic())
            message.ack()

    with connected(peer) as connection:
        with connection.Consumer([Queue(name, durable=True)], on_message=take, prefetch_count=1, auto_declare=False):
            while not taken:
                connection.drain_events(timeout=TIMEOUT_SECONDS)
        return taken[0]
