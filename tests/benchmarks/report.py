"""The report of a run: the Markdown page and the same table for the terminal."""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from . import broker_cpu, delayed, latency, shapes
from .celery_app import WORKER_ARGUMENTS
from .celery_rows import IDLE_SECONDS
from .clients import BODY, HEADERS
from .curve_rows import CURVES, QUANTITIES, Curve
from .peers import SETTINGS, Peer
from .record import Measured
from .results import Results
from .targets import (
    ALWAYS,
    MEMORY,
    OURS,
    POSTGRES,
    QUORUM,
    RABBITMQ,
    REDIS,
    ROWS,
    TITLES,
    VOLATILE,
    WORKLOADS,
    AtMost,
    Row,
)
from .workloads import PUBLISHERS, Sizes

#: the series with a column of their own
SERIES = (OURS, RABBITMQ, QUORUM, REDIS, ALWAYS)
#: those with a table of their own, as few rows have them
BESIDE = (VOLATILE, POSTGRES, MEMORY)
HEADINGS = ("work", *(TITLES[name] for name in SERIES), "ratio", "asked", "met?")
BESIDE_HEADINGS = ("work", *(TITLES[name] for name in (OURS, *BESIDE)), *(f"over {TITLES[name]}" for name in BESIDE))
WIDTH = 118
"""Columns of the page's lines, except those of tables."""


@dataclass(frozen=True)
class Run:
    """All that a report needs to know."""

    results: Results
    sizes: Sizes
    peers: Sequence[Peer]
    workloads: Mapping[str, Measured]


@dataclass(frozen=True)
class Picture:
    """A picture's two variants, ``NAME-light.svg`` and ``NAME-dark.svg``, in the folder of the page's own name."""

    name: str
    text: str
    """What it shows, for those who do not see it."""


def number(value: float | None, unit: str) -> str:
    """A measured value in three significant digits or so."""
    if value is None:
        return "–"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def cells(row: Row, results: Results) -> tuple[str, ...]:
    """One line of the table, under `HEADINGS`."""
    values = [number(results.median(row.key, name), row.unit) for name in SERIES]
    asked = [f"{one} {row.unit}" if isinstance(one, AtMost) else str(one) for one in row.asked]
    return (row.work, *values, _ratios(row, results), ", ".join(asked) or "–", verdict(row, results))


def _is_measured(row: Row, results: Results) -> bool:
    return any(results.of(row.key, name) for name in SERIES)


def _unmeasured(run: Run) -> str:
    """Which workloads the page lacks."""
    missing = [name for name in WORKLOADS if name not in run.workloads]
    return _filled(f"Not measured yet: {', '.join(missing)}.") if missing else ""


def verdict(row: Row, results: Results) -> str:
    """``yes``, ``no``, ``not measured``, for each thing asked; ``–`` where nothing is."""
    words = {True: "yes", False: "**no**", None: "not measured"}
    found = [words[results.verdict(row, one)] for one in row.asked]
    return ", ".join(dict.fromkeys(found) if len(set(found)) == 1 else found) or "–"


def _beside(results: Results) -> list[str]:
    """The rows that the brokers without a column have."""
    lines = beside_lines(results)
    explained = (
        "For scale: Redis without any file, where nothing is durable; PostgreSQL through Kombu's SQLAlchemy transport; "
        "and Kombu's in-memory transport, which needs no broker and no second process. Its CPU is the least that the "
        "same clients can cost, and its rates are the most that they can reach. Ratios are ours over theirs."
    )
    return [_filled(explained), _table(BESIDE_HEADINGS, lines)] if lines else []


def beside_lines(results: Results) -> list[tuple[str, ...]]:
    """The lines under `BESIDE_HEADINGS`."""
    lines = []
    for row in ROWS:
        if any(results.of(row.key, name) for name in BESIDE):
            values = [number(results.median(row.key, name), row.unit) for name in (OURS, *BESIDE)]
            ratios = [results.ratio(row.key, name) if row.unit.endswith("/s") else None for name in BESIDE]
            lines.append((row.work, *values, *("–" if one is None else f"{one.value:.2f} ×" for one in ratios)))
    return lines


def _ratios(row: Row, results: Results) -> str:
    asked = [one.against for one in row.asked if not isinstance(one, AtMost)]
    against = dict.fromkeys([*SERIES[1:], *asked] if row.unit.endswith("/s") else asked)
    texts = []
    for name in against:
        ratio = results.ratio(row.key, name)
        if ratio is not None:
            texts.append(f"{ratio.value:.2f} × {TITLES[name]} ({ratio.low:.2f}–{ratio.high:.2f})")
    return ", ".join(texts) or "–"


