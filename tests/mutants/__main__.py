"""Planted bugs: `python -m tests.mutants` applies each patch of this folder to a copy, and tests must find it.

A patch begins with its title, the points of docs/contract.md that it breaks, and the tests that should find it. These
run first, then all fast tests (unit, property, golden). A mutant is found if one of them fails, and passes without the
patch. The program fails if a mutant survives, or if a patch no longer applies: then make it again for the changed code.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from ..reliability.runs import commit, record
from ..support.processes import INTERRUPTIBLE

ROOT = Path(__file__).resolve().parents[2]
FAST = ("tests/unit", "tests/property", "tests/golden")
_HEAD = re.compile(r".+\npoints: (?P<points>[\d ]+)\ntests: (?P<tests>.+)\n\n---")


class Mutant(NamedTuple):
    """A planted bug."""

    path: Path
    points: list[int]
    tests: list[str]

    @property
    def name(self) -> str:
        return self.path.stem


class Verdict(NamedTuple):
    """The test that found a mutant, and the seconds until then; or the reason why it is not found."""

    mutant: Mutant
    found_by: str
    seconds: float
    problem: str = ""

    def __str__(self) -> str:
        points = ", ".join(map(str, self.mutant.points))
        return f"| {self.mutant.name} | {points} | {self.found_by or f'**{self.problem}**'} | {self.seconds:.0f} |"


def mutants() -> list[Mutant]:
    """Return the mutants of this folder, in the order of their names."""
    return [_mutant(path) for path in sorted(Path(__file__).parent.glob("*.patch"))]


def _mutant(path: Path) -> Mutant:
    head = _HEAD.match(path.read_text())
    if head is None:
        raise ValueError(f"{path} does not begin with a title, points, tests and an empty line")
    return Mutant(path, [int(point) for point in head["points"].split()], head["tests"].split())


def apply(mutant: Mutant, folder: Path, *options: str) -> str:
    """Apply a patch to a folder; return why it does not apply, or an empty text."""
    command = ["git", "apply", *options, str(mutant.path)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stderr.strip()


class Checkout:
    """A copy of this checkout, without what git ignores."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, listed.split("\0")):
            if os.path.lexists(ROOT / name):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)

    def failed_test(self, tests: list[str], seconds: float) -> str:
        """Run tests until one fails; return it, or an empty text if none fails in this time."""
        options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=unshrunk", "-m", "not slow"]
        command = [*INTERRUPTIBLE, sys.executable, "-m", "pytest", *options, *tests]
        environment = os.environ | {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        with subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                output, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                with suppress(subprocess.TimeoutExpired):
                    process.send_signal(signal.SIGINT)  # pytest ends the processes of its tests
                    process.communicate(timeout=60)
                process.kill()
                return ""
        if process.returncode == 0:
            return ""
        failed = re.search(r"(?m)^(?:FAILED|ERROR) (tests/\S.*?)(?: - .*)?$", output)
        if process.returncode != 1 or failed is None:
            raise RuntimeError(f"pytest ended with {process.returncode}:\n{output[-3000:]}")
        return failed[1]

    def judge(self, mutant: Mutant, seconds: float, further: list[str]) -> Verdict:
        """Look for a test that finds the mutant, for this time: among those that it names, then the further ones."""
        if problem := apply(mutant, self.folder):
            return Verdict(mutant, "", 0, f"the patch does not apply: {problem.splitlines()[0]}")
        start, found_by = time.monotonic(), ""
        try:
            for tests in filter(None, (mutant.tests, further)):
                remainder = seconds - time.monotonic() + start
                found_by = found_by or (self.failed_test(tests, remainder) if remainder > 0 else "")
        finally:
            apply(mutant, self.folder, "--reverse")
        duration = time.monotonic() - start
        if found_by and self.failed_test([found_by], seconds):
            return Verdict(mutant, "", duration, f"{found_by} fails without the patch, too")
        return Verdict(mutant, found_by, duration, "not found")


@contextmanager
def _checkouts(count: int) -> Iterator[SimpleQueue[Checkout]]:
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        checkouts: SimpleQueue[Checkout] = SimpleQueue()
        for number in range(count):
            checkouts.put(Checkout(Path(folder, str(number))))
        yield checkouts


def main() -> int:
    """Judge the mutants that the command line names, or all; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Look for planted bugs.")
    parser.add_argument("names", nargs="*", help="of mutants; all by default")
    parser.add_argument("--seconds", type=float, default=180, help="for each mutant (default: 180)")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at the same time (default: 1)")
    parser.add_argument("--named", action="store_true", help="run only the tests that the patches name")
    parser.add_argument("--check", action="store_true", help="only check that each patch applies")
    arguments = parser.parse_args()
    start, code = time.monotonic(), commit()
    chosen = [mutant for mutant in mutants() if not arguments.names or mutant.name in arguments.names]
    print("| mutant | points | found by | seconds |\n|---|---|---|---|")
    with _checkouts(arguments.jobs) as checkouts, ThreadPoolExecutor(arguments.jobs) as pool:

        def judge(mutant: Mutant) -> Verdict:
            checkout = checkouts.get()
            try:
                if arguments.check:
                    problem = apply(mutant, checkout.folder, "--check")
                    return Verdict(mutant, "" if problem else "applies", 0, problem)
                return checkout.judge(mutant, arguments.seconds, [] if arguments.named else list(FAST))
            finally:
                checkouts.put(checkout)

        verdicts = []
        for verdict in pool.map(judge, chosen):
            verdicts.append(verdict)
            print(verdict, flush=True)
    count = sum(bool(verdict.found_by) for verdict in verdicts)
    if os.environ.get("RECORD") and not (arguments.check or arguments.names):
        command = f"make mutants{' ARGS=--named' * arguments.named}"
        slowest = round(max(verdict.seconds for verdict in verdicts))
        numbers = {"planted": len(verdicts), "found": count, "seconds at most": slowest}
        record("mutants", command, time.monotonic() - start, numbers, code=code)
    print(f"\n{count} of {len(verdicts)} {'apply' if arguments.check else 'found'}")
    return 0 if count == len(verdicts) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
