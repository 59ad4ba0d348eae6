"""docs/reliability.md, from the records in tests/reliability (its module `runs` has their format).

``python tools/site/reliability_page.py`` writes the page.
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

Long runs of the tests of the [contract](contract.md). Anomalies and findings are counted since the first run, also
fixed ones; `clean hours` are those since the last of them. `RECORD=yes` adds a run to `tests/reliability`, of which
`python tools/site/reliability_page.py` makes this page. A run with a commit can be repeated with its code, the
simulation exactly.
"""
#: single runs of a kind that are shown, the newest first
_SHOWN = 3
SECTIONS = {
    "simulation": "Simulation: brokers, clients, disk, network and time in one process, decided by a seed.",
    "faults": "Faults: real processes; a checker reads the history and the store.",
    "spark": "Spark: drivers killed at steps of a job run again, streams restart.",
    "fuzz": "Fuzzing: guided by coverage. A finding is an undeclared exception, a stall of 50 ms or growth by 50 MB.",
    "soak": "Soak: days of mixed load with a clock that is ahead.",
    "mutants": "Planted bugs: of each point of the contract.",
    "mutation": "Mutation: automatic changes of difficult modules.",
}
INJECTED = """## Injected faults

A fault with 0 needs network namespaces or the like.

"""
REMOVED = """## Removed tests

Redundant tests.

"""
#: below tests; the commit of each has the reason
REPLACED = {
    "`acceptance/test_results`: a kill while a client waits": "`acceptance/test_async_publishing`",
    "`acceptance/test_results`: results that expire": "`integration/test_results`, unit tests",
    "`acceptance/test_canvas`: a kill in a chord": "`acceptance/test_result_outages`, `make faults`",
    "`integration/broker_process/test_restarts`: publishes under kills": "`faults/test_kill_broker`, `make faults`",
    "`integration/standby/test_bucket_standby`: a frozen broker, short leases": "with default leases",
    "`faults/test_torn_journal`: a flipped bit before whole records": "`faults/test_flipped_bytes`",
    "`spark/test_long`: three kinds of kills": "kills at numbered steps",
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


def _row(*cells: str) -> str:
    """Return a row of a table. It has no spaces beside its bars, which `wc` would count as words."""
    return f"|{'|'.join(cells)}|\n"


def _head(*texts: str, numbers: int) -> str:
    """Return the head of a table whose last columns have numbers."""
    return _row(*texts) + _row(*["---"] * (len(texts) - numbers), *["---:"] * numbers)


def table(kind: str, runs: list[dict[str, Any]]) -> str:
    """Return the table of a kind: a row for each command, with the sums of all days and versions."""
    # flips were not counted by their effect at first: only the newest runs show them
    names = list(dict.fromkeys(name for run in runs for name in run["numbers"] if not name.startswith("flips ")))
    more = [] if kind in STATES else ["clean hours"]
    text = _head("command", "last run", "hours", *names, *more, numbers=1 + len(names) + len(more))
    for command in sorted({run["command"] for run in runs}):
        same = sorted((run for run in runs if run["command"] == command), key=lambda run: str(run["day"]))
        counted = same[-1:] if kind in STATES else same
        hours = sum(run["seconds"] for run in counted) / 3600
        sums = [sum(run["numbers"].get(name, 0) for run in counted) for name in names]
        cells = [f"`{command}`", same[-1]["day"], f"{hours:.1f}", *(f"{total:,}" for total in sums)]
        cells += [f"{clean_seconds(same) / 3600:.1f}" for _ in more]
        text += _row(*cells)
    return text


def clean_seconds(runs: list[dict[str, Any]]) -> int:
    """Return the time of the runs since the last one that found a defect."""
    total = 0
    for run in runs:
        has_defects = any(run["numbers"].get(name) for name in DEFECTS)
        total = 0 if has_defects else total
        total += run.get("clean_seconds", 0 if has_defects else run["seconds"])
    return total


def latest(runs: list[dict[str, Any]]) -> str:
    """Return the table of the newest runs with seeds, below the sums of the runs since the last anomaly.

    A number that a run did not record is shown as a dash.
    """
    each = [run for line in sorted(runs, key=lambda line: str(line["day"])) for run in line.get("each", ())]
    each = [run for run in each if "first_seed" in run]
    if not each:
        return ""
    found = [place for place, run in enumerate(each, 1) if any(run["numbers"].get(name) for name in DEFECTS)]
    clean = each[max(found, default=0) :]
    names = list(dict.fromkeys(name for run in each for name in run["numbers"]))

    def row(first: list[str], some: list[dict[str, Any]]) -> str:
        hours = f"{sum(run['seconds'] for run in some) / 3600:.2f}"
        counts = [[run["numbers"][name] for run in some if name in run["numbers"]] for name in names]
        return _row(*first, hours, *(f"{sum(each):,}" if each or not some else "–" for each in counts))

    rows = [row(["since the last anomaly", "", ""], clean)]
    for run in each[: -_SHOWN - 1 : -1]:
        rows.append(row([f"`{run['command']}`", run["commit"], str(run["first_seed"])], [run]))
    return _head("run", "commit", "first seed", "hours", *names, numbers=2 + len(names)) + "".join(rows)


def faults(kinds: dict[str, list[dict[str, Any]]]) -> str:
    """Return the table of the faults that runs of each kind have injected, most frequent first."""
    text = _head("runs", "injected faults", numbers=0)
    for kind, runs in kinds.items():
        counts: Counter[str] = Counter()
        for run in runs:
            counts.update(run.get("faults", {}))
        if counts:
            text += _row(kind, ", ".join(f"{name} {count:,}" for name, count in counts.most_common()))
    return text


def points(runs: list[dict[str, Any]]) -> str:
    """Return the table of anomalies by their point of the contract."""
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run.get("points", {}))
    unknown = sum(run["numbers"].get("anomalies", 0) for run in runs) - counts.total()
    if not counts:
        return ""
    numbers = sorted(counts, key=int)
    heads = ["run did not end" if number == "0" else f"point {number}" for number in numbers]
    head = _head("", *heads, "not recorded", numbers=len(numbers) + 1)
    return head + _row("anomalies", *(f"{counts[number]:,}" for number in numbers), f"{unknown:,}")


def defects(runs: list[dict[str, Any]]) -> str:
    """Return the table of the recorded anomalies and findings, with the seed that repeats each."""
    rows = [_row(text.replace("|", "&#124;")) for run in runs for text in run.get("defects", ())]
    return _head("what was found", numbers=0) + "".join(rows) if rows else ""


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for kind, text in SECTIONS.items():
        runs = records(kind)
        if not runs:
            continue
        title, description = text.split(": ")
        parts.append(f"## {title}\n\n{description[0].upper()}{description[1:]}\n\n{table(kind, runs)}")
        parts += filter(None, (latest(runs), points(runs), defects(runs)))
        if kind == "soak" and (PAGE.parent / SOAK_PLOT).exists():
            parts.append(f"![Memory, files and disk over virtual days]({SOAK_PLOT})\n")
    parts.append(INJECTED + faults({kind: records(kind) for kind in SECTIONS}))
    rows = "".join(_row(removed, by) for removed, by in REPLACED.items())
    parts.append(REMOVED + _head("removed", "found by", numbers=0) + rows)
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
