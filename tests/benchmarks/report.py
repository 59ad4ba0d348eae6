"""The report of a run: the Markdown page and the same table for the terminal."""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .celery_app import WORKER_ARGUMENTS
from .celery_rows import IDLE_SECONDS, eta_tasks
from .clients import BODY, HEADERS
from .peers import SETTINGS, Peer
from .results import Results
from .targets import ALWAYS, OURS, QUORUM, RABBITMQ, REDIS, ROWS, TITLES, AtLeast, Row
from .workloads import PUBLISHERS, Sizes

#: the series with a column of their own
SERIES = (OURS, RABBITMQ, QUORUM, REDIS, ALWAYS)
HEADINGS = ("work", *(TITLES[name] for name in SERIES), "ratio", "asked", "met?")
WIDTH = 118
"""Columns of the page's lines, except those of tables."""


@dataclass(frozen=True)
class Run:
    """All that a report needs to know."""

    results: Results
    sizes: Sizes
    peers: Sequence[Peer]
    machine: dict[str, str]
    command: str
    seconds: float


def number(value: float | None, unit: str) -> str:
    """A measured value in three significant digits or so."""
    if value is None:
        return "–"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def cells(row: Row, results: Results) -> tuple[str, ...]:
    """One line of the table, under `HEADINGS`."""
    values = [number(results.median(row.key, name), row.unit) for name in SERIES]
    asked = [str(one) if isinstance(one, AtLeast) else f"{one} {row.unit}" for one in row.asked]
    return (row.work, *values, _ratios(row, results), ", ".join(asked) or "–", verdict(row, results))


def verdict(row: Row, results: Results) -> str:
    """``yes``, ``no``, ``not measured``, for each thing asked; ``–`` where nothing is."""
    words = {True: "yes", False: "**no**", None: "not measured"}
    found = [words[results.verdict(row, one)] for one in row.asked]
    return ", ".join(dict.fromkeys(found) if len(set(found)) == 1 else found) or "–"


def _ratios(row: Row, results: Results) -> str:
    if not row.unit.endswith("/s"):
        return "–"
    against = dict.fromkeys([*SERIES[1:], *(one.against for one in row.asked if isinstance(one, AtLeast))])
    texts = []
    for name in against:
        ratio = results.ratio(row.key, name)
        if ratio is not None:
            texts.append(f"{ratio.value:.2f} × {TITLES[name]} ({ratio.low:.2f}–{ratio.high:.2f})")
    return ", ".join(texts) or "–"


def markdown(run: Run, reasons: dict[str, str]) -> str:
    """The whole page."""
    parts = [
        "# Benchmarks",
        _filled(
            "`make bench` writes this page; do not edit it by hand. The brokers ran side by side, in one run on one "
            f"machine, and took turns round by round (rounds: {run.sizes.rounds}). Values are medians over the rounds. "
            "A ratio is one median divided by the other. The smallest and the largest ratio of a single round are in "
            "parentheses."
        ),
        _table(HEADINGS, (cells(row, run.results) for row in ROWS)),
        *_misses(run.results, reasons),
        "## The rounds",
        _table(("work", "broker", "lowest", "median", "highest", "rounds"), _spread(run.results)),
        _items(run.results.remarks),
        "## What was measured",
        _items(_method(run.sizes)),
        "## Settings of each broker",
        _items(_settings(run)),
        "## Machine",
        _table(("", ""), run.machine.items()),
        "## Run it again",
        _filled(f"This command wrote the page in {run.seconds / 60:.1f} minutes: `{run.command}`"),
        "```\nmake bench                        # everything, writes docs/benchmarks.md\n"
        'make bench ARGS="--quick"         # smaller and fewer rounds, to see that it works\n'
        "python -m tests.benchmarks --help\n```",
        _filled(
            "The benchmark itself starts RabbitMQ and Redis, from the distribution's packages, on free ports and in a "
            "temporary folder. It skips a broker that is not installed."
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
        "64 processes send as many in all.",
        f"Publish without waiting: one process sends {sizes.consume:,} messages; ours with `publish_mode: pipeline`, "
        "whose confirms it has by the end of the measured time; RabbitMQ's without `confirm_publish`.",
        f"Consume: from a queue of {sizes.consume:,} messages, with prefetch 100 and one ack per message, until the "
        "channel is closed.",
        f"Celery: {sizes.tasks:,} tasks are sent before the worker starts (`{' '.join(WORKER_ARGUMENTS)}`, results "
        "ignored). Tasks/s is the rate between the first and the last task, by the worker's own clock. Workers with "
        "other pools have their default settings; their rate is that after a twentieth of the tasks.",
        f"Backlog: {sizes.backlog:,} messages wait in one queue of a store of its own. The rates are compared with "
        "those on the same queue before it was filled. A restart is timed from a new client's connect, which starts "
        "the broker, to the first message in its callback.",
        "Client CPU is the process's user and system time over the measured period. For scale: Kombu's in-memory "
        "transport, which has no broker, is the floor of what a Kombu client costs on this machine; see the remarks "
        "above.",
        f"Tasks due in an hour: {PUBLISHERS} processes send {eta_tasks(sizes):,} tasks while a solo worker consumes "
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
        if any(run.results.of(row.key, name) for name in SERIES):
            table.add_row(*(one.replace("**no**", "[bold red]no[/]") for one in cells(row, run.results)))
    console.print(table)
    for title, reason in run.results.skipped.items():
        console.print(f"{title}: {reason}")
    for name, text in run.results.failures.items():
        console.print(f"[bold red]{name} failed[/]")
        console.print(text, markup=False, highlight=False)
