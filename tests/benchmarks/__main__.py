"""The command line of the benchmark: ``python -m tests.benchmarks --out docs/benchmarks.md``."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from . import (
    backlog,
    beside_backlog,
    broker_cpu,
    buckets,
    celery_rows,
    connections,
    curves,
    history,
    latency,
    machine,
    plots,
    report,
    shapes,
    spark_job,
    spark_rows,
    tracing,
)  # fmt: skip
from .peers import Peer, embedded, running
from .record import Record, measured
from .results import Results
from .targets import ALWAYS, OURS, QUORUM, RABBITMQ, REDIS, WORKLOADS
from .workloads import COMPARED, MAIN, PARTICIPANTS, QUICK, Sizes

PEERS = (OURS, RABBITMQ, QUORUM, REDIS, ALWAYS)
#: rounds in which the brokers take turns
COMPARISONS = COMPARED | shapes.COMPARED | {"latency": latency.measure_round, "cpu": broker_cpu.measure_round}
#: workloads of our broker, or with brokers of their own, in the order of their measurement
ALONE: dict[str, Callable[..., None]] = {
    "backlog": backlog.measure,
    "history": history.measure,
    "connections": connections.measure,
    "peers_backlog": backlog.measure_peers,
    "beside": beside_backlog.measure,
    "curves": curves.measure,
    "buckets": buckets.measure,
    "sync": buckets.measure_sync,
    "s3": buckets.measure_s3,
    "spark": spark_rows.measure,
    "spark_job": spark_job.measure,
    "gap": celery_rows.gap,
    "added": celery_rows.added,
    "fair": celery_rows.fair,
    "tracing": tracing.measure,
}
#: those that take the names of the chosen brokers
_OF_PEERS = ("backlog", "peers_backlog")
Step = Callable[[str], None]
_ROUNDS = 3
SETTLE_SECONDS = 0.5
"""A pause between measurements, so that the afterwork of a broker does not fall into another one's turn."""


def names(allowed: tuple[str, ...]) -> Callable[[click.Context, click.Parameter, str], tuple[str, ...]]:
    """Return an option's callback that splits a comma-separated list of the allowed names."""

    def split(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[str, ...]:
        chosen = tuple(name.strip() for name in text.split(",") if name.strip())
        if unknown := [name for name in chosen if name not in allowed]:
            raise click.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(allowed)}")
        return chosen

    return split


_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, writable=True, path_type=Path)


