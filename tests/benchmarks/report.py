"""The reports of the samples: the page of the main rows, the page of all data, the table for the terminal."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from . import instructions
from .curve_rows import CURVES, QUANTITIES, Curve
from .record import Measured, Record
from .results import Results
from .targets import ALWAYS, OURS, QUORUM, RABBITMQ, REDIS, ROWS, TITLES, WORKLOADS, Row
from .workloads import Sizes

HERE = Path(__file__).parent
#: the series with a column
SERIES = (OURS, RABBITMQ, QUORUM, REDIS, ALWAYS)
#: the twenty rows that decide, in the order of the page
MAIN_ROWS = (
    "publish.rate", "publish8.rate", "pipeline.rate", "pipeline.send", "consume.rate", "peers_backlog.publish",
    "peers_backlog.consume", "peers_backlog.memory", "celery.rate", "prefork.rate", "threads.rate", "gevent.rate",
    "latency.200p50", "latency.200p99", "latency.200p999", "sizes.publish10kB", "sizes.consume10kB",
    "sizes.publish1MB", "sizes.consume1MB", "gap.time",
)  # fmt: skip
MAIN_WORKLOADS = tuple(dict.fromkeys(key.partition(".")[0] for key in MAIN_ROWS))
_MAIN_SERIES = (OURS, RABBITMQ, REDIS)
#: facts in the line of a run
_OF_A_RUN = ("date", "commit", "load average before", "disk")


@dataclass(frozen=True)
class Run:
    """The samples and conditions that a report is made from."""

    results: Results
    sizes: Sizes
    versions: Mapping[str, str]
    workloads: Mapping[str, Measured]

    @classmethod
    def of(cls, record: Record, sizes: Sizes, skipped: dict[str, str], versions: dict[str, str]) -> Run:
        return cls(record.results(skipped), record.sizes(sizes), record.versions() | versions, record.workloads)


@dataclass(frozen=True)
class Picture:
    """A picture with its two variants, ``NAME-light.svg`` and ``NAME-dark.svg``, and its alternative text."""

    name: str
    text: str

    def markdown(self, folder: str) -> str:
        """The form in which code hosts show one of two variants; tools/site/markdown_dialect.py knows it."""
        path = f"{folder}/{self.name}"
        return (
            f'<picture><source media="(prefers-color-scheme:dark)" srcset="{path}-dark.svg">\n'
            f'<img alt="{self.text}" src="{path}-light.svg"></picture>'
        )


# ---------------------------------------------------------------------- cells
def number(value: float | None, unit: str) -> str:
    """Format a measured value in about three significant digits."""
    if value is None:
        return "–"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def verdict(row: Row, results: Results) -> str:
    """Return ``yes``, ``no`` or ``not measured`` for each target; ``–`` without a target."""
    words = {True: "yes", False: "**no**", None: "not measured"}
    verdicts = [words[results.verdict(row, target)] for target in row.targets]
    return ", ".join(dict.fromkeys(verdicts) if len(set(verdicts)) == 1 else verdicts) or "–"


def cells(row: Row, results: Results, series: Sequence[str] = SERIES, *, spread: bool = True) -> tuple[str, ...]:
    """Return the line of a row: its values, ratios, targets and verdicts."""
    values = [number(results.median(row.key, name), row.unit) for name in series]
    targets = [str(target) if target.against else f"{target} {row.unit}" for target in row.targets]
    return (row.work, *values, _ratios(row, results, series, spread), ", ".join(targets) or "–", verdict(row, results))


def headings(series: Sequence[str] = SERIES) -> tuple[str, ...]:
    return ("work", *(TITLES[name] for name in series), "ratio", "target", "met")


def _ratios(row: Row, results: Results, series: Sequence[str], spread: bool) -> str:
    targets = [target.against for target in row.targets if target.against]
    peers = series[1:] if spread else [RABBITMQ]
    texts = []
    for name in dict.fromkeys([*peers, *targets] if row.unit.endswith("/s") else targets):
        ratio = results.ratio(row.key, name)
        if ratio is not None:
            whose = f" × {TITLES[name]}" if spread or name != RABBITMQ else ""  # the page's column names it
            rounds = f" ({ratio.low:.2f}–{ratio.high:.2f})" if spread else ""
            texts.append(f"{ratio.value:.2f}{whose}{rounds}")
    return ", ".join(texts) or "–"


# ---------------------------------------------------------------------- Markdown
def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in rows)


def items(texts: Iterable[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


def read_reasons(path: Path = HERE / "reasons.toml") -> dict[str, str]:
    """Read the hand-written reasons, by row key.

    Raises:
        ValueError: a key is not that of a row.
    """
    reasons = {key: str(value) for key, value in tomllib.loads(path.read_text(encoding="utf-8")).items()}
    unknown = reasons.keys() - {row.key for row in ROWS}
    if unknown:
        raise ValueError(f"{path.name}: no such row: {', '.join(sorted(unknown))}")
    return reasons


def page(run: Run, pictures: Sequence[Picture] = (), folder: str = "benchmarks") -> str:
    """Return docs/benchmarks.md; the pictures are in this folder beside it."""
    rows = [row for key in MAIN_ROWS for row in ROWS if row.key == key and _is_measured(row, run.results)]
    drawn = {picture.name: picture.markdown(folder) for picture in pictures}
    busy = {name for name, measured in run.workloads.items() if "not quiet" in measured.facts.get(_OF_A_RUN[2], "")}
    lines = [cells(row, run.results, _MAIN_SERIES, spread=False)[:-2] for row in rows]  # targets are in the data
    marked = [
        (f"{work} ¹" if row.workload in busy else work, *more) for row, (work, *more) in zip(rows, lines, strict=True)
    ]
    facts = run.workloads["publish"].facts if "publish" in run.workloads else {}
    return _filled(
        "page_template.md",
        sync=facts.get("disk", "not measured").rpartition("fsync: ")[2],
        rows=table((*headings(_MAIN_SERIES)[:-3], f"× {TITLES[RABBITMQ]}"), marked),
        busy="¹ The machine was not quiet during this run." if marked != lines else "",
        reasons=items(_misses(rows, run.results)),
        versions="; ".join(
            f"{TITLES[name]} {version}" for name, version in run.versions.items() if name in _MAIN_SERIES
        ),
        pictures={name: drawn.get(name, "") for name in ("compared", "shapes", "peers-backlog")},
        curves="\n\n".join(text for name, text in drawn.items() if name.startswith("curve-")),
    )


def data_page(run: Run) -> str:
    """Return the page of all rows, rounds, settings and machines."""
    results = run.results
    missing = [name for name in WORKLOADS if name not in run.workloads]
    rows = [row for row in ROWS if _is_measured(row, results)]
    failures = [f"{name}: could not be measured: {text.splitlines()[-1]}" for name, text in results.failures.items()]
    skipped = [f"{title}: {reason}" for title, reason in results.skipped.items()]
    return _filled(
        "data_template.md",
        sizes=run.sizes,
        versions={name: run.versions.get(name, "(not measured)") for name in TITLES},
        rows=table(headings(), (cells(row, results) for row in rows)),
        unmeasured=f"Not measured: {', '.join(missing)}." if missing else "",
        reasons=items([*_misses(ROWS, results), *failures, *skipped]),
        python=instructions.PYTHON,
        instructions=table(("work", "budget", "before the budgets", "ratio"), _instructions()),
        curves="\n\n".join(
            f"### {curve.title}\n\n{curve.text}\n\n{table(*curve_table(curve, results))}" for curve in CURVES
        ),
        rounds=table(("work", "broker", "lowest", "median", "highest", "rounds"), _spread(results)),
        remarks=items(results.remarks),
        runs=table(("begun", "commit", "rounds", "load average before", "disk", "workloads: minutes"), _runs(run)),
        machines="\n\n".join(_machines(run)),
    )


def _filled(template: str, **values: object) -> str:
    text = (HERE / template).read_text(encoding="utf-8").format(**values)
    return re.sub(r"\n{3,}", "\n\n", text)  # an empty part leaves no gap


def _is_measured(row: Row, results: Results) -> bool:
    return any(results.of(row.key, name) for name in SERIES)


def _misses(rows: Iterable[Row], results: Results) -> Iterable[str]:
    """The reasons of the rows that miss a target, or have none and are slower than RabbitMQ."""
    reasons = read_reasons()
    for row in rows:
        ratio = None if row.targets or row.key not in reasons else results.ratio(row.key, RABBITMQ)
        is_slower = ratio is not None and ratio.value < 1
        if is_slower or any(results.verdict(row, target) is False for target in row.targets):
            yield f"**{row.work}**: {reasons.get(row.key, 'The reason is not known.')}"


def curve_table(curve: Curve, results: Results) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return the headings and the lines of a curve: its sizes, and the medians of each quantity."""
    columns = [
        (quantity, results.points[curve.key, quantity.key])
        for quantity in QUANTITIES
        if (curve.key, quantity.key) in results.points
    ]
    reached = sorted({size for _quantity, points in columns for size in points})
    lines = [
        (f"{size:,}", *(number(median(points[size]) if size in points else None, of.unit) for of, points in columns))
        for size in reached
    ]
    return (curve.axis, *(quantity.title for quantity, _points in columns)), lines


