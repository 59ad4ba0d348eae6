"""Instructions per publish, delivery and ack: ``python -m tests.benchmarks.instructions``.

Callgrind counts them in client and broker (:mod:`.instructions_program`), so the numbers hardly depend on the machine
and its load, but on the version of Python. ``instructions.toml`` has the budgets, which ``test_instructions.py``
compares with a new count; the data page of the benchmark shows them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

from .processes import BenchError

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: of the budgets
PYTHON = "Python 3.11"
MESSAGES = 100
#: the stretches that end with these marks, of the warm-up, of a round and of one with twice as many messages
_STRETCHES = ("publish", "delivery", "ack")
_MARKS = 1 + len(_STRETCHES)
#: callgrind's numbers of the main thread and of the one that is started first
THREADS = {"client": 1, "broker": 2}
#: by how much a count may exceed its budget: the version of the C library and the turns of the threads differ
TOLERANCE = 1.12
Counts = dict[str, dict[str, int]]


class Budget(NamedTuple):
    """Instructions per message: those that are allowed, and those before the budgets were introduced."""

    now: int
    before: int


def find_valgrind() -> str | None:
    return shutil.which("valgrind")


def count(valgrind: str, messages: int = MESSAGES) -> Counts:
    """Return the instructions per message, by the stretch and by ``client`` or ``broker``.

    Each is a difference between two rounds of unequal size, so that what does not depend on the messages is left out.

    Raises:
        BenchError: the program failed, or its parts can't be told apart.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [
            valgrind, "--tool=callgrind", "--separate-threads=yes", "--dump-before=getppid",
            f"--callgrind-out-file={folder}/out", sys.executable, "-m", "tests.benchmarks.instructions_program",
            f"{folder}/store", str(messages),
        ]  # fmt: skip
        env = os.environ | {"PYTHONHASHSEED": "0"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # else it would compile all modules
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"the counted program has failed: {done.stdout[-1000:]}\n{done.stderr[-3000:]}")
        totals = {name: _totals(Path(folder), thread) for name, thread in THREADS.items()}
    counts: Counts = {}
    for place, stretch in enumerate(_STRETCHES, 1):
        counts[stretch] = {
            name: round((parts[_MARKS + place] - parts[place]) / messages) for name, parts in totals.items()
        }
    return counts


def _totals(folder: Path, thread: int) -> list[int]:
    """Return the instructions of one thread in each stretch, in order."""
    parts: dict[int, int] = {}
    for path in folder.glob(f"out.*-{thread:02}"):
        text = path.read_text(encoding="utf-8", errors="replace")
        part, total = (re.search(rf"^{name}: (\d+)", text, re.MULTILINE) for name in ("part", "summary"))
        if part is None or total is None:
            raise BenchError(f"callgrind's file {path.name} has no total")
        parts[int(part[1])] = int(total[1])
    if len(parts) != 2 * _MARKS:
        raise BenchError(f"callgrind wrote {len(parts)} parts of thread {thread} instead of {2 * _MARKS}")
    return [parts[number] for number in sorted(parts)]


def budgets() -> dict[str, dict[str, Budget]]:
    """Return the budgets by the names of :func:`count`."""
    stretches = tomllib.loads((HERE / "instructions.toml").read_text(encoding="utf-8"))
    return {
        stretch: {side: Budget(*numbers) for side, numbers in sides.items()} for stretch, sides in stretches.items()
    }


def main() -> None:
    valgrind = find_valgrind()
    if valgrind is None:
        sys.exit("valgrind is missing: install the package valgrind")
    limits = budgets()
    for stretch, sides in count(valgrind).items():
        for side, instructions in sides.items():
            print(f"{stretch:9} {side:7} {instructions:9,} of {limits[stretch][side].now:9,}")


if __name__ == "__main__":
    main()
