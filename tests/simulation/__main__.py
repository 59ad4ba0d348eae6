"""Runs of the simulation: ``make simulation STEPS=… SEED=…``.

Each seed is one run. Every 32nd uses the real SlateDB: it does not repeat exactly, and is recorded separately. Another
one with an anomaly is shortened, and its script is printed: save it, and repeat it with
``python -m tests.simulation --script FILE``. With RECORD=yes, the runs are added to ``tests/reliability``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import msgspec

from ..histories.checker import summaries
from ..reliability.runs import commit, record
from .plan import Plan, Store, draw
from .shrinking import script_of, shrink
from .world import Outcome, World

#: steps of the plan of one run
PLANNED = 2000
#: each seed that is a multiple of this runs on the real SlateDB, unless a store is chosen: 3 % of them
REAL_EVERY = 32


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="start no run after so many events")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--store", choices=("folder", "bucket", "slatedb"), help="only this kind of store")
    parser.add_argument("--script", type=Path, help="repeat this script")
    parser.add_argument("--first", action="store_true", help="end with the first run that has an anomaly")
    parser.add_argument("--no-shrinking", action="store_true", help="print no script of a run with an anomaly")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of a set of texts must be the same in each process
        command = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | {"PYTHONHASHSEED": "0"})
    if options.script is not None:
        return report(World(msgspec.json.decode(options.script.read_bytes(), type=Plan)).run())
    return many(options)


class Totals:
    """The sums of the runs of a kind, to be recorded."""

    def __init__(self) -> None:
        self.numbers = Counter(seeds=0, steps=0, calls=0, messages=0, anomalies=0, kills=0)
        self.faults, self.points = Counter[str](), Counter[str]()
        self.defects: list[str] = []
        self.seconds = 0.0

    def add(self, outcome: Outcome, seconds: float) -> None:
        self.numbers.update(
            seeds=1,
            steps=outcome.steps,
            calls=outcome.calls,
            messages=outcome.messages,
            anomalies=len(outcome.anomalies),
            kills=outcome.faults["kill"],
        )
        self.faults.update(outcome.faults)
        self.points.update(str(anomaly.point) for anomaly in outcome.anomalies)
        self.defects += summaries(outcome.plan.seed, outcome.anomalies)
        self.seconds += seconds


def many(options: argparse.Namespace) -> int:
    """Run seeds until there were enough steps."""
    code, seed, found, steps = commit(), options.seed, 0, 0
    totals = {"simulated": Totals(), "slatedb": Totals()}
    while steps < options.steps and not (found and options.first):
        began = time.monotonic()
        store: Store | None = options.store or ("slatedb" if seed % REAL_EVERY == 0 else None)
        outcome = World(draw(seed, PLANNED, store)).run()
        totals["slatedb" if store == "slatedb" else "simulated"].add(outcome, time.monotonic() - began)
        steps += outcome.steps
        if report(outcome):
            found += 1
            if not options.no_shrinking and store != "slatedb":
                print(script_of(shrink(outcome.plan, partial(breaks, outcome.anomalies[0].point))), flush=True)
        seed += 1
    for kind, total in totals.items():
        if not total.numbers["seeds"]:
            continue
        if os.environ.get("RECORD"):
            arguments = f' ARGS="--store {options.store}"' if options.store else ""
            record(
                "simulation",
                "make simulation" if kind == "simulated" else 'make simulation ARGS="--store slatedb"',
                total.seconds,
                total.numbers,
                total.faults,
                defects=total.defects,
                points=total.points,
                exact=f"make simulation STEPS={options.steps} SEED={options.seed}{arguments}",
                code=code,
                first_seed=options.seed,
            )
        print(f"{kind}: {dict(total.numbers)}, {sum(total.faults.values())} faults, {total.seconds:.0f} s")
    return int(bool(found))


def breaks(point: int, plan: Plan) -> bool:
    """Return True if a run of the plan breaks a point of the contract."""
    return any(anomaly.point == point for anomaly in World(plan).run().anomalies)


def report(outcome: Outcome) -> int:
    """Print a run; return 1 if it has an anomaly."""
    faults = ", ".join(f"{count} × {name}" for name, count in sorted(outcome.faults.items()))
    plan = outcome.plan
    text = f"seed {plan.seed}, {plan.store}: {outcome.steps} steps, {outcome.calls} calls, {faults or 'no faults'}"
    print(f"{text}; {'not exact' if plan.store == 'slatedb' else f'trace {outcome.trace}'}", flush=True)
    for anomaly in outcome.anomalies[:20]:
        print(f"  point {anomaly.point}: {anomaly.text}")
    return int(bool(outcome.anomalies))


if __name__ == "__main__":
    sys.exit(main())
