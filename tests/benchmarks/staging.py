"""Staged batches in our broker: writing by two processes, commit, routing, its memory, and the first delivery."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from kombu_opendata.client.calls.staged_jobs import StagingClient
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.protocol.envelope import metadata_headers
from kombu_opendata.protocol.messages import Consume
from kombu_opendata.staging import BatchInfo, BatchWriter, StagingTarget
from kombu_opendata.transport.kombu_message import encode
from kombu_opendata.url import parse

from . import clients
from .clients import Timing
from .peers import Peer, our_broker, server_pid
from .processes import BenchError, Waiter, cpu_seconds, memory_mb, run_alone, run_together
from .results import Results
from .targets import OURS
from .workloads import Sizes, rate

WRITERS = 2
_LOOK_SECONDS = 0.05


def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Measure jobs, each on a new broker."""
    for number in range(sizes.staged_rounds):
        with our_broker(folder / f"staging{number}") as peer:
            _round(peer, sizes.staged, results)
        step(f"staged batches, round {number + 1}")


def _round(peer: Peer, rows: int, results: Results) -> None:
    queue = "bench-staging"
    run_alone(clients.declare, peer, queue)
    connection = BrokerConnection(parse(peer.url))
    connection.connect()
    client = StagingClient(connection)
    target = client.staging_target()
    broker = server_pid(peer)
    before = memory_mb(broker)
    each = rows // WRITERS
    began = time.monotonic()
    written = run_together(write, [(target, number, each, queue) for number in range(WRITERS)])
    results.add("staging.write", OURS, rate(*(timing for timing, _info in written)))
    results.add("staging.cpu", OURS, 1e6 * sum(timing.cpu_seconds for timing, _info in written) / rows)
    infos: list[BatchInfo] = sorted((info for _timing, info in written), key=lambda info: info.partition)
    cpu = cpu_seconds(broker)
    committing = time.monotonic()
    client.commit_job("bench", infos)
    results.add("staging.commit", OURS, 1000 * (time.monotonic() - committing))
    first = threading.Thread(target=_first, args=(peer, queue, committing, results))
    first.start()
    highest = before
    while (job := client.job_status("bench")).state == "routing":
        highest = max(highest, memory_mb(broker))
        if time.monotonic() - committing > 900:
            raise BenchError(f"{job.routed:,} of {rows:,} rows are routed after 900 s")
        time.sleep(_LOOK_SECONDS)
    results.add("staging.route", OURS, rows / (time.monotonic() - committing))
    results.add("staging.routecpu", OURS, 1e6 * (cpu_seconds(broker) - cpu) / rows)
    results.add("staging.memory", OURS, max(highest, memory_mb(broker)) - before)
    first.join(60)
    results.remarks.append(
        f"Staged batches: {rows:,} rows took {time.monotonic() - began:.1f} s from the first write to the last queue."
    )
    connection.close()


def write(barrier: Waiter, target: StagingTarget, partition: int, rows: int, queue: str) -> tuple[Timing, BatchInfo]:
    """Write tasks as Celery sends them, as an executor does."""
    properties = {"priority": 0, "delivery_mode": 2}
    made = []
    for number in range(rows):
        task_id = f"{partition:08x}-0000-4000-8000-{number:012x}"
        headers = {**clients.HEADERS, "id": task_id, "root_id": task_id}
        body = b'[[%d, 2], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]' % number
        envelope = encode(body, "application/json", "utf-8", headers, properties, "", queue)
        made.append((envelope, metadata_headers(headers, "", queue, 0, "application/json")))
    barrier.wait()
    writer = BatchWriter(target, "bench", partition, 0)
    start, cpu = time.monotonic(), time.process_time()
    for envelope, seen in made:
        writer.add(envelope, seen, routing_key=queue)
    info = writer.close()
    return Timing(rows, start, time.monotonic(), time.process_time() - cpu), info


def _first(peer: Peer, queue: str, committed: float, results: Results) -> None:
    """Add the seconds from the commit to the first message of a consumer."""
    connection = BrokerConnection(parse(peer.url))
    connection.connect()
    connection.set_prefetch(1, 1)
    connection.consume(Consume(0, 1, "first", queue, False, False, {}))
    connection.drain(60)
    results.add("staging.first", OURS, time.monotonic() - committed)
    connection.close()
