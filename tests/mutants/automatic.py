"""Automatic mutation: `python -m tests.mutants.automatic MODULE …` lets mutmut change the hardest modules.

mutmut changes one expression at a time in a copy, and runs the tests of TESTS that call the changed function. A mutant
that they don't find survives, also if none of them calls the function ("unreached"). Survivors that no test can find
are in `survivors.toml` with the reason: the changed lines name them, since mutmut's numbers change with the code. Any
other survivor is printed, and the program fails.

The tests of a mutant run in a process that is forked from one that has run no test (`forkserver`): SlateDB's threads
end with a fork, so behind a test that has opened a store, every test of a store would hang and count as a find.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..reliability.runs import commit, record
from .__main__ import ROOT, Checkout

#: the tests of each module, below tests
TESTS = {
    "broker/delivery/delivery_turn.py": ["unit/broker/delivery"],
    "broker/metrics/metrics_memory.py": ["unit/broker/metrics"],
    "broker/standby/bucket_active_role.py": ["unit/broker/standby"],
    "broker/wire/inbox.py": ["unit/broker/wire"],
    "client/session/session_link.py": [
        "unit/client/test_broker_connection.py",
        "unit/client/test_resume.py",
        "unit/client/test_waiting.py",
    ],
    "storage/commit/power_loss.py": ["unit/storage/commit/test_power_loss.py"],
    "storage/maintain/size_limit.py": ["unit/storage/maintain/test_size_limit.py"],
    "storage/maintain/upkeep.py": ["unit/storage/maintain/test_upkeep.py", "unit/storage/test_engine_limits.py"],
    "storage/operations/queue_loader.py": [
        "unit/storage/operations/test_queue_loader.py",
        "property/test_cold_order.py",
    ],
    "storage/state/cold_summaries.py": [
        "unit/storage/state/test_cold_summaries.py",
        "unit/storage/state/test_queue_state.py",
        "unit/storage/state/test_partitions.py",
        "unit/storage/operations/test_queue_loader.py",
        "property/test_cold_order.py",
    ],
    "storage/state/history_log.py": ["unit/storage/state/test_history_log.py"],
    "web/user_clients.py": ["unit/web/test_user_clients.py"],
}
DIGITS = "0123456789"
SURVIVORS = Path(__file__).parent / "survivors.toml"
#: a mutant may take so many times as long as its tests
_TIMES = 3
#: what is changed of no interest: texts for people
_UNCHANGED = [r"\blog\.\w+\(", r"\braise \w+\("]
_CONFIGURATION = """
[tool.mutmut]
source_paths = ["kombu_opendata"]
only_mutate = ["kombu_opendata/{module}"]
do_not_mutate_patterns = {unchanged}
pytest_add_cli_args = ["-p", "no:cacheprovider", "--hypothesis-profile=unshrunk", "-m", "not slow"]
pytest_add_cli_args_test_selection = {tests}
process_isolation = "forkserver"
timeout_multiplier = {times}
timeout_constant = {timeout}
type_check_command = [
    "mypy", "--config-file=", "--ignore-missing-imports", "--output=json", "--cache-dir={cache}",
    "kombu_opendata/{module}"
]
"""


class Survivor(NamedTuple):
    """A mutant that no test has found, by the lines that it changes."""

    module: str
    function: str
    before: str
    after: str

    def __str__(self) -> str:
        fields = zip(self._fields, self, strict=True)
        return "[[survivor]]\n" + "".join(f"{name} = '''{value}'''\n" for name, value in fields)


def explained() -> dict[Survivor, str]:
    """Return the survivors of `survivors.toml`, and why no test can find each."""
    rows = tomllib.loads(SURVIVORS.read_text())["survivor"]
    return {Survivor(*(row[name] for name in Survivor._fields)): row["reason"] for row in rows}


class Mutation:
    """A run of mutmut for one module, in a copy of this checkout."""

    def __init__(self, folder: Path, module: str, timeout: float) -> None:
        self.folder, self.module = Checkout(folder).folder, module
        text = _CONFIGURATION.format(
            module=module,
            unchanged=json.dumps(_UNCHANGED),
            tests=json.dumps([f"tests/{test}" for test in TESTS[module]]),
            times=_TIMES,
            timeout=timeout / _TIMES,
            cache=ROOT / ".mypy_cache" / "mutants",
        )
        with (folder / "pyproject.toml").open("a") as file:
            file.write(text)
        (folder / "mutants").mkdir()  # which is on the import path before mutmut writes it

    def run(self, numbers: str) -> None:
        """Judge the mutants whose number ends with one of these digits."""
        self._mutmut("run", "--max-children", "1", *(f"*__mutmut_*{digit}" for digit in numbers))

    def verdicts(self) -> dict[str, str]:
        """Return the verdict of each mutant."""
        lines = self._mutmut("results", "--all", "true").splitlines()
        return dict(line.strip().split(": ") for line in lines if "__mutmut_" in line)

    def survivors(self, *verdicts: str) -> Iterator[Survivor]:
        """Yield the mutants with these verdicts."""
        for name, verdict in self.verdicts().items():
            if verdict in verdicts:
                lines = self._mutmut("show", name).splitlines()
                before, after = (
                    "\n".join(line[1:].strip() for line in lines if re.match(rf"{sign}(?!{sign})", line))
                    for sign in (r"-", r"\+")
                )
                yield Survivor(self.module, _function(name), before, after)

    def functions(self, verdict: str) -> list[str]:
        """Return the functions whose mutants have this verdict."""
        return sorted({_function(name) for name, each in self.verdicts().items() if each == verdict})

    def _mutmut(self, *arguments: str) -> str:
        command = ["mutmut", *arguments]
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.folder / "mutants"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr}")
        return done.stdout


def _function(name: str) -> str:
    """Return the function of a mutant, as in ``Inbox.take_in``."""
    return re.sub(r"^x_|^xǁ|__mutmut_\d+$", "", name.rsplit(".", 1)[1]).replace("ǁ", ".")


def main() -> int:
    """Mutate the modules that the command line names, or all of TESTS; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants.automatic", description="Change the hardest modules."
    )
    parser.add_argument("modules", nargs="*", help="below kombu_opendata; all of TESTS by default")
    parser.add_argument("--numbers", default=DIGITS, help="only mutants whose number ends with one of these digits")
    parser.add_argument("--timeout", type=float, default=30, help="seconds beyond thrice its tests' (default: 30)")
    arguments = parser.parse_args()
    known, unexplained, code = explained(), 0, commit()
    print("| module | mutants | found | explained | survivors | not reached | seconds |", flush=True)
    print("|---|---|---|---|---|---|---|", flush=True)
    for module in arguments.modules or TESTS:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
            mutation = Mutation(Path(folder), module, arguments.timeout)
            mutation.run(arguments.numbers)
            survivors, unreached = (
                list(mutation.survivors("survived", "suspicious")),
                list(mutation.survivors("no tests")),
            )
            late = mutation.functions("timeout")
            count = Counter(mutation.verdicts().values())
        left, missed = ([each for each in mutants if each not in known] for mutants in (survivors, unreached))
        unexplained += len(left) + len(missed)
        judged = sum(count.values()) - count["not checked"]
        found = judged - len(survivors) - len(unreached)
        seconds = time.monotonic() - start
        numbers = {
            "mutants": judged,
            "found": found,
            "explained": judged - found - len(left) - len(missed),
            "survivors": len(left),
            "unreached": len(missed),
        }
        print("|", " | ".join(map(str, [module, *numbers.values()])), f"| {seconds:.0f} |", flush=True)
        if os.environ.get("RECORD"):
            sample = "" if arguments.numbers == DIGITS else f' ARGS="--numbers {arguments.numbers}"'
            record("mutation", f"make mutation MODULE={module}{sample}", seconds, numbers, code=code)
        if missed:
            functions = sorted({each.function for each in missed})
            print(f"# not reached in {module}:", ", ".join(functions), file=sys.stderr)
        if late:
            print(f"# found by a time-out in {module}, so on a busy machine perhaps not:", *late, file=sys.stderr)
        print(*left, *missed, sep="\n", end="", file=sys.stderr, flush=True)
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
