"""Times of backups of a store in use, of publishes during them, and of a restore (ours only)."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles

from kombu_opendata.queue_client import QueueClient

from .peers import Peer, broker_pid, our_broker
from .processes import BenchError, wait_at_rest
from .results import Results
from .targets import OURS
from .workloads import Sizes

_COMMAND = Path(sys.executable).with_name("opendata-queue")
_BODY_BYTES = 2_000
_BATCH = 1_000
_PAUSE_SECONDS = 0.002
_QUIET_SECONDS = 5.0


def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Add a sample of the first backup and of the restore, and one for each later backup."""
    target, store = folder / "backup" / "target", folder / "backup" / "store"
    with our_broker(folder / "backup") as peer:
        _fill(peer, sizes.backup)
        if (pid := broker_pid(store)) is not None:
            wait_at_rest(pid)
        publisher = Publisher(peer)
        try:
            began = time.perf_counter()
            time.sleep(_QUIET_SECONDS)
            results.add("backup.quiet", OURS, publisher.p99(began, time.perf_counter()))
            for number in range(sizes.rounds):
                began, ended = _run("backup", target, store)
                results.add("backup.next" if number else "backup.first", OURS, ended - began)
                results.add("backup.publish", OURS, publisher.p99(began, ended))
                step(f"backup {number + 1}")
        finally:
            publisher.stop()
        began, ended = _run("restore", target, folder / "backup" / "restored")
        results.add("backup.restore", OURS, ended - began)
        held = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
        results.remarks.append(
            f"Backups: the store had {sizes.backup:,} messages of {_BODY_BYTES:,} bytes; {sizes.rounds} backups of it "
            f"take up {held / 1e6:,.0f} MB together."
        )
        step("restore")


def _fill(peer: Peer, messages: int) -> None:
    made = random.Random(1)
    with QueueClient(peer.url) as client:
        client.create("kept")
        for _ in range(messages // _BATCH):
            client.send_batch("kept", [made.randbytes(_BODY_BYTES) for _ in range(_BATCH)])


def _run(verb: str, *places: Path) -> tuple[float, float]:
    """Run ``opendata-queue store VERB``; returns when it began and ended."""
    began = time.perf_counter()
    done = subprocess.run([_COMMAND, "store", verb, *places], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"store {verb}: {done.stderr or done.stdout}")
    return began, time.perf_counter()


class Publisher:
    """A thread that publishes small messages, some 400 a second, until :meth:`stop`."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._over = threading.Event()
        self._took: list[tuple[float, float]] = []
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def _publish(self) -> None:
        with QueueClient(self._peer.url) as client:
            client.create("live")
            while not self._over.wait(_PAUSE_SECONDS):
                began = time.perf_counter()
                client.send("live", b"x" * 200)
                self._took.append((began, time.perf_counter() - began))

    def p99(self, began: float, ended: float) -> float:
        """The p99 of the publishes of this time, in milliseconds.

        Raises:
            BenchError: there were none to speak of.
        """
        found = [took for at, took in self._took if began <= at < ended]
        if len(found) < 2:
            raise BenchError("publishes beside the backup failed")
        return 1_000 * quantiles(found, n=100, method="inclusive")[98]

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
