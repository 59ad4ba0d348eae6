"""Disk use and device writes under a steady load, beside the live data (ours only).

Live are the tables in use, which SlateDB counts, and the records in them that were neither overwritten nor deleted
since, which a scan of the store counts.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from kombu_opendata import QueueClient
from kombu_opendata.offline import open_store, stats

from . import clients
from .clients import Timing
from .peers import Peer, our_broker, server_pid, stop
from .processes import Waiter, beside, run_alone, wait_at_rest
from .results import Results
from .targets import OURS
from .workloads import Sizes

QUEUE = "bench-disk"
_RATE, _PREFETCH = 580, 100
_SAMPLE_SECONDS, _MINUTE = 2.0, 60.0
#: tables that were replaced are deleted half a minute later
_UNCHANGED_SECONDS, _REST_SECONDS = 40.0, 180.0
_SECTOR_BYTES = 512
"""Of /proc/diskstats, whatever the sectors of the device are."""


class Sample(NamedTuple):
    """Seconds of the clock that all processes share, bytes on the disk, and bytes of the tables in use."""

    at: float
    disk: int
    live: int


# ---------------------------------------------------------------------- arithmetic
def times_live(samples: Sequence[Sample]) -> list[float]:
    """Return the bytes on the disk but for the last minute's writes, in multiples of those in use."""
    times: list[float] = []
    recent: deque[Sample] = deque()
    for sample in samples:
        recent.append(sample)
        while sample.at - recent[0].at > _MINUTE:
            recent.popleft()
        if sample.at - samples[0].at > _MINUTE and sample.live:
            times.append((sample.disk - max(0, sample.live - recent[0].live)) / sample.live)
    return times


def worst_times(samples: Sequence[Sample], load: Timing, records: int) -> float | None:
    """Return the most bytes on the disk after the first minute, in multiples of the live records of that moment.

    These grow evenly with the load; `records` are their bytes at its end. None if the load took under a minute.
    """
    times = [
        sample.disk * (load.end - load.start) / (records * (sample.at - load.start))
        for sample in samples
        if load.start + _MINUTE < sample.at <= load.end
    ]
    return max(times, default=None)


def bytes_of_device(diskstats: str, major: int, minor: int) -> int | None:
    """Return the bytes written to a device by the text of ``/proc/diskstats``; None if it is not there."""
    for line in diskstats.splitlines():
        fields = line.split()
        if fields[:2] == [str(major), str(minor)]:
            return int(fields[9]) * _SECTOR_BYTES
    return None


# ---------------------------------------------------------------------- readings
def written_bytes(folder: Path) -> int | None:
    """Return the bytes written to the folder's device by the whole machine, once all file systems are synced.

    None where the system does not count them for one device: a folder in memory, or a file system of several devices.
    """
    os.sync()
    number = os.stat(folder).st_dev
    try:
        text = Path("/proc/diskstats").read_text(encoding="ascii")
    except FileNotFoundError:  # not Linux
        return None
    return bytes_of_device(text, os.major(number), os.minor(number))


def bytes_in(folder: Path) -> int:
    """Return the sizes of all files."""
    total = 0
    for place, _folders, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except FileNotFoundError:  # deleted since it was listed
                continue
    return total


def _passed_to_writes(pid: int) -> int | None:
    """Bytes that a process has passed to calls that write, to files and to sockets; None where they are not counted."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return None
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))


def _record_bytes(barrier: Waiter, store: Path) -> int:
    """The size of all keys and values of the store."""

    async def count() -> int:
        async with await open_store(store, "default", who="bench") as opened:
            kinds = (await stats(opened)).records
        return sum(kind.key_bytes + kind.value_bytes for kind in kinds.values())

    return asyncio.run(count())


def _live_bytes(peer: Peer) -> int:
    with QueueClient(peer.url) as client:
        return int(client.status()["instances"]["default"]["disk"]["live_bytes"])


def _wait_until_unchanged(pid: int, database: Path) -> None:
    """Wait until the broker is at rest and its files' size stays the same, or for three minutes."""
    wait_at_rest(pid)
    until = time.monotonic() + _REST_SECONDS
    size, since = bytes_in(database), time.monotonic()
    while time.monotonic() < min(until, since + _UNCHANGED_SECONDS):
        time.sleep(1.0)
        if (now := bytes_in(database)) != size:
            size, since = now, time.monotonic()


# ---------------------------------------------------------------------- the workload
def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    with our_broker(folder / "disk") as peer:
        database = folder / "disk" / "store" / "default"
        run_alone(clients.declare, peer, QUEUE)
        written, passed = written_bytes(folder), _passed_to_writes(server_pid(peer))
        over = threading.Event()
        samples: list[Sample] = []

        def watch() -> None:
            while not over.wait(_SAMPLE_SECONDS):
                samples.append(Sample(time.monotonic(), bytes_in(database), _live_bytes(peer)))

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            with beside(clients.keep_consuming, peer, QUEUE, 1, _PREFETCH):
                tasks: Timing = run_alone(_load, peer, QUEUE, _RATE, sizes.disk_seconds)
        finally:
            over.set()
            watching.join()
        live = _live_bytes(peer)
        for value in times_live(samples):
            results.add("disk.load", OURS, value)
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


def _load(barrier: Waiter, peer: Peer, name: str, each_second: int, seconds: int) -> Timing:
    """Publish messages at a rate, or as many as possible; they differ, as equal ones would compress too well."""
    barrier.wait()
    start, number = time.monotonic(), 0
    with clients.connected(peer) as connection, connection.Producer(serializer="json") as producer:
        while time.monotonic() < start + seconds:
            body = [[random.getrandbits(32), random.getrandbits(32)], *clients.BODY[1:]]
            headers = clients.HEADERS | {"id": str(uuid.uuid4())}
            producer.publish(body, exchange="", routing_key=name, delivery_mode=2, headers=headers)
            number += 1
            if number % 50 == 0:
                time.sleep(max(0.0, start + number / each_second - time.monotonic()))
    return Timing(number, start, time.monotonic(), time.process_time())
