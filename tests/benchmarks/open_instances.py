"""What instances take that are open and that nobody uses: ``python -m tests.benchmarks.open_instances``.

The store is a local folder. `capacity.toml` has the numbers of one run.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import click

from ..support.served import ServedBroker
from .page import rss_mb
from .processes import cpu_seconds

_IDLE_SECONDS = 10.0
_COUNTS = (1, 11, 51)


class Taken(NamedTuple):
    """By a broker in all: memory in MB (10⁶ bytes), open file descriptors, and CPU in percent of a core."""

    memory: float
    descriptors: int
    cpu: float


def measure(count: int, folder: Path) -> Taken:
    """Start a broker with so many new instances and leave it alone; the folder must exist."""
    names = [option for number in range(count) for option in ("--instance", f"i{number}")]
    broker = ServedBroker(folder, "--store", f"file://{folder}/store", "--listen", f"unix:{folder}/q.sock", *names)
    try:
        pid = broker.process.pid
        time.sleep(_IDLE_SECONDS)  # what opening them needs is over
        before = cpu_seconds(pid)
        time.sleep(_IDLE_SECONDS)
        cpu = 100 * (cpu_seconds(pid) - before) / _IDLE_SECONDS
        return Taken(rss_mb(pid), len(list(Path(f"/proc/{pid}/fd").iterdir())), cpu)
    finally:
        broker.terminate()


@click.command()
def main() -> None:
    """Measure what open instances take of a host."""
    for count in _COUNTS:
        with tempfile.TemporaryDirectory() as folder:
            taken = measure(count, Path(folder))
        click.echo(
            f"{count} instances: {taken.memory:.1f} MB, {taken.descriptors} descriptors, {taken.cpu:.2f} % of a core"
        )


if __name__ == "__main__":
    main()
