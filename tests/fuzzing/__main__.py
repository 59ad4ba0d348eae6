"""Fuzzing guided by coverage: `make fuzz TARGET=wire SECONDS=600`, or without TARGET each target for this time.

Coverage is measured by atheris (the extra `fuzz`; Linux, Python 3.11 to 3.13). An input is a finding if it makes an
exception that is not declared, takes more than 50 ms of CPU or 50 MiB of memory. The run then ends with an error, and a
file in build/fuzz has the input behind those that ran before it in the same state: `--repeat FILE` runs them. With
`--keep`, inputs that run new lines are kept in `corpus`, where `test_corpus.py` runs them without atheris.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from ..reliability.runs import commit, record
from .target import MAX_STALL_SECONDS, Cost, Target, corpus, load_inputs, save_inputs
from .targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
FINDINGS = ROOT / "build" / "fuzz"
#: of a target's corpus, before base64
_MOST_CORPUS_BYTES = 18_000
_MEASUREMENTS = 5
_SHOWN_LINES = 24


class Outcome(NamedTuple):
    """What a run of libFuzzer did."""

    executions: int
    inputs: list[bytes]
    findings: list[str]


def fuzz(name: str, seconds: int) -> Outcome:
    """Fuzz a target in a process of its own, from its seeds and its corpus."""
    target = TARGETS[name]()
    with tempfile.TemporaryDirectory(prefix="odq-fuzz-") as folder:
        inputs, slow, crashes = (Path(folder, each) for each in ("inputs", "slow", "crashes"))
        for each in (inputs, slow, crashes):
            each.mkdir()
        for data in (*target.seeds(), *load_inputs(corpus(name))):
            (inputs / hashlib.sha1(data).hexdigest()).write_bytes(data)
        tokens = Path(folder, "tokens")
        tokens.write_text("".join(f'"{_escaped(token)}"\n' for token in target.tokens or (" ",)))
        options = [
            f"-max_total_time={seconds}", f"-max_len={target.most_bytes}", f"-artifact_prefix={crashes}/",
            "-timeout=60", "-report_slow_units=3600", "-print_final_stats=1", f"-dict={tokens}", "-rss_limit_mb=2048",
            "-len_control=20", str(inputs),
        ]  # fmt: skip
        place = f"{type(target).__module__}:{type(target).__name__}"
        command = [sys.executable, "-m", f"{__package__}.fuzz_process", place, folder, *options]
        environment = os.environ | {"TMPDIR": folder}  # libFuzzer ends the process before it can remove its files
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
        output = (done.stdout + done.stderr).decode(errors="replace")
        ran = load_inputs(Path(folder, "inputs-since-open"))
        findings = [_kept(name, [*ran[:-1], path.read_bytes()], output) for path in crashes.iterdir()]
        findings += _stalls(name, [path.read_bytes() for path in slow.iterdir()])
        if done.returncode and not findings:
            findings.append(f"the process ended with {done.returncode}: {_kept(name, ran or [b''], output)}")
        counted = re.search(r"number_of_executed_units: *(\d+)", output) or re.search(r"(?s).*\n#(\d+)\s", output)
        return Outcome(int(counted[1]) if counted else 0, [path.read_bytes() for path in inputs.iterdir()], findings)


def _escaped(token: str) -> str:
    """Return a token in the form of libFuzzer's dictionaries; ``\\x`` is an escape already."""
    text = token.replace('"', '\\"')
    return "".join(c if " " <= c <= "~" else "".join(f"\\x{byte:02X}" for byte in c.encode()) for c in text)


def _kept(name: str, inputs: list[bytes], output: str) -> str:
    FINDINGS.mkdir(parents=True, exist_ok=True)
    data = inputs[-1]
    path = FINDINGS / f"{name}-{hashlib.sha1(data).hexdigest()[:12]}.txt"
    save_inputs(path, inputs)
    traceback = re.search(r"(?s)=== Uncaught Python exception: ===\n(.*?)\n(INFO|==\d+==)", output)
    lines = (traceback[1] if traceback else output).splitlines()
    shown = [*lines[:2], "…", *lines[-_SHOWN_LINES:]] if len(lines) > _SHOWN_LINES else lines
    return "\n".join((f"{path.relative_to(ROOT)} ({data[:60]!r}):", *shown))