@click.command()
@click.option("--out", type=_FILE, help="Write the report to this file.")
@click.option("--samples", type=_FILE, help="Keep samples in this file; the report has its other workloads, too.")
@click.option("--quick", is_flag=True, help="Use smaller sizes and two rounds, to check that it works.")
@click.option("--full", is_flag=True, help="Measure all workloads, not only those of the page's rows.")
@click.option("--only", default="", callback=names(WORKLOADS), help=f"Of {', '.join(WORKLOADS)}.")
@click.option("--peers", default=",".join(PEERS), callback=names(PEERS), help="Brokers to compare.")
@click.option(
    "--rounds", type=click.IntRange(1), help="Rounds of each comparison (default 3; 5 with --full; 2 with --quick)."
)
@click.option(
    "--backlog",
    "backlog_size",
    type=click.IntRange(1000),
    help="The most messages that wait, a multiple of 80 (default 10,000,000 in backlog, 1,000,000 in others).",
)
@click.option("--dir", "parent", type=_FOLDER, help="Folder of the brokers' data (default: the temporary folder).")
@click.option("--keep", is_flag=True, help="Keep the brokers' data and logs.")
def main(
    out: Path | None, samples: Path | None, quick: bool, full: bool, only: tuple[str, ...],
    peers: tuple[str, ...], rounds: int | None, backlog_size: int | None, parent: Path | None, keep: bool,
) -> None:  # fmt: skip
    """Measure this broker, RabbitMQ and Redis in one run and report ratios."""
    if backlog_size and backlog_size % 80:
        raise click.UsageError("--backlog: 8 processes fill it in 10 equal steps, so it has to be a multiple of 80")
    if samples is not None and (quick or backlog_size or peers != PEERS):
        raise click.UsageError("--samples is for full sizes and all brokers, as the page compares them")
    if out is not None and (out.suffix != ".md" or not out.parent.is_dir()):
        raise click.UsageError("--out: a file NAME.md in a folder that exists")
    # Every broker is ended on the way out, so there must be one.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process of ours would compile all modules again
    sizes = QUICK if quick else Sizes()
    sizes = replace(sizes, rounds=rounds or (sizes.rounds if quick or full else _ROUNDS))
    if not full and not quick:  # Redis takes minutes for a million messages
        sizes = replace(sizes, backlog_peers=(OURS, RABBITMQ))
    only = only or (WORKLOADS if full else report.MAIN_WORKLOADS)
    if backlog_size:
        points = tuple(size for size in sizes.curve_backlog if size < backlog_size)
        sizes = replace(sizes, backlog=backlog_size, peers_backlog=backlog_size, curve_backlog=(*points, backlog_size))
    console, record = Console(width=None if sys.stdout.isatty() else 160), Record(samples)
    folder = Path(tempfile.mkdtemp(prefix="opendata-bench-", dir=parent))
    try:
        versions, skipped, failed = _measure(only, peers, sizes, record, folder, console)
    finally:
        if keep:
            console.print(f"data and logs: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    run = report.Run.of(record, sizes, skipped, versions)
    report.show(run, console)
    if out is not None:
        out.write_text(report.page(run, plots.draw(run.results, out.with_suffix("")), out.stem), encoding="utf-8")
        console.print(f"written: {out}")
    sys.exit(failed)


def _measure(
    only: tuple[str, ...], peers: tuple[str, ...], sizes: Sizes, record: Record, folder: Path, console: Console
) -> tuple[dict[str, str], dict[str, str], bool]:
    """Run the chosen workloads; return the brokers' versions, the reasons of those left out, and if any failed."""
    facts, about = machine.facts(folder), Results()
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task("starting the brokers", total=None)

        def step(text: str) -> None:
            progress.update(bar, description=text)

        compared = [name for name in COMPARISONS if name in only]
        with running(peers if compared else (), folder, about) as brokers:
            versions = {peer.name: peer.version for peer in brokers or [embedded(folder)]}

            @contextmanager
            def recorded(name: str) -> Iterator[Results]:
                results, start = Results(), time.monotonic()
                yield results
                record.add(name, measured(results, sizes, facts, versions, time.monotonic() - start))

            for name in compared:
                chosen = [peer for peer in brokers if peer.name in PARTICIPANTS.get(name, MAIN)]
                with recorded(name) as results:
                    _compare(name, chosen, sizes, results, folder, step)
        for name, measure in ALONE.items():
            if name in only and OURS in peers:
                with recorded(name) as results:
                    arguments = (*([peers] if name in _OF_PEERS else []), sizes, results, folder, step)
                    _guarded(name, results, partial(measure, *arguments))
    failed = bool(about.failures) or any(record.workloads[name].failures for name in only if name in record.workloads)
    about.skipped |= {name: text.splitlines()[-1] for name, text in about.failures.items()}
    return versions, about.skipped, failed


def _guarded(name: str, results: Results, measure: Callable[[], None]) -> None:
    """Run one measurement; a failure is reported and the others continue."""
    try:
        measure()
    except Exception as error:  # the others' numbers are not lost with it
        results.failures[name] = str(error).strip() or repr(error)


def _compare(name: str, brokers: list[Peer], sizes: Sizes, results: Results, folder: Path, step: Step) -> None:
    """Run the rounds of one comparison; a broker that failed is left out of the others."""
    for number in range(1, sizes.rounds + 1):
        for peer in brokers:
            step(f"{name}, {peer.title}, round {number}")
            task = f"{name}, {peer.title}"
            if task not in results.failures:
                _guarded(task, results, partial(COMPARISONS[name], peer, sizes, results, folder))
            time.sleep(SETTLE_SECONDS)


if __name__ == "__main__":
    main()
