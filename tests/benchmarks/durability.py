"""What durability costs: a broker that calls fsync and one that does not, and one on a bucket (ours only)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from . import clients
from .buckets import consume, fill, publish, served
from .peers import broker_with
from .processes import run_alone, run_together
from .results import Results
from .targets import OURS
from .workloads import PUBLISHERS, Sizes, publish_together, rate

DELAYS_MS = (5, 20, 50)


def sync_steps(sizes: Sizes) -> int:
    """How often `measure_sync` calls back."""
    return 2 * sizes.rounds


def measure_sync(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Measures publishes with fsync and without; calls `step` after each turn."""
    with broker_with(folder / "sync-on") as on, broker_with(folder / "sync-off", "--no-sync") as off:
        turns = [("on", on), ("off", off)]
        for _, peer in turns:
            run_alone(clients.declare, peer, "bench-sync")
        for _ in range(sizes.rounds):
            for key, peer in turns:
                alone = run_alone(clients.publish, peer, "bench-sync", sizes.publish)
                results.add(f"sync.{key}", OURS, rate(alone))
                together = publish_together(peer, "bench-sync", sizes.publish_each)
                results.add(f"sync.{key}{PUBLISHERS}", OURS, rate(*together))
                step(f"publishes, fsync {key}")
            turns.reverse()


def s3_steps(sizes: Sizes) -> int:
    """How often `measure_s3` calls back."""
    return len(DELAYS_MS)


def measure_s3(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Measures a broker on an S3-compatible server for each delay of a request; calls `step` after each."""
    seconds, messages = sizes.s3_seconds, sizes.publish
    for delay_ms in DELAYS_MS:
        with served(folder / f"s3-{delay_ms}") as (s3, url):
            s3.proxy.delay_seconds = delay_ms / 1000
            for key, producers in (("one", 1), ("eight", PUBLISHERS)):
                taken = run_together(publish, [(url, producers, seconds)])[0]
                results.add(f"s3.{key}{delay_ms}", OURS, len(taken) / seconds)
        with served(folder / f"s3-{delay_ms}-consume") as (s3, url):
            run_together(fill, [(url, messages)])
            s3.proxy.delay_seconds = delay_ms / 1000
            results.add(f"s3.consume{delay_ms}", OURS, messages / run_together(consume, [(url, messages)])[0])
        step(f"S3, {delay_ms} ms a request")
