"""Records of long runs: of the simulation, faults, Spark, fuzzing, soak, planted bugs and mutation.

`KIND.jsonl` beside this module has one JSON object a line, and one line for each command, version and day:

    {"command": "make faults", "version": "0.1.0", "day": "2026-11-27", "runs": 2, "seconds": 1200,
     "numbers": {"seeds": 60, "kills": 300, "anomalies": 1}, "faults": {"kill a broker": 90}, "clean_seconds": 600,
     "defects": ["SEED=7, point 1: …"], "points": {"1": 1},
     "each": [{"command": "make faults SECONDS=600 SEED=7 RUNS=60", "commit": "a309ab4e", "seconds": 600,
               "numbers": {"seeds": 60, "kills": 300, "anomalies": 1}, "first_seed": 7}]}

`command` is what a user enters to repeat the run, without its seed and its time, so that runs add up; that of `each`
run repeats it with the code of its commit (`-dirty` if files were changed). The oldest runs are not in `each`.
`numbers` are integers by a name that is a plural noun, which becomes the heading of a column; `faults` counts injected
faults by their kind ("kill -9", "bit flip"). `clean_seconds` are those of the runs since the last one that found a
defect, `defects` says what each was and how to repeat it ("3 findings: …" are three), and `points` counts anomalies by
their point of the contract, 0 for a run that did not end. A later run of the same line adds to all of these; of the
kinds in `STATES`, whose numbers describe the tests and not an effort, it replaces them.

A program records its run with `record(…)` when it was started with RECORD=yes; then
`python tools/site/reliability_page.py` writes docs/reliability.md. After a conflict in git, keep both sides' lines (two
lines of one key are summed by the page) and run the tool again.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
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


#: what a record changes, so that a later run of the same code is not of changed code
_WRITTEN = ("tests/reliability/*.jsonl", "docs/reliability.md", "docs/images/soak.svg")


class Run(msgspec.Struct, omit_defaults=True):
    """A single run: the command that repeats it with the code of its commit, and its numbers."""

    command: str
    commit: str
    seconds: int
    numbers: dict[str, int]
    first_seed: int | None = None


class Runs(msgspec.Struct, omit_defaults=True):
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
    points: dict[str, int] = msgspec.field(default_factory=dict)
    each: list[Run] = msgspec.field(default_factory=list)

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
            _sum(self.points, other.points),
            self.each + other.each,
        )


def described(defects: Sequence[str]) -> int:
    """Return the number of defects that these texts describe."""
    counts = (re.match(r"(\d+) ", text) for text in defects)
    return sum(int(count[1]) if count else 1 for count in counts)


def commit() -> str:
    """Return the commit of this checkout, with `-dirty` if its files were changed."""
    changed = _git("status", "--porcelain", "--", ":/", *(f":(top,exclude){name}" for name in _WRITTEN))
    return f"{_git('rev-parse', '--short', 'HEAD') or 'unknown'}{'-dirty' if changed else ''}"


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False).stdout.strip()


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
    points: Mapping[str, int] | None = None,
    exact: str = "",
    code: str = "",
    first_seed: int | None = None,
    day: date | None = None,
    folder: Path = FOLDER,
) -> None:
    """Add a run to the records of its kind; concurrent processes wait for each other.

    Args:
        exact: the command with all that repeats the run, if it is not ``command``.
        code: the :func:`commit` when the run began, by default the present one.
    """
    day = day or datetime.now(UTC).date()
    single = Run(exact or command, code or commit(), round(seconds), dict(numbers), first_seed)
    run = Runs(
        command,
        __version__,
        day,
        1,
        single.seconds,
        single.numbers,
        dict(faults or {}),
        defects=list(defects),
        points=dict(points or {}),
        each=[single],
    )
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
