"""Records of long runs: of the simulation, faults, Spark, fuzzing, soak, planted bugs and mutation.

`KIND.jsonl` beside this module has one JSON object a line, and one line for each command, version and day:

    {"command": "make fuzz TARGET=wire", "version": "0.1.0", "day": "2026-11-27", "runs": 2, "seconds": 1200,
     "numbers": {"executions": 100000, "findings": 0}, "faults": {}, "clean_seconds": 1200}

`command` is what a user enters to repeat the run, without its seed and its time, so that runs add up. `numbers` are
integers by a name that is a plural noun, which becomes the heading of a column; `faults` counts injected faults by
their kind ("kill -9", "bit flip"). `clean_seconds` are those of the runs since the last one that found a defect, and
`defects` says what each was and how to repeat it. A later run of the same line adds to `runs`, `seconds`, `numbers`,
`faults` and `defects`; of the kinds in `STATES`, whose numbers describe the tests and not an effort, it replaces them.

A program records its run with `record(…)` when it was started with RECORD=yes; then
`python tools/site/reliability_page.py` writes docs/reliability.md. After a conflict in git, keep both sides' lines (two
lines of one key are summed by the page) and run the tool again.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Literal

import msgspec

from kombu_opendata.version import __version__

FOLDER = Path(__file__).parent
Kind = Literal["simulation", "faults", "spark", "fuzz", "soak", "mutants", "mutation"]
#: the kinds of which only the newest run of a line counts
STATES = ("mutants", "mutation")
#: the numbers of defects
DEFECTS = ("anomalies", "findings", "growing")


class Runs(msgspec.Struct):
    """The runs of a command with one version on one day."""

    command: str
    version: str
    day: date
    runs: int
    seconds: int
    numbers: dict[str, int]
    faults: dict[str, int] = msgspec.field(default_factory=dict)
    clean_seconds: int = -1
    defects: list[str] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        if self.clean_seconds < 0:
            self.clean_seconds = 0 if self.has_defects else self.seconds

    @property
    def has_defects(self) -> bool:
        return any(self.numbers.get(name) for name in DEFECTS)

    def key(self) -> tuple[str, str, date]:
        return self.command, self.version, self.day

    def __add__(self, other: Runs) -> Runs:
        return Runs(
            *self.key(),
            self.runs + other.runs,
            self.seconds + other.seconds,
            _sum(self.numbers, other.numbers),
            _sum(self.faults, other.faults),
            other.clean_seconds + (0 if other.has_defects else self.clean_seconds),
            self.defects + other.defects,
        )


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    total = Counter(one)
    total.update(other)  # unlike +, this keeps zeros
    return dict(total)


def record(
    kind: Kind,
    command: str,
    seconds: float,
    numbers: Mapping[str, int],
    faults: Mapping[str, int] | None = None,
    *,
    defects: Sequence[str] = (),
    day: date | None = None,
    folder: Path = FOLDER,
) -> None:
    """Add a run to the records of its kind; concurrent processes wait for each other."""
    day = day or datetime.now(UTC).date()
    run = Runs(command, __version__, day, 1, round(seconds), dict(numbers), dict(faults or {}), defects=list(defects))
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lines: dict[tuple[str, str, date], Runs] = {}
        for each in [*read(kind, folder), run]:
            earlier = None if kind in STATES else lines.get(each.key())
            lines[each.key()] = earlier + each if earlier else each
        path = folder / f"{kind}.jsonl"
        temporary = path.with_suffix(".new")
        temporary.write_bytes(b"".join(msgspec.json.encode(lines[key]) + b"\n" for key in sorted(lines)))
        temporary.replace(path)
    finally:
        os.close(lock)


def read(kind: Kind, folder: Path = FOLDER) -> list[Runs]:
    """Return the records of a kind."""
    path = folder / f"{kind}.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Runs) for line in lines]
