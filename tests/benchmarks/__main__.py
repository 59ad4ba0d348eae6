"""The benchmark's command line: ``python -m tests.benchmarks --out docs/benchmarks.md``."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import (
    backlog,
    backups,
    buckets,
    celery_rows,
    connections,
    disk,
    filters,
    floor,
    history,
    machine,
    outcomes,
    page,
    permissions,
    reconnect,
    replay,
    report,
    spark_rows,
    staging,
    startup,
    take_over,
)
from .peers import Peer, embedded, running
from .processes import BenchError
from .results import Results
from .targets import ALWAYS, OURS, QUORUM, RABBITMQ, REDIS, WORKLOADS
from .workloads import COMPARED, PARTICIPANTS, QUICK, Sizes

PEERS = (OURS, RABBITMQ, QUORUM, REDIS, ALWAYS)
SETTLE_SECONDS = 0.5
"""Between two measurements, so that one broker's afterwork does not fall into another one's turn."""


def names(allowed: tuple[str, ...]) -> Callable[[click.Context, click.Parameter, str], tuple[str, ...]]:
    """An option's callback that splits a comma-separated list of the allowed names."""

    def split(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[str, ...]:
        chosen = tuple(one.strip() for one in text.split(",") if one.strip())
        unknown = [one for one in chosen if one not in allowed]
        if unknown:
            raise click.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(allowed)}")
        return chosen

    return split