def markdown(
    run: Run, reasons: dict[str, str], pictures: Sequence[Picture] = (), folder: str = "", limits: str = ""
) -> str:
    """The whole page, with the text about limits; the pictures are in this folder beside it."""
    shown = {one.name: _picture(one, folder) for one in pictures}
    parts = [
        "# Benchmarks",
        _filled(
            "`make bench` writes this page; do not edit it by hand. Where a row has several brokers, they ran on one "
            "machine in one run and took turns, round by round; only the backlogs were filled one after the other. "
            "[The "
            "runs](#the-runs) are below. Values are medians over the rounds. A ratio is our median divided by theirs. "
            "The smallest and the largest ratio of a single round are in parentheses."
        ),
        shown.get("compared", ""),
        _table(HEADINGS, (cells(row, run.results) for row in ROWS if _is_measured(row, run.results))),
        _unmeasured(run),
        shown.get("shapes", ""),
        shown.get("peers-backlog", ""),
        *_beside(run.results),
        *_misses(run.results, reasons),
        limits.strip(),
        *_curves(run, shown),
        "## The rounds",
        _table(("work", "broker", "lowest", "median", "highest", "rounds"), _spread(run.results)),
        _items(run.results.remarks),
        "## What was measured",
        _items(_method(run.sizes)),
        "## Settings of each broker",
        _items(_settings(run)),
        "## The runs",
        _filled(
            f"All workloads took {sum(one.minutes for one in run.workloads.values()):.0f} minutes. Those that began at "
            "the same moment are from one run."
        ),
        _table(("begun", "commit", "rounds", "load average before", "disk", "workloads: minutes"), _runs(run)),
        *_machines(run),
        "## Run it again",
        "```\nmake bench                        # everything, writes docs/benchmarks.md\n"
        "make bench ONLY=latency,cpu       # these workloads; the page keeps its other rows\n"
        "make bench ONLY=latency PEERS=ours,rabbitmq ROUNDS=3       # prints the table, leaves the page\n"
        "python -m tests.benchmarks --quick                         # smaller, to see that it works\n"
        "python -m tests.benchmarks --help\n```",
        _filled(
            "The benchmark itself starts RabbitMQ, Redis and PostgreSQL, from the distribution's packages, on free "
            "ports and in a temporary folder. It skips a broker that is not installed."
        ),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _filled(text: str, bullet: str = "") -> str:
    """A paragraph, or an item of a list, in lines of `WIDTH`.

    No line begins with a unit, which belongs to its number, or with a plus, which would begin a list.
    """
    lines = textwrap.fill(
        bullet + re.sub(r"(?<=\d) | (?=\+ )", "\N{NO-BREAK SPACE}", text),
        WIDTH,
        subsequent_indent=" " * len(bullet),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def _items(texts: Iterable[str]) -> str:
    return "\n".join(_filled(text, "- ") for text in texts)


def _table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    text = [" | ".join(headings), " | ".join("---" for _ in headings)]
    text += [" | ".join(line) for line in lines]
    return "\n".join(f"| {one} |" for one in text)


def _misses(results: Results, reasons: dict[str, str]) -> list[str]:
    missed = [row for row in ROWS if any(results.verdict(row, one) is False for one in row.asked)]
    lines = [f"{row.work}: {reasons.get(row.key, 'The reason is not known yet.')}" for row in missed]
    lines += [f"{name}: could not be measured: {text.splitlines()[-1]}" for name, text in results.failures.items()]
    return ["## Missed, and why", _items(lines)] if lines else []


def _picture(picture: Picture, folder: str) -> str:
    """As code hosts show one of two variants; tools/site/markdown_dialect.py knows this form."""
    path = f"{folder}/{picture.name}"
    return (
        "<picture>\n"
        f'  <source media="(prefers-color-scheme: dark)" srcset="{path}-dark.svg">\n'
        f'  <img alt="{picture.text}" src="{path}-light.svg">\n'
        "</picture>"
    )


def _curves(run: Run, pictures: Mapping[str, str]) -> Iterable[str]:
    """A picture and a table for each size that grew."""
    measured = [curve for curve in CURVES if any(key == curve.key for key, _quantity in run.results.points)]
    if measured:
        yield "## Curves"
        yield _filled(
            "How our broker's numbers change with one size at a time. Each point has a new store. It is measured after "
            "the store's compactions have finished. Values are medians; the pictures show the range "
            f"of the samples, too. 8 processes publish {run.sizes.curve_sample_each:,} messages each, or fewer where "
            "that would take more than some 20 s. One client consumes as many. The broker's CPU is that of all of its "
            "threads from the clients' start to their end."
        )
    for curve in measured:
        yield f"### {curve.title}"
        yield _filled(curve.text)
        yield pictures.get(f"curve-{curve.key}", "")
        yield _table(*curve_table(curve, run.results))


def curve_table(curve: Curve, results: Results) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The headings and the lines: the sizes, and the medians of what was measured."""
    columns = [
        (one, results.points[curve.key, one.key]) for one in QUANTITIES if (curve.key, one.key) in results.points
    ]
    reached = sorted({size for _quantity, points in columns for size in points})
    lines = [
        (f"{size:,}", *(number(median(points[size]) if size in points else None, one.unit) for one, points in columns))
        for size in reached
    ]
    return (curve.axis, *(one.title for one, _points in columns)), lines


def _spread(results: Results) -> Iterable[tuple[str, ...]]:
    for row in ROWS:
        for name, title in TITLES.items():
            values = results.of(row.key, name)
            if values:
                middle = results.median(row.key, name)
                shown = (number(one, row.unit) for one in (min(values), middle, max(values)))
                yield (row.work, title, *shown, str(len(values)))


def _method(sizes: Sizes) -> Iterable[str]:
    return (
        "Every client is a process of its own and connects as an application does, through Kombu's public API. A "
        f"message is what Celery sends for `add(2, 2)`: a JSON body of {len(json.dumps(BODY))} bytes and "
        f"{len(HEADERS)} headers, to the default exchange. Consumers use `on_message`, as Celery's worker does, and do "
        "not decode the body.",
        f"Publish: one process sends {sizes.publish:,} messages a round. {PUBLISHERS} processes, which start at the "
        f"same moment, send {PUBLISHERS} × {sizes.publish_each:,}; their time is from the first start to the last end. "
        "64 processes send as many in all. PostgreSQL gets a tenth of these and of the following numbers.",
        f"Publish without waiting: one process sends {sizes.consume:,} messages. Ours uses `publish_mode: pipeline` "
        "and "
        "has all confirms by the end of the measured time; RabbitMQ's client is without `confirm_publish`. 8 and 64 "
        "processes send twice as many in all.",
        f"Consume: from a queue of {sizes.consume:,} messages, with prefetch 100 and one ack per message, until the "
        "channel is closed.",
        f"Celery: {sizes.tasks:,} tasks are sent before the worker starts (`{' '.join(WORKER_ARGUMENTS)}`, results "
        "ignored). Tasks/s is the rate between the first and the last task, by the worker's own clock. Workers with "
        "other pools have their default settings; their rate is that after a twentieth of the tasks.",
        "Latency: one process publishes on a fixed schedule, each publish confirmed; another one consumes (prefetch "
        f"{latency.PREFETCH}) and acks each. A message carries the moment at which its publish was due. Its latency "
        "is from that moment, not from that of the publish, to the first line of the consumer's callback, so a publish "
        f"that is late counts in full. Each rate has at least {sizes.latency:,} messages and lasts at least "
        f"{sizes.latency_seconds:g} s. The capacity is measured first, with the same two processes and no schedule.",
        "Broker CPU: user and system time of the broker's process, or of the server's process tree, from the first "
        f"measured message to the last. A round publishes {sizes.publish:,} messages one by one, twice "
        f"{sizes.consume:,} in streams, and {PUBLISHERS} × {sizes.publish_each:,} with {PUBLISHERS} processes, and "
        "consumes them all. A message in all: what the whole round took, and the "
        f"{broker_cpu.AFTERWORK_SECONDS:g} s after it, over the number of its messages.",
        "Bytes written to the device: by `/proc/diskstats`, between two syncs of all file systems. All that the "
        "machine writes meanwhile is in it. Only the workload `disk` measures how much of that is still in use: these "
        "rounds last seconds, and end before what they wrote is compacted.",
        "Except in the workload `disk` and in bodies of a given size, all messages are alike, so our compressed tables "
        "take far less disk than real messages would. RabbitMQ and Redis do not compress.",
        f"Disk: one process publishes 580 tasks/s for {sizes.disk_seconds} s, which another one consumes and acks, and "
        "which are kept as done ones; each has an id and arguments of its own. In use: the tables of the current "
        "manifest, which are compressed. Live records: the keys and values that a scan of the store finds, at the end "
        "of the load and at rest, uncompressed. The load is steady, so the live records of a moment are taken as the "
        "same share of those at the end. “At its largest” leaves out the first minute. A device writes whole blocks, "
        "so a small commit that is synced by itself takes some kilobytes there; "
        "the broker's process passes just its bytes to the calls that write, and its answers to clients.",
        *shapes.method(sizes),
        *delayed.method(sizes),
        "Fsync: two brokers on the same disk, one of them with `--no-sync`, take turns; the publishers are those of "
        "the rows about publishing.",
        "Bucket: a proxy before an S3-compatible server (moto) makes each request take so long; messages have 200 "
        f"bytes. For the rates, producers publish for {sizes.s3_seconds:g} s over a connection each. A consumer takes "
        f"{sizes.publish:,} messages from a new broker, or 5,000 where its requests are counted.",
        f"Backlog: {sizes.backlog:,} messages wait in one queue of a store of its own. The rates are compared with "
        "those on the same queue before it was filled: right after the fill, and when compactions are over. Then "
        "RabbitMQ gets the same messages, and no more of them after ten minutes, and the two brokers take "
        "turns. A restart is timed from a new client's connect, which starts the broker, to the first message in its "
        "callback.",
        f"Backlog in each broker: {sizes.peers_backlog:,} messages wait in one queue of each, in servers of their own. "
        "They are published as `publish without waiting` does; Kombu's Redis transport always waits. The rates are "
        "taken at rest, in turns. Memory is that of all processes of the server. A client tries to connect while the "
        "server starts.",
        "Client CPU is the process's user and system time over the measured period.",
        f"Tasks due in an hour: {PUBLISHERS} processes send {sizes.eta:,} tasks while a solo worker consumes "
        "their queue. The value is how much the worker's resident memory grew.",
        "Kill of the broker: the broker is killed while one process sends "
        f"{sizes.tasks:,} tasks to a prefork worker of two. The value is the longest time after the kill in which no "
        "task ran. The clients start the broker again.",
        "Idle worker: a prefork worker with `--task-events` and a heartbeat every 2 s, and a receiver of the events, "
        f"for {IDLE_SECONDS:.0f} s.",
        "Import: the time in which a new Python process imports Kombu's names and the transport, minus that of a "
        "process that imports Kombu's names only. First connect: the time from a folder that does not exist yet to an "
        "open channel.",
    )


#: facts that a run's line in the table has
_OF_A_RUN = ("date", "commit", "load average before")


def _runs(run: Run) -> Iterable[tuple[str, ...]]:
    """A line for each run."""
    together: dict[tuple[str, ...], list[str]] = {}
    for name, one in run.workloads.items():
        date, commit, load, disk = (one.facts.get(fact, "") for fact in (*_OF_A_RUN, "disk"))
        together.setdefault((date, commit, str(one.rounds), load, disk), []).append(f"{name}: {one.minutes:g}")
    return ((*key, ", ".join(names)) for key, names in sorted(together.items()))


def _machines(run: Run) -> Iterable[str]:
    """What all runs say of the machine; more than one table if they differ. The disk is that of the first workload."""
    found: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for name in WORKLOADS:
        if (one := run.workloads.get(name)) is not None:
            same = tuple((fact, text) for fact, text in one.facts.items() if fact not in (*_OF_A_RUN, "disk"))
            found.setdefault(same, one.facts)
    for facts in found.values():
        yield "## Machine"
        yield _table(("", ""), ((fact, text) for fact, text in facts.items() if fact not in _OF_A_RUN))


def _settings(run: Run) -> Iterable[str]:
    for peer in run.peers:
        yield f"**{peer.title}** {peer.version}: {SETTINGS[peer.name]}"
    for title, reason in run.results.skipped.items():
        yield f"**{title}**: {reason}"


def read_reasons(path: Path) -> dict[str, str]:
    """The reasons written by hand, by row key."""
    reasons = {key: str(value) for key, value in tomllib.loads(path.read_text(encoding="utf-8")).items()}
    unknown = reasons.keys() - {row.key for row in ROWS}
    if unknown:
        raise ValueError(f"{path.name}: no such row: {', '.join(sorted(unknown))}")
    return reasons


def show(run: Run, console: Console) -> None:
    """Prints the table of the rows that were measured."""
    table = Table(*HEADINGS, title="kombu-opendata against RabbitMQ and Redis")
    for row in ROWS:
        if _is_measured(row, run.results):
            table.add_row(*(one.replace("**no**", "[bold red]no[/]") for one in cells(row, run.results)))
    console.print(table)
    if beside := beside_lines(run.results):
        console.print(_rich_table("beside them", BESIDE_HEADINGS, beside))
    for curve in CURVES:
        headings, lines = curve_table(curve, run.results)
        if lines:
            console.print(_rich_table(curve.title, headings, lines))
    for title, reason in run.results.skipped.items():
        console.print(f"{title}: {reason}")
    for name, text in run.results.failures.items():
        console.print(f"[bold red]{name} failed[/]")
        console.print(text, markup=False, highlight=False)


def _rich_table(title: str, headings: Sequence[str], lines: Iterable[Sequence[str]]) -> Table:
    table = Table(*headings, title=title)
    for line in lines:
        table.add_row(*line)
    return table
