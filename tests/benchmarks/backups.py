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

from kombu_opendata import QueueClient

from .peers import our_broker, server_pid
from .processes import BenchError, wait_at_rest
from .results import Results
from .targets import OURS
from .workloads import Sizes

_COMMAND = Path(sys.executable).with_name("opendata-queue")
_BODY_BYTES, _BATCH = 2_000, 1_000
_PAUSE_SECONDS, _QUIET_SECONDS = 0.002, 5.0


def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Add a sample of the first backup and of the restore, and one for each later backup."""
    home, over, took = folder / "backup", threading.Event(), list[tuple[float, float]]()
    target, store = home / "target", home / "store"

    def publish() -> None:
        with QueueClient(peer.url) as client:
            client.create("live")
            while not over.wait(_PAUSE_SECONDS):
                began = time.perf_counter()
                client.send("live", b"x" * 200)
                took.append((began, time.perf_counter() - began))

    def add_p99(row: str, began: float) -> None:
        now = time.perf_counter()
        times = [seconds for at, seconds in took if began <= at < now]
        if len(times) < 2:
            raise BenchError("publishes beside the backup failed")
        results.add(row, OURS, 1_000 * quantiles(times, n=100, method="inclusive")[98])

    with our_broker(home) as peer:
        dice = random.Random(1)
        with QueueClient(peer.url) as client:
            client.create("kept")
            for _ in range(sizes.backup // _BATCH):
                client.send_batch("kept", [dice.randbytes(_BODY_BYTES) for _ in range(_BATCH)])
            wait_at_rest(server_pid(peer))
        publishing = threading.Thread(target=publish)
        publishing.start()
        try:
            began = time.perf_counter()
            time.sleep(_QUIET_SECONDS)
            add_p99("backup.quiet", began)
            for number in range(sizes.rounds):
                began = time.perf_counter()
                results.add("backup.next" if number else "backup.first", OURS, _seconds("backup", target, store))
                add_p99("backup.publish", began)
                step(f"backup {number + 1}")
        finally:
            over.set()
            publishing.join()
        results.add("backup.restore", OURS, _seconds("restore", target, home / "restored"))
        held = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
        results.remarks.append(
            f"Backups: the store had {sizes.backup:,} messages of {_BODY_BYTES:,} bytes; {sizes.rounds} backups of it "
            f"take up {held / 1e6:,.0f} MB together."
        )


def _seconds(verb: str, *places: Path) -> float:
    """Run ``opendata-queue store VERB``."""
    began = time.perf_counter()
    done = subprocess.run([_COMMAND, "store", verb, *places], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"store {verb}: {done.stderr or done.stdout}")
    return time.perf_counter() - began
