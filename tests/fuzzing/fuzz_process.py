"""The process that fuzzes a target: `python -m tests.fuzzing.fuzz_process MODULE:CLASS FOLDER [options of libFuzzer]`.

It imports only the target's module, as instrumentation takes seconds of CPU for all of the package.

libFuzzer ends its process, so the parent (`__main__`) reads the numbers from its output. Inputs that take long are
written to FOLDER/slow: the parent measures them again, without the instrumentation. If a target keeps state,
FOLDER/inputs-since-open has all inputs that ran in it.
"""

from __future__ import annotations

import hashlib
import sys
from importlib import import_module
from pathlib import Path

import atheris

from .target import MAX_GROWTH_BYTES, MAX_STALL_SECONDS, Cost, Target, line_of, resident_bytes

#: inputs before the memory is measured, and between two measurements
_WARM_UP, _MEASURED_EVERY = 4000, 1000
_MOST_SLOW = 100


class GrowthError(AssertionError):
    """An input, or many, that let the memory grow by more than the limit."""


class Runs:
    """Runs of a target under libFuzzer."""

    def __init__(self, target: Target, folder: Path) -> None:
        self._target = target
        self._slow = folder / "slow"
        self._count = 0
        self._resident = 0
        self._inputs = (folder / "inputs-since-open").open("w")

    def run(self, data: bytes) -> None:
        target = self._target
        if target.renewed_after and self._count and self._count % target.renewed_after == 0:
            target.close()
            target.open()
            self._inputs.seek(0)
            self._inputs.truncate()
        self._count += 1
        if target.renewed_after:
            self._inputs.write(line_of(data))
            self._inputs.flush()  # also if the process is killed
        with Cost() as cost:
            target.run(data)
        if cost.bytes > MAX_GROWTH_BYTES:
            raise GrowthError(f"an input of {len(data)} bytes takes {cost.bytes >> 20} MiB")
        if cost.seconds > MAX_STALL_SECONDS and len(list(self._slow.iterdir())) < _MOST_SLOW:
            (self._slow / hashlib.sha1(data).hexdigest()).write_bytes(data)
        if self._count == _WARM_UP:
            self._resident = resident_bytes()
        elif self._count > _WARM_UP and self._count % _MEASURED_EVERY == 0:
            growth = resident_bytes() - self._resident
            if growth > MAX_GROWTH_BYTES:
                raise GrowthError(f"{self._count - _WARM_UP} inputs leave {growth >> 20} MiB")

    def mutate(self, data: bytes, max_bytes: int, random: int) -> bytes:
        mutated = self._target.mutate(data, random)
        if mutated is None or len(mutated) > max_bytes:
            return bytes(atheris.Mutate(data, max_bytes))
        return mutated


def main() -> None:
    """Fuzz until libFuzzer ends the process."""
    place, folder, *options = sys.argv[1:]
    module, name = place.split(":")
    with atheris.instrument_imports(include=["kombu_opendata"]):
        target: Target = getattr(import_module(module), name)()
    target.open()
    runs = Runs(target, Path(folder))
    mutator = {"custom_mutator": runs.mutate} if type(target).mutate is not Target.mutate else {}
    atheris.Setup([sys.argv[0], *options], runs.run, **mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
