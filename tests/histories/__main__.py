"""Runs of brokers and clients under faults, each checked against the contract: ``make faults SECONDS=… SEED=…``.

Each seed is one run of a few seconds. A run with an anomaly leaves its folder, with the history in it and the command
that repeats the seed, and the program fails at the end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from ..reliability import runs
from . import events as e
from .checker import FLIPS, Anomaly, check, effect_of_damage, summaries
from .machine import Machine
from .real_run import RealRun
from .scenario import draw


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="start no run after this time")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--runs", type=int, default=sys.maxsize, help="at most so many runs")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--record", type=Path, help="append a line of JSON for each run to this file")
    options = parser.parse_args()
    code = runs.commit()
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())  # the runs that have begun end
    with Machine() as machine, ThreadPoolExecutor(options.jobs) as threads:
        ends = time.monotonic() + options.seconds
        seeds = range(options.seed, options.seed + options.runs)

        def run(seed: int) -> dict[str, Any] | None:
            return None if stopped.is_set() or time.monotonic() > ends else run_seed(machine, seed)

        records = []
        for record in in_turn(threads, run, seeds, options.jobs):
            records.append(record)
            print(summary(record), flush=True)
            if options.record is not None:
                with options.record.open("ab") as file:
                    file.write(msgspec.json.encode(record) + b"\n")
    failed = sum(bool(each["anomalies"]) for each in records)
    kills = sum(each["kills"] for each in records)
    for fault, reason in machine.left_out.items():
        print(f"left out: {fault}: {reason}")
    print(f"{len(records)} runs, {kills} kills, {failed} runs with anomalies")
    if os.environ.get("RECORD"):
        add_to_report(records, options, code, machine.left_out)
    return int(bool(failed))


def add_to_report(
    records: list[dict[str, Any]], options: argparse.Namespace, code: str, left_out: Iterable[str]
) -> None:
    """Add all runs to the record of which docs/reliability.md is made; faults that were left out are there with 0."""
    faults = Counter[str](dict.fromkeys(left_out, 0))
    points, flips = Counter[str](), Counter(dict.fromkeys(FLIPS, 0))
    for each in records:
        faults.update(each["faults"])
        points.update(each["anomalies"])
        flips.update(each["flips"])
    numbers = {name: sum(each[name] for each in records) for name in ("kills", "messages", "tasks")}
    numbers |= {"seeds": len(records), "anomalies": points.total(), **flips}
    runs.record(
        "faults",
        "make faults",
        sum(each["seconds"] for each in records),
        numbers,
        faults,
        defects=[text for each in records for text in each["defects"]],
        points=points,
        exact=f"make faults SECONDS={options.seconds:.0f} SEED={options.seed} RUNS={len(records)}",
        code=code,
        first_seed=options.seed,
    )


def in_turn(
    threads: ThreadPoolExecutor, run: Callable[[int], dict[str, Any] | None], seeds: Iterable[int], jobs: int
) -> Iterator[dict[str, Any]]:
    """Run seeds until one is not run; a few at a time."""
    left, running = iter(seeds), set[Future[dict[str, Any] | None]]()
    running.update(threads.submit(run, seed) for seed in islice(left, jobs))
    while running:
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            record = future.result()
            if record is not None:
                yield record
                running.update(threads.submit(run, seed) for seed in islice(left, 1))


def run_seed(machine: Machine, seed: int) -> dict[str, Any]:
    """Run a seed and check it; returns its record. Anomalies are counted by point; 0 is a run that did not end."""
    began = time.monotonic()
    scenario = draw(seed)
    with machine.bucket(scenario.is_bucket) as bucket, machine.hosts(scenario) as hosts:
        run = RealRun(scenario, machine.library, bucket, hosts)
        calls, flips, anomalies = Counter[str](), Counter[str](), list[Anomaly]()
        try:
            for history in run.go(machine.left_out):
                (run.folder / "history.json").write_bytes(msgspec.json.encode(history))
                calls = Counter(map(kind, history.events))
                anomalies += (found := check(history))
                if any(isinstance(event, e.Damaged) for event in history.events):
                    flips[effect_of_damage(history, found)] += 1
        except Exception:
            anomalies = [Anomaly(0, traceback.format_exc())]
        finally:
            run.clean_up()
    if anomalies:
        text = "\n".join(f"{point}: {text}" for point, text in anomalies[:50])
        text += f"\nmake faults SEED={seed} RUNS=1\n"
        (run.folder / "anomalies").write_text(text)
        print(f"{run.folder}:\n{text}")
    else:
        shutil.rmtree(run.folder)
    return {
        "seed": seed,
        "seconds": round(time.monotonic() - began, 2),
        "kills": run.kills,
        "faults": dict(run.faults),
        "messages": calls["Publish"],
        "tasks": calls["TaskEnded"],
        "flips": dict(flips),
        "anomalies": dict(Counter(str(anomaly.point) for anomaly in anomalies)),
        "defects": summaries(seed, anomalies),
    }


def kind(event: e.AnyEvent) -> str:
    """What an event counts as: an operation, or itself."""
    return type(event.operation if isinstance(event, e.Called) else event).__name__


def summary(record: dict[str, Any]) -> str:
    faults = ", ".join(f"{count} × {name}" for name, count in record["faults"].items())
    what = f"{record['anomalies']} " if record["anomalies"] else ""
    return f"seed {record['seed']}: {what}{record['seconds']} s, {record['messages']} messages, {faults}"


if __name__ == "__main__":
    sys.exit(main())