def _spread(results: Results) -> Iterable[tuple[str, ...]]:
    for row in ROWS:
        for name, title in TITLES.items():
            if values := results.of(row.key, name):
                shown = (number(value, row.unit) for value in (min(values), median(values), max(values)))
                yield (row.work, title, *shown, str(len(values)))


def _instructions() -> Iterable[tuple[str, ...]]:
    for stretch, sides in instructions.budgets().items():
        for side, budget in sides.items():
            shown = f"{budget.now:,}", f"{budget.before:,}", f"{budget.now / budget.before:.2f}"
            yield (f"{stretch}, {side}", *shown)


def _runs(run: Run) -> Iterable[tuple[str, ...]]:
    together: dict[tuple[str, ...], list[str]] = {}
    for name, measured in run.workloads.items():
        date, *others = (measured.facts.get(fact, "") for fact in _OF_A_RUN)
        commit, *conditions = others
        line = (date, commit, str(measured.rounds), *conditions)
        together.setdefault(line, []).append(f"{name}: {measured.minutes:g}")
    return ((*key, ", ".join(names)) for key, names in sorted(together.items()))


def _machines(run: Run) -> Iterable[str]:
    """A table for each set of facts that runs share."""
    shared = {
        tuple((fact, text) for fact, text in measured.facts.items() if fact not in _OF_A_RUN)
        for measured in run.workloads.values()
    }
    return (table(("fact", "value"), facts) for facts in sorted(shared))


# ---------------------------------------------------------------------- the terminal
def show(run: Run, console: Console) -> None:
    """Print the rows, the curves, and the brokers and workloads that failed."""
    lines = [cells(row, run.results) for row in ROWS if _is_measured(row, run.results)]
    _print(console, "kombu-opendata against RabbitMQ and Redis", headings(), lines)
    for curve in CURVES:
        _print(console, curve.title, *curve_table(curve, run.results))
    for title, reason in run.results.skipped.items():
        console.print(f"{title}: {reason}")
    for name, text in run.results.failures.items():
        console.print(f"[bold red]{name} failed[/]")
        console.print(text, markup=False, highlight=False)


def _print(console: Console, title: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    if lines:
        shown = Table(*heads, title=title)
        for line in lines:
            shown.add_row(*(cell.replace("**no**", "[bold red]no[/]") for cell in line))
        console.print(shown)