def _summary_of(finding: str) -> str:
    """Return the file of a finding and its error."""
    lines = finding.splitlines()
    return " ".join(dict.fromkeys((lines[0], lines[-1])))[:200]


def _stalls(name: str, inputs: list[bytes]) -> list[str]:
    """Measure inputs again without instrumentation; return those that still take too long."""
    found = []
    target = TARGETS[name]()
    target.open()
    for data in inputs:
        seconds = min(_seconds(target, data) for _ in range(_MEASUREMENTS))
        if seconds > MAX_STALL_SECONDS:
            found.append(_kept(name, [data], f"it takes {1000 * seconds:.0f} ms"))
    target.close()
    return found


def _seconds(target: Target, data: bytes) -> float:
    with Cost() as cost:
        target.run(data)
    return cost.seconds


def smallest(target: Target, inputs: list[bytes]) -> list[bytes]:
    """Return the inputs, beginning with the smallest, that run a step from line to line which none before them runs."""
    seen: set[tuple[str, int, int]] = set()
    kept, size = [], 0
    for data in sorted(inputs, key=len):
        before = len(seen)
        sys.settrace(_tracer(seen))
        try:
            target.run(data)
        finally:
            sys.settrace(None)
        if len(seen) > before and size + len(data) <= _MOST_CORPUS_BYTES:
            kept.append(data)
            size += len(data)
    return kept


def _tracer(seen: set[tuple[str, int, int]]) -> Callable[[FrameType, str, Any], Any]:
    def trace(frame: FrameType, _event: str, _argument: Any) -> Any:
        file = frame.f_code.co_filename
        if "kombu_opendata" not in file:
            return None
        last = frame.f_lineno

        def line(frame: FrameType, _event: str, _argument: Any) -> Any:
            nonlocal last
            seen.add((file, last, frame.f_lineno))
            last = frame.f_lineno
            return line

        return line

    return trace


def main() -> int:
    """Fuzz the targets that the command line names, or all; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description="Fuzz what strangers' bytes reach.")
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="all by default")
    parser.add_argument("--seconds", type=int, default=600, help="for each target (default: 600)")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="run the inputs of a finding")
    parser.add_argument("--record", action="store_true", help="add the run to tests/reliability")
    parser.add_argument("--keep", action="store_true", help="keep the inputs that run new lines in the corpus")
    arguments = parser.parse_args()
    if arguments.repeat is not None:
        target = TARGETS[arguments.targets[0]]()
        target.open()
        for data in load_inputs(arguments.repeat):
            target.run(data)
        target.close()
        return 0
    failed, code = False, commit()
    for name in arguments.targets or TARGETS:
        start = time.monotonic()
        outcome = fuzz(name, arguments.seconds)
        seconds = time.monotonic() - start
        for finding in outcome.findings:
            print(f"{name}: {finding}")
        if arguments.keep and not outcome.findings:
            target = TARGETS[name]()
            target.open()
            kept = smallest(target, outcome.inputs)
            target.close()
            save_inputs(corpus(name), kept)
            print(f"{name}: {len(kept)} of {len(outcome.inputs)} inputs kept")
        if arguments.record:
            numbers = {"executions": outcome.executions, "findings": len(outcome.findings)}
            fuzzed = min(seconds, arguments.seconds)  # without the start, which takes minutes on a busy machine
            command = f"make fuzz TARGET={name}"
            defects = [_summary_of(finding) for finding in outcome.findings]
            exact = f"{command} SECONDS={arguments.seconds}"
            record("fuzz", command, fuzzed, numbers, defects=defects, exact=exact, code=code)
        print(f"{name}: {outcome.executions} inputs in {seconds:.0f} s, {len(outcome.findings)} findings", flush=True)
        failed = failed or bool(outcome.findings)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