@click.command()
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the report to this file.")
@click.option("--quick", is_flag=True, help="Smaller sizes and two rounds: shows that it works, not how fast it is.")
@click.option("--only", default=",".join(WORKLOADS), callback=names(WORKLOADS), help=f"Of {', '.join(WORKLOADS)}.")
@click.option("--peers", default=",".join(PEERS), callback=names(PEERS), help="Brokers to compare.")
@click.option("--rounds", type=click.IntRange(1), help="Rounds of each comparison (default 5, or 2 with --quick).")
@click.option(
    "--dir",
    "parent",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    help="Where the brokers keep their data meanwhile, for example on another disk (default: the temporary folder).",
)
@click.option("--keep", is_flag=True, help="Leave the brokers' data and logs there.")
def main(
    out: Path | None,
    quick: bool,
    only: tuple[str, ...],
    peers: tuple[str, ...],
    rounds: int | None,
    parent: Path | None,
    keep: bool,
) -> None:
    """Measures this broker, RabbitMQ and Redis in one run and reports ratios."""
    # Every broker is ended on the way out, so there must be one.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process of ours would compile all modules again
    sizes = QUICK if quick else Sizes()
    sizes = replace(sizes, rounds=rounds or sizes.rounds)
    results, console, start = Results(), Console(width=None if sys.stdout.isatty() else 160), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="opendata-bench-", dir=parent))
    try:
        facts = machine.facts(folder)
        met = _measure(only, peers, sizes, results, folder, console)
    finally:
        if keep:
            console.print(f"data and logs: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    command = shlex.join(["python", "-m", "tests.benchmarks", *sys.argv[1:]])
    run = report.Run(results, sizes, met, facts, command, time.monotonic() - start)
    report.show(run, console)
    if out is not None:
        reasons = report.read_reasons(Path(__file__).with_name("reasons.toml"))
        out.write_text(report.markdown(run, reasons), encoding="utf-8")
        console.print(f"written: {out}")
    sys.exit(bool(results.failures))


def _measure(
    only: tuple[str, ...], peers: tuple[str, ...], sizes: Sizes, results: Results, folder: Path, console: Console
) -> list[Peer]:
    """Runs the workloads chosen and returns the brokers that took part."""
    columns = (TextColumn("{task.description:<42}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("starting the brokers", total=None)

        def step(text: str) -> None:
            progress.update(bar, advance=1, description=text)

        compared = [name for name in COMPARED if name in only]
        with running(peers if compared else (), folder, results) as brokers:
            progress.update(bar, total=_total(only, peers, brokers, sizes))
            for name in compared:
                _compare(name, _participants(name, brokers), sizes, results, folder, step)
        if {"publish", "consume"} & set(only):
            floor.measure(sizes, results)
        alone: list[tuple[str, Callable[[], None]]] = [
            ("backlog", lambda: backlog.measure(sizes, results, folder, step)),
            ("staging", lambda: staging.measure(sizes, results, folder, step)),
            ("filters", lambda: filters.measure(sizes, results)),
            ("permissions", lambda: permissions.measure(sizes, results)),
            ("replay", lambda: replay.measure(sizes, results, folder, step)),
            ("history", lambda: history.measure(sizes, results, folder, step)),
            ("disk", lambda: disk.measure(sizes, results, folder, step)),
            ("backup", lambda: backups.measure(sizes, results, folder, step)),
            ("reconnect", lambda: reconnect.measure(sizes, results, folder, step)),
            ("connections", lambda: connections.measure(sizes, results, folder, step)),
            ("takeover", lambda: take_over.measure(sizes, results, folder, step)),
            ("outcomes", lambda: outcomes.measure(sizes, results, folder, step)),
            ("page", lambda: page.measure(sizes, results, folder, step)),
            ("buckets", lambda: buckets.measure(sizes, results, folder, step)),
            ("spark", lambda: spark_rows.measure(sizes, results, folder, step)),
            ("import", lambda: _imports(peers, sizes, results, step)),
            ("connect", lambda: _connects(sizes, results, folder, step)),
            *((name, partial(one, sizes, results, folder, step)) for name, one in celery_rows.MEASURES.items()),
        ]
        for name, measure in alone:
            if name in only and (OURS in peers or name == "import"):
                _guarded(name, results, measure)
    return brokers or [embedded(folder)]


def _participants(name: str, brokers: list[Peer]) -> list[Peer]:
    return [peer for peer in brokers if peer.name in PARTICIPANTS[name]]


def _total(only: tuple[str, ...], peers: tuple[str, ...], brokers: list[Peer], sizes: Sizes) -> int:
    total = sum(sizes.rounds * len(_participants(name, brokers)) for name in COMPARED if name in only)
    if OURS in peers:
        total += staging.steps(sizes) * ("staging" in only)
        total += backlog.steps(sizes) * ("backlog" in only) + sizes.rounds * ("connect" in only)
        total += replay.steps(sizes) * ("replay" in only)
        total += history.steps(sizes) * ("history" in only)
        total += disk.steps(sizes) * ("disk" in only)
        total += backups.steps(sizes) * ("backup" in only)
        total += reconnect.steps(sizes) * ("reconnect" in only)
        total += connections.steps(sizes) * ("connections" in only)
        total += take_over.steps(sizes) * ("takeover" in only)
        total += outcomes.steps(sizes) * ("outcomes" in only)
        total += page.steps(sizes) * ("page" in only)
        total += buckets.steps(sizes) * ("buckets" in only)
        total += spark_rows.steps(sizes) * ("spark" in only)
        total += sum(celery_rows.steps(name, sizes) for name in celery_rows.MEASURES if name in only)
    return total + sizes.rounds * ("import" in only)


def _guarded(name: str, results: Results, measure: Callable[[], None]) -> None:
    """Runs one measurement; a failure is reported and the others go on."""
    try:
        measure()
    except (BenchError, OSError) as error:
        results.failures[name] = str(error).strip()


def _compare(
    name: str, brokers: list[Peer], sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]
) -> None:
    """The rounds of one comparison; a broker that failed in it sits out the rest of it."""
    for number in range(1, sizes.rounds + 1):
        for peer in brokers:
            task = f"{name}, {peer.title}"
            if task not in results.failures:
                _guarded(task, results, partial(COMPARED[name], peer, sizes, results, folder))
            step(f"{name}, {peer.title}, round {number}")
            time.sleep(SETTLE_SECONDS)


def _imports(chosen: tuple[str, ...], sizes: Sizes, results: Results, step: Callable[[str], None]) -> None:
    brokers = [name for name in chosen if name in startup.URLS and (name != REDIS or find_spec("redis"))]
    startup.import_round(brokers, Results())  # compiles what was not compiled yet
    for number in range(1, sizes.rounds + 1):
        startup.import_round(brokers, results)
        step(f"import, round {number}")
    kombu = results.median("import.kombu", OURS)
    results.remarks.append(f"Import of Kombu alone, without a transport: {kombu or 0:.0f} ms.")


def _connects(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    for number in range(1, sizes.rounds + 1):
        startup.connect_round(number, results, folder)
        step(f"first connect, round {number}")


if __name__ == "__main__":
    main()
