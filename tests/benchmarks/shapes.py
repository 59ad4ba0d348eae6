"""One round of each comparison in which messages, queues or workers have another shape than in `workloads`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from kombu_opendata import QueueClient

from . import clients
from .beside_backlog import Sample, sample
from .clients import Content, Timing
from .kombu_api import Exchange, Queue
from .machine import written_bytes
from .peers import Peer, our_broker, server_pid
from .processes import BenchError, Waiter, run_alone, wait_at_rest
from .results import Results
from .targets import OURS, PLAIN, RABBITMQ, REDIS
from .workloads import (
    PUBLISHERS,
    Comparison,
    Sizes,
    a_queue,
    acks,
    consume_all,
    publish_together,
    rate,
    some_queues,
    unconfirmed,
)

FAN = 10
"""The queues of a fan-out."""
PRIORITIES = 10
PREFETCHES = (1, 8, 100)
_KEY = "all"


def bodies(sizes: Sizes) -> dict[str, tuple[int, int]]:
    """Return the bytes of a body and the messages of a round, by the rows' names."""
    return {
        "1MB": (1_000_000, sizes.consume // 100),  # first: the tables of smaller bodies are written some time later
        "10MB": (10_000_000, max(3, sizes.consume // 800)),
        "100B": (100, sizes.consume // 2),
        "10kB": (10_000, sizes.consume // 4),
    }


def message_sizes(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    for key, (body_bytes, count) in bodies(sizes).items():
        before = written_bytes(folder)
        with a_queue(peer, f"sizes-{key}") as name:
            published: Timing = run_alone(clients.publish, peer, name, count, "", (), Content(body_bytes=body_bytes))
            consumed = consume_all(peer, name, count)
            after = written_bytes(folder)
        if key == "1MB" and before is not None and after is not None:
            results.add("sizes.written1MB", peer.name, (after - before) / (count * body_bytes))
        each = body_bytes / 1e6 if key.endswith("MB") else 1
        results.add(f"sizes.publish{key}", peer.name, rate(published) * each)
        results.add(f"sizes.consume{key}", peer.name, rate(consumed) * each)


def prefetch(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    for limit in PREFETCHES:
        count = sizes.consume if limit > 1 else sizes.consume // 4
        with a_queue(peer, f"prefetch{limit}") as name:
            publish_together(peer, name, count // PUBLISHERS)
            consumed = consume_all(peer, name, count // PUBLISHERS * PUBLISHERS, limit)
        results.add(f"prefetch.consume{limit}", peer.name, rate(consumed))


def fan_out(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    count = sizes.publish
    with some_queues(peer, "fanout", FAN) as names:
        exchange = f"{names[0]}-exchange"
        run_alone(bind, peer, exchange, names)
        published: Timing = run_alone(clients.publish, peer, _KEY, count, exchange)
        consumed = consume_all(peer, names, FAN * count)
    results.add("fanout.publish", peer.name, rate(published))
    results.add("fanout.deliver", peer.name, rate(consumed))


def bind(barrier: Waiter, peer: Peer, exchange: str, names: list[str]) -> None:
    """Bind queues to an exchange; in Redis a direct one, as a fanout one stores nothing there."""
    kind = "direct" if peer.name == REDIS else "fanout"
    with clients.connected(peer) as connection:
        channel = connection.default_channel
        for name in names:
            Queue(name, Exchange(exchange, kind, durable=True), routing_key=_KEY, durable=True)(channel).declare()


def many_queues(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    for queues in (1, 100):
        with some_queues(peer, "queues", queues) as names:
            _use_queues(str(queues), names, peer, sizes, results)
    if peer.name == OURS and not results.of("queues.publishmost", OURS):
        _use_most_queues(sizes, results, folder / "queues")


def _use_most_queues(sizes: Sizes, results: Results, folder: Path) -> None:
    """Measure all rounds together, as making and deleting the queues takes longer than a round."""
    with our_broker(folder) as own:
        names = [f"bench-queues-{number}" for number in range(sizes.queues)]
        run_alone(clients.declare, own, *names)
        for _ in range(sizes.rounds):
            _use_queues("most", names, own, sizes, results)


def _use_queues(key: str, names: list[str], peer: Peer, sizes: Sizes, results: Results) -> None:
    count = max(sizes.publish, 2 * len(names))
    published: Timing = run_alone(clients.publish, peer, names[0], count, "", names)
    consumed = consume_all(peer, names, count)
    results.add(f"queues.publish{key}", peer.name, rate(published))
    results.add(f"queues.consume{key}", peer.name, rate(consumed))


def priorities(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    levels = range(PRIORITIES)
    if peer.name == RABBITMQ:
        peer = replace(peer, arguments={"x-max-priority": PRIORITIES - 1})
    if peer.name == REDIS:
        peer = replace(peer, options={**peer.options, "priority_steps": list(levels)})
    count = sizes.consume
    with a_queue(peer, "priorities") as name:
        run_alone(clients.publish, peer, name, count, "", (), Content(priorities=levels))
        timing, seen = run_alone(consume_priorities, peer, name, count)
    if seen != sorted(seen, reverse=peer.name != REDIS) or len(seen) != count:
        raise BenchError(f"{len(seen)} deliveries of {count} messages, or not by priority")
    results.add("priorities.rate", peer.name, rate(timing))


def consume_priorities(barrier: Waiter, peer: Peer, name: str, count: int) -> tuple[Timing, list[int]]:
    """Consume messages; also gives their priorities, in the order of the deliveries."""
    seen: list[int] = []
    timing = clients.consume(
        barrier, peer, name, count, look=lambda message: seen.append(message.properties["priority"])
    )
    return timing, seen


def partitions(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    """Compare with a queue without partitions, which has the same messages; each partition has one before, at rest."""
    count = sizes.consume
    for key, tenants in zip(("one", "some", "most"), sizes.partitions, strict=True):
        content = Content(tenants=tenants)
        publish = partial(clients.publish, content=content)
        for series, arguments in ((PLAIN, {}), (OURS, {"x-partition-by": "tenant"})):
            with a_queue(replace(peer, arguments=arguments), "partitions") as name, QueueClient(peer.url) as keeper:
                publish_together(unconfirmed(peer), name, tenants, 1, content)
                keeper.status()  # without a client the broker would end
                wait_at_rest(server_pid(peer))
                _add(results, f"partitions.publish{{}}{key}", series, sample(unconfirmed(peer), publish, name, count))
                _add(results, f"partitions.consume{{}}{key}", series, sample(peer, clients.consume, name, count))


def unique(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    for series, content in ((PLAIN, Content()), (OURS, Content(unique=True))):
        publish = partial(clients.publish, content=content)
        with a_queue(peer, "unique") as name:
            _add(results, "unique.publish{}", series, sample(peer, publish, name, sizes.publish))
            _add(results, "unique.pipeline{}", series, sample(unconfirmed(peer), publish, name, sizes.consume))


def _add(results: Results, key: str, series: str, measured: Sample) -> None:
    """Add the rate, and the broker's CPU per message."""
    results.add(key.format(""), series, measured.rate)
    results.add(key.format("_cpu"), series, sum(measured.cpu.values()))


COMPARED: dict[str, Comparison] = {
    "sizes": message_sizes,
    "prefetch": prefetch,
    "fanout": fan_out,
    "queues": many_queues,
    "priorities": priorities,
    "acks": acks,
    "partitions": partitions,
    "unique": unique,
}
