"""What the disk holds and gets under a steady load, beside what lives: tasks are published, done and kept (ours only).

Two things live: the tables in use, which is what SlateDB counts, and the records in them that were neither overwritten
nor deleted since, which take a scan of the store to count.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kombu_opendata.offline import open_store, stats

from ..support.status import read_report
from . import clients
from .clients import Timing
from .device_writes import written_bytes
from .disk_samples import Sample, bytes_in, times_live, worst_times
from .kombu_api import Queue
from .peers import Peer, our_broker, server_pid, stop
from .processes import Waiter, run_alone, wait_at_rest
from .results import Results
from .targets import OURS
from .workloads import Sizes

QUEUE = "bench-disk"
_RATE = 580
_SAMPLE_SECONDS = 2.0
#: tables that were replaced are deleted half a minute later
_UNCHANGED_SECONDS, _REST_SECONDS = 40.0, 180.0


def steps(sizes: Sizes) -> int:
    """How often `measure` calls back."""
    return 1


def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Measures what the disk holds; calls `step` when it is done."""
    with our_broker(folder / "disk") as peer:
        database = folder / "disk" / "store" / "default"
        run_alone(clients.declare, peer, QUEUE)
        written, passed = written_bytes(folder), _passed_to_writes(server_pid(peer))
        over = threading.Event()
        samples: list[Sample] = []
        watching = threading.Thread(target=_watch, args=(peer, database, over, samples))
        watching.start()
        try:
            tasks: Timing = run_alone(_load, peer, QUEUE, _RATE, sizes.disk_seconds)
        finally:
            over.set()
            watching.join()
        live = _live_bytes(peer)
        for one in times_live(samples):
            results.add("disk.load", OURS, one)
        loaded, passed_then = written_bytes(folder), _passed_to_writes(server_pid(peer))
        records: int = run_alone(_record_bytes, database.parent)
        if (worst := worst_times(samples, tasks, records)) is not None:
            results.add("disk.worst", OURS, worst)
        results.remarks.append(
            f"Disk: {tasks.messages:,} tasks in {sizes.disk_seconds} s; then {live / 1e6:.0f} MB of tables were in "
            f"use, with {records / 1e6:.0f} MB of live records."
        )
        if passed is not None and passed_then is not None:
            results.add("disk.process", OURS, (passed_then - passed) / records)
        with clients.connected(peer):  # so that the broker stays
            _wait_until_unchanged(server_pid(peer), database)
        rested, records_at_rest = written_bytes(folder), run_alone(_record_bytes, database.parent)
        results.add("disk.rest", OURS, bytes_in(database) / records_at_rest)
        if written is None or loaded is None or rested is None:
            results.remarks.append("Disk: /proc/diskstats lists no device of the folder; its writes were not measured.")
        else:
            results.add("disk.written", OURS, (loaded - written) / records)
            results.add("disk.writtentables", OURS, (loaded - written) / live)
            results.add("disk.writtenrest", OURS, (rested - written) / records_at_rest)
        live_at_rest = _live_bytes(peer)
        stop(database.parent)
        results.add("disk.end", OURS, bytes_in(database) / live_at_rest)
        step("disk under a steady load")


def _watch(peer: Peer, database: Path, over: threading.Event, samples: list[Sample]) -> None:
    """Looks at the disk over and over."""
    while not over.wait(_SAMPLE_SECONDS):
        samples.append(Sample(time.monotonic(), bytes_in(database), _live_bytes(peer)))


def _record_bytes(barrier: Waiter, store: Path) -> int:
    """The size of all keys and values of the store."""

    async def count() -> int:
        async with await open_store(store, "default", who="bench") as opened:
            kinds = (await stats(opened)).records
        return sum(one.key_bytes + one.value_bytes for one in kinds.values())

    return asyncio.run(count())


def _passed_to_writes(pid: int) -> int | None:
    """Bytes that a process has passed to calls that write, to files and to sockets; None where nothing counts them."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return None
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))


def _wait_until_unchanged(pid: int, database: Path) -> None:
    """Waits until the broker is at rest and its files' size stays the same; or for three minutes, and takes what is."""
    wait_at_rest(pid)
    until = time.monotonic() + _REST_SECONDS
    size, since = bytes_in(database), time.monotonic()
    while time.monotonic() < min(until, since + _UNCHANGED_SECONDS):
        time.sleep(1.0)
        if (now := bytes_in(database)) != size:
            size, since = now, time.monotonic()


def _load(barrier: Waiter, peer: Peer, name: str, each_second: int, seconds: int) -> Timing:
    """Publishes so many messages a second, or as many as go, which are consumed and acknowledged."""
    barrier.wait()
    start = time.monotonic()
    is_over = threading.Event()
    consuming = threading.Thread(target=_consume, args=(peer, name, is_over))
    consuming.start()
    number = 0
    with clients.connected(peer) as connection, connection.Producer(serializer="json") as producer:
        while time.monotonic() < start + seconds:
            # Messages that are all alike would compress as no real ones do.
            body = [[random.getrandbits(32), random.getrandbits(32)], *clients.BODY[1:]]
            headers = clients.HEADERS | {"id": str(uuid.uuid4())}
            producer.publish(body, exchange="", routing_key=name, delivery_mode=2, headers=headers)
            number += 1
            if number % 50 == 0:
                time.sleep(max(0.0, start + number / each_second - time.monotonic()))
    is_over.set()
    consuming.join()
    return Timing(number, start, time.monotonic(), time.process_time())


def _consume(peer: Peer, name: str, is_over: threading.Event) -> None:
    def take(message: Any) -> None:
        message.ack()

    with clients.connected(peer) as connection:
        consumer = connection.Consumer([Queue(name, durable=True)], on_message=take, auto_declare=False)
        consumer.qos(prefetch_count=100)
        consumer.consume()
        while not is_over.is_set():
            try:
                connection.drain_events(timeout=0.5)
            except TimeoutError:
                continue


def _live_bytes(peer: Peer) -> int:
    return int(read_report(peer.url)["instances"]["default"]["disk"]["live_bytes"])
