"""The benchmark's command line: ``python -m tests.benchmarks --out docs/benchmarks.md``."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import (
    backlog,
    backups,
    broker_cpu,
    buckets,
    celery_rows,
    connections,
    curves,
    delayed,
    disk,
    durability,
    filters,
    floor,
    history,
    latency,
    machine,
    outcomes,
    page,
    peers_backlog,
    permissions,
    plots,
    reconnect,
    replay,
    report,
    shapes,
    spark_rows,
    staging,
    startup,
)
from .peers import Peer, embedded, running
from .record import Record, measured
from .results import Results
from .targets import ALWAYS, OURS, POSTGRES, QUORUM, RABBITMQ, REDIS, VOLATILE, WORKLOADS
from .workloads import COMPARED, MAIN, PARTICIPANTS, QUICK, Sizes, sizes_for

PEERS = (OURS, RABBITMQ, QUORUM, REDIS, ALWAYS, VOLATILE, POSTGRES)
COMPARISONS = COMPARED | shapes.COMPARED | {"latency": latency.measure_round, "cpu": broker_cpu.measure_round}
FLOORS = {"publish": floor.measure_publish, "consume": floor.measure_consume, "celery": floor.measure_celery}
Step = Callable[[str], None]
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
@click.option(
    "--samples",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file of samples, written after each workload. The report has its other workloads, too.",
)
@click.option("--quick", is_flag=True, help="Smaller sizes and two rounds: shows that it works, not how fast it is.")
@click.option("--only", default=",".join(WORKLOADS), callback=names(WORKLOADS), help=f"Of {', '.join(WORKLOADS)}.")
@click.option("--peers", default=",".join(PEERS), callback=names(PEERS), help="Brokers to compare.")
@click.option("--rounds", type=click.IntRange(1), help="Rounds of each comparison (default 5, or 2 with --quick).")
@click.option(
    "--backlog",
    "backlog_size",
    type=click.IntRange(1000),
    help="The most messages that wait, in backlog, curves and peers_backlog: a multiple of 80 (default 10,000,000 in "
    "backlog, 1,000,000 in the others).",
)
@click.option(
    "--dir",
    "parent",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    help="Where the brokers keep their data meanwhile, for example on another disk (default: the temporary folder).",
)
@click.option("--keep", is_flag=True, help="Leave the brokers' data and logs there.")
def main(
    out: Path | None,
    samples: Path | None,
    quick: bool,
    only: tuple[str, ...],
    peers: tuple[str, ...],
    rounds: int | None,
    backlog_size: int | None,
    parent: Path | None,
    keep: bool,
) -> None:
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
    sizes = replace(sizes, rounds=rounds or sizes.rounds)
    if backlog_size:
        points = tuple(size for size in sizes.curve_backlog if size < backlog_size)
        sizes = replace(sizes, backlog=backlog_size, peers_backlog=backlog_size, curve_backlog=(*points, backlog_size))
    console, record = Console(width=None if sys.stdout.isatty() else 160), Record(samples)
    folder = Path(tempfile.mkdtemp(prefix="opendata-bench-", dir=parent))
    try:
        met, skipped, failed = _measure(only, peers, sizes, record, folder, console)
    finally:
        if keep:
            console.print(f"data and logs: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    run = report.Run.of(record, sizes, skipped, {peer.name: peer.version for peer in met})
    report.show(run, console)
    if out is not None:
        out.write_text(report.page(run, plots.draw(run.results, out.with_suffix("")), out.stem), encoding="utf-8")
        console.print(f"written: {out}")
    sys.exit(failed)


def _measure(
    only: tuple[str, ...], peers: tuple[str, ...], sizes: Sizes, record: Record, folder: Path, console: Console
) -> tuple[list[Peer], dict[str, str], bool]:
    """Runs the workloads chosen; returns the brokers that took part, why others did not, and if anything failed."""
    columns = (TextColumn("{task.description:<42}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    facts, about = machine.facts(folder), Results()
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("starting the brokers", total=None)

        def step(text: str) -> None:
            progress.update(bar, advance=1, description=text)

        compared = [name for name in COMPARISONS if name in only]
        with running(peers if compared else (), folder, about) as brokers:
            brokers = brokers or [embedded(folder)]
            versions = {peer.name: peer.version for peer in brokers}

            @contextmanager
            def recorded(name: str) -> Iterator[Results]:
                results, start = Results(), time.monotonic()
                yield results
                record.add(name, measured(results, sizes, facts, versions, time.monotonic() - start))

            progress.update(bar, total=_total(only, peers, brokers, sizes))
            for name in compared:
                chosen = _participants(name, brokers)
                with recorded(name) as results:
                    if name == "latency":
                        capacities = partial(latency.measure_capacities, chosen, sizes, results)
                        _guarded("latency, capacity", results, capacities)
                    _compare(name, chosen, sizes, results, folder, step)
                    if name in FLOORS:
                        _guarded(f"{name} without a broker", results, partial(FLOORS[name], sizes, results, folder))
        for name, one in ALONE.items():
            if name in _alone(only, peers):
                with recorded(name) as results:
                    _guarded(name, results, partial(one.measure, peers, sizes, results, folder, step))
    failed = bool(about.failures) or any(record.workloads[name].failures for name in only if name in record.workloads)
    about.skipped |= {name: text.splitlines()[-1] for name, text in about.failures.items()}
    return brokers, about.skipped, failed


def _participants(name: str, brokers: list[Peer]) -> list[Peer]:
    return [peer for peer in brokers if peer.name in PARTICIPANTS.get(name, MAIN)]


def _alone(only: tuple[str, ...], peers: tuple[str, ...]) -> list[str]:
    """The workloads chosen that are not rounds of a comparison."""
    return [name for name in ALONE if name in only and (OURS in peers or name == "import")]


def _total(only: tuple[str, ...], peers: tuple[str, ...], brokers: list[Peer], sizes: Sizes) -> int:
    total = sum(sizes.rounds * len(_participants(name, brokers)) for name in COMPARISONS if name in only)
    return total + sum(ALONE[name].steps(sizes, peers) for name in _alone(only, peers))


def _guarded(name: str, results: Results, measure: Callable[[], None]) -> None:
    """Runs one measurement; a failure is reported and the others go on."""
    try:
        measure()
    except Exception as error:  # the others' numbers are not lost with it
        results.failures[name] = str(error).strip() or repr(error)


def _compare(name: str, brokers: list[Peer], sizes: Sizes, results: Results, folder: Path, step: Step) -> None:
    """The rounds of one comparison; a broker that failed in it sits out the rest of it."""
    for number in range(1, sizes.rounds + 1):
        for peer in brokers:
            task = f"{name}, {peer.title}"
            if task not in results.failures:
                _guarded(task, results, partial(COMPARISONS[name], peer, sizes_for(peer, sizes), results, folder))
            step(f"{name}, {peer.title}, round {number}")
            time.sleep(SETTLE_SECONDS)


def _imports(chosen: tuple[str, ...], sizes: Sizes, results: Results, folder: Path, step: Step) -> None:
    brokers = [name for name in chosen if name in startup.URLS and (name != REDIS or find_spec("redis"))]
    startup.import_round(brokers, Results())  # compiles what was not compiled yet
    for number in range(1, sizes.rounds + 1):
        startup.import_round(brokers, results)
        step(f"import, round {number}")
    kombu = results.median("import.kombu", OURS)
    results.remarks.append(f"Import of Kombu alone, without a transport: {kombu or 0:.0f} ms.")


def _connects(sizes: Sizes, results: Results, folder: Path, step: Step) -> None:
    for number in range(1, sizes.rounds + 1):
        startup.connect_round(number, results, folder)
        step(f"first connect, round {number}")


@dataclass(frozen=True)
class Workload:
    """What is not measured in rounds of all brokers, or brings its own."""

    measure: Callable[[tuple[str, ...], Sizes, Results, Path, Step], None]
    steps: Callable[[Sizes, tuple[str, ...]], int] = lambda _sizes, _peers: 0


def _ours(measure: Callable[..., None], steps: Callable[[Sizes], int]) -> Workload:
    """A workload of our broker only."""
    return Workload(lambda _peers, *arguments: measure(*arguments), lambda sizes, _peers: steps(sizes))


def _quiet(measure: Callable[[Sizes, Results], None]) -> Workload:
    """One that needs no folder and says nothing on its way."""
    return Workload(lambda _peers, sizes, results, _folder, _step: measure(sizes, results))


def _rounds(sizes: Sizes) -> int:
    return sizes.rounds


#: in the order of their measurement
ALONE = {
    "backlog": Workload(backlog.measure, backlog.steps),
    "staging": _ours(staging.measure, staging.steps),
    "filters": _quiet(filters.measure),
    "permissions": _quiet(permissions.measure),
    "replay": _ours(replay.measure, replay.steps),
    "history": _ours(history.measure, history.steps),
    "disk": _ours(disk.measure, disk.steps),
    "backup": _ours(backups.measure, backups.steps),
    "reconnect": _ours(reconnect.measure, reconnect.steps),
    "connections": _ours(connections.measure, connections.steps),
    "outcomes": _ours(outcomes.measure, outcomes.steps),
    "page": _ours(page.measure, page.steps),
    "peers_backlog": Workload(peers_backlog.measure, peers_backlog.steps),
    "curves": _ours(curves.measure, curves.steps),
    "buckets": _ours(buckets.measure, buckets.steps),
    "delayed": _ours(delayed.measure, delayed.steps),
    "sync": _ours(durability.measure_sync, durability.sync_steps),
    "s3": _ours(durability.measure_s3, durability.s3_steps),
    "spark": _ours(spark_rows.measure, spark_rows.steps),
    "import": Workload(_imports, lambda sizes, _peers: sizes.rounds),
    "connect": _ours(_connects, _rounds),
    **{name: _ours(one, partial(celery_rows.steps, name)) for name, one in celery_rows.MEASURES.items()},
}


if __name__ == "__main__":
    main()
