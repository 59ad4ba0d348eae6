"""Virtual days of a mixed load in minutes: `make soak DAYS=21`.

A broker runs in this process on a store in a folder. Its clock and the timers of its loop advance together. One session
lives as long as the broker, others come and go; message ids and the numbers of requests are near their ends. The run
ends with an error if memory, objects, descriptors, files or disk grow: see `flatness`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from kombu_opendata.broker.process.memory_watch import bound_heap

from ..reliability.runs import commit, record
from .plot import plot
from .run import Sample, soak

ROOT = Path(__file__).resolve().parents[2]


def _show(sample: Sample) -> None:
    print("\t".join(f"{value:.1f}" for value in sample), flush=True)


def main() -> int:
    """Run a soak; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Run compressed days of a mixed load.")
    parser.add_argument("--days", type=float, default=7, help="virtual days (default: 7)")
    parser.add_argument("--record", action="store_true", help="add the run to tests/reliability, with its plot")
    arguments = parser.parse_args()
    bound_heap()  # as the broker's process: else the memory of each of SlateDB's threads grows to its own peak
    start, code = time.monotonic(), commit()
    print("\t".join(Sample._fields))
    done = soak(arguments.days, sampled_each_hours=arguments.days * 24 / 84, note=_show)
    verdicts = done.verdicts()
    plot(done.samples, verdicts, ROOT / ("docs/images/soak.svg" if arguments.record else "build/soak.svg"))
    for name, verdict in verdicts.items():
        state = "flat" if verdict.is_flat else "GROWS"
        print(f"{name}: {state}; level {verdict.level:.1f}, growth {verdict.growth:.1f} of {verdict.allowed:.1f}")
    growing = sum(not verdict.is_flat for verdict in verdicts.values())
    if arguments.record:
        numbers = {"days": round(arguments.days), **done.counts, "growing": growing}
        defects = [f"{name} grows" for name, verdict in verdicts.items() if not verdict.is_flat]
        exact = f"make soak DAYS={arguments.days:g}"
        record("soak", "make soak", time.monotonic() - start, numbers, defects=defects, exact=exact, code=code)
    return int(growing > 0)


if __name__ == "__main__":
    sys.exit(main())
