"""docs/reliability.md, from the records in tests/reliability (its module `runs` has their format).

``python tools/site/reliability_page.py`` writes the page; the site has another one with the injected faults.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reliability.md"
RECORDS = ROOT / "tests" / "reliability"

HEAD = """# Reliability

The long runs of the tests of the [contract](contract.md). Each command repeats a run, and ends with an error if it
finds something. Findings and anomalies are counted since the first run, also those that have been fixed; `clean hours`
are those of the runs since the last of them. With `RECORD=yes` a command adds its run to `tests/reliability`, of which
`python tools/site/reliability_page.py` makes this page. The site has the numbers of [injected
faults](reference/injected-faults.md).
"""
FAULTS = """# Injected faults

The faults of all recorded runs of [the long tests](../reliability.md), from `tests/reliability`.
"""
SECTIONS = {
    "simulation": "Simulation: brokers, clients, disk, network and time in one process, decided by a seed.",
    "faults": "Faults: real processes, with a checker of the whole history and of the store.",
    "spark": "Spark: drivers are killed with -9 at steps of a job and run again, streams are killed and restarted.",
    "fuzz": "Fuzzing: guided by coverage. A finding is an undeclared exception, a stall of 50 ms or growth by 50 MB.",
    "soak": "Soak: days of mixed load with a clock that is ahead.",
    "mutants": "Planted bugs: of each point of the contract, found by the tests.",
    "mutation": "Mutation: automatic changes of the most difficult modules.",
}
#: the kinds of which only the newest run counts
STATES = ("mutants", "mutation")
#: the numbers of defects
DEFECTS = ("anomalies", "findings", "growing")
SOAK_PLOT = "images/soak.svg"


def records(kind: str) -> list[dict[str, Any]]:
    """Return the recorded runs of a kind."""
    path = RECORDS / f"{kind}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(kind: str, runs: list[dict[str, Any]]) -> str:
    """Return the table of a kind: a row for each command, with the sums of all days and versions."""
    names = list(dict.fromkeys(name for run in runs for name in run["numbers"]))
    more = [] if kind in STATES else ["clean hours"]
    lines = [
        f"| {' | '.join(['command', 'last run', 'hours', *names, *more])} |",
        f"|---|---|{'---:|' * (1 + len(names) + len(more))}",
    ]
    for command in sorted({run["command"] for run in runs}):
        same = sorted((run for run in runs if run["command"] == command), key=lambda run: str(run["day"]))
        counted = same[-1:] if kind in STATES else same
        hours = sum(run["seconds"] for run in counted) / 3600
        sums = [sum(run["numbers"].get(name, 0) for run in counted) for name in names]
        cells = [f"`{command}`", same[-1]["day"], f"{hours:.1f}", *(f"{total:,}" for total in sums)]
        cells += [f"{clean_seconds(same) / 3600:.1f}" for _ in more]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def clean_seconds(runs: list[dict[str, Any]]) -> int:
    """Return the time of the runs since the last one that found a defect."""
    total = 0
    for run in runs:
        has_defects = any(run["numbers"].get(name) for name in DEFECTS)
        total = 0 if has_defects else total
        total += run.get("clean_seconds", 0 if has_defects else run["seconds"])
    return total


def faults(runs: list[dict[str, Any]]) -> str:
    """Return the table of injected faults by their kind, most frequent first."""
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run["faults"])
    rows = [f"| {name} | {count:,} |" for name, count in counts.most_common()]
    return "\n".join(["| fault | times |", "|---|---:|", *rows]) + "\n" if rows else ""


def defects(runs: list[dict[str, Any]]) -> str:
    """Return the table of the recorded anomalies and findings, with the seed that repeats each."""
    rows = [f"| {text.replace('|', '&#124;')} |" for run in runs for text in run.get("defects", ())]
    return "\n".join(["| what was found |", "|---|", *rows]) + "\n" if rows else ""


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for kind, text in SECTIONS.items():
        runs = records(kind)
        if not runs:
            continue
        title, description = text.split(": ")
        parts.append(f"## {title}\n\n{description[0].upper()}{description[1:]}\n\n{table(kind, runs)}")
        if found := defects(runs):
            parts.append(found)
        if kind == "soak" and (PAGE.parent / SOAK_PLOT).exists():
            parts.append(f"![Memory, objects, descriptors, files and disk over the virtual days]({SOAK_PLOT})\n")
    return "\n".join(parts)


def faults_page() -> str:
    """Return the page of the site with the injected faults."""
    parts = [FAULTS]
    for kind, text in SECTIONS.items():
        if injected := faults(records(kind)):
            parts.append(f"## {text.split(': ')[0]}\n\n{injected}")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
