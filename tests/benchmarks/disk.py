"""What the disk holds under a steady load, beside what lives: tasks are published, done and kept (ours only)."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..support.status import read_report
from . import clients
from .kombu_api import Queue
from .peers import Peer, our_broker, stop
from .processes import Waiter, run_alone
from .results import Results
from .targets import OURS
from .workloads import Sizes

QUEUE = "bench-disk"
_RATE = 580
_SAMPLE_SECONDS = 2.0
_MINUTE = 60.0


def steps(sizes: Sizes) -> int:
    """How often `measure` calls back."""
    return 1


def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Measures what the disk holds; calls `step` when it is done."""
    with our_broker(folder / "disk") as peer:
        database = folder / "disk" / "store" / "default"
        run_alone(clients.declare, peer, QUEUE)
        over = threading.Event()
        samples: list[tuple[float, int, int]] = []
        watching = threading.Thread(target=_watch, args=(peer, database, over, samples))
        watching.start()
        try:
            tasks = run_alone(_load, peer, QUEUE, _RATE, sizes.disk_seconds)
        finally:
            over.set()
            watching.join()
        live = _live_bytes(peer)
        for one in _times_live(samples):
            results.add("disk.load", OURS, one)
        stop(database.parent)
        results.add("disk.end", OURS, _bytes_in(database) / live)
        results.remarks.append(
            f"Disk: {tasks:,} tasks in {sizes.disk_seconds} s; then {live / 1e6:.0f} MB of tables were in use."
        )
        step("disk under a steady load")


def _watch(peer: Peer, database: Path, over: threading.Event, samples: list[tuple[float, int, int]]) -> None:
    """Note time, bytes on disk and bytes in use, over and over."""
    while not over.wait(_SAMPLE_SECONDS):
        samples.append((time.monotonic(), _bytes_in(database), _live_bytes(peer)))


def _times_live(samples: list[tuple[float, int, int]]) -> list[float]:
    """What was on the disk but for the last minute's writes, in multiples of what was in use."""
    found: list[float] = []
    recent: deque[tuple[float, int, int]] = deque()
    for at, disk, live in samples:
        recent.append((at, disk, live))
        while at - recent[0][0] > _MINUTE:
            recent.popleft()
        if at - samples[0][0] > _MINUTE and live:
            found.append((disk - max(0, live - recent[0][2])) / live)
    return found


def _load(barrier: Waiter, peer: Peer, name: str, each_second: int, seconds: int) -> int:
    """Publishes so many messages a second, or as many as go, which are consumed and acknowledged; returns how many."""
    barrier.wait()
    start = time.monotonic()
    is_over = threading.Event()
    consuming = threading.Thread(target=_consume, args=(peer, name, is_over))
    consuming.start()
    number = 0
    with clients.connected(peer) as connection, connection.Producer(serializer="json") as producer:
        while time.monotonic() < start + seconds:
            producer.publish(clients.BODY, exchange="", routing_key=name, delivery_mode=2, headers=clients.HEADERS)
            number += 1
            if number % 50 == 0:
                time.sleep(max(0.0, start + number / each_second - time.monotonic()))
    is_over.set()
    consuming.join()
    return number


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


def _bytes_in(folder: Path) -> int:
    total = 0
    for place, _folders, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except FileNotFoundError:  # deleted since it was listed
                continue
    return total
