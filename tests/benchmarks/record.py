"""The samples behind the page, in a file beside it, workload by workload.

All of a workload comes from one run, in which the brokers took turns. So a workload that is measured again replaces
what the file has of it, and a run that was interrupted, or that measures some workloads only, keeps the others.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from .results import Results
from .workloads import Sizes

#: sizes that the command line can change
_CHANGEABLE = ("backlog", "peers_backlog", "curve_backlog")


class Measured(msgspec.Struct, frozen=True):
    """The measurements of one workload in one run.

    Attributes:
        facts: of the machine, as :func:`.machine.facts` gives them.
        versions: of the brokers, by name.
        rounds: how often each broker had its turn.
        sizes: those that the command line can change.
        samples: (row, series, values in the order of the rounds).
        points: (curve, quantity, size, values).
    """

    facts: dict[str, str]
    versions: dict[str, str]
    rounds: int
    minutes: float
    sizes: dict[str, int | tuple[int, ...]]
    samples: list[tuple[str, str, list[float]]] = []
    points: list[tuple[str, str, int, list[float]]] = []
    failures: dict[str, str] = {}
    remarks: list[str] = []


def measured(
    results: Results, sizes: Sizes, facts: dict[str, str], versions: dict[str, str], seconds: float
) -> Measured:
    """The record of a workload whose results these are."""
    return Measured(
        facts,
        versions,
        sizes.rounds,
        round(seconds / 60, 1),
        {name: getattr(sizes, name) for name in _CHANGEABLE},
        [(key, series, values) for (key, series), values in results.samples.items()],
        [
            (curve, quantity, size, values)
            for (curve, quantity), sized in results.points.items()
            for size, values in sized.items()
        ],
        results.failures,
        results.remarks,
    )


class Record:
    """The workloads measured so far, in the order of the page.

    Args:
        path: the file, which is read if it is there, and written after each workload; None keeps nothing.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.workloads: dict[str, Measured] = {}
        if path is not None and path.exists():
            self.workloads = msgspec.json.decode(path.read_bytes(), type=dict[str, Measured])

    def add(self, name: str, found: Measured) -> None:
        """Take what was measured in place of what was known of this workload."""
        self.workloads[name] = found
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            part = self._path.with_suffix(".part")
            part.write_bytes(msgspec.json.format(msgspec.json.encode(self.workloads), indent=1))
            part.replace(self._path)

    def results(self, skipped: dict[str, str]) -> Results:
        """All of them together."""
        merged = Results(skipped=skipped)
        for one in self.workloads.values():
            for key, series, values in one.samples:
                merged.samples[key, series].extend(values)
            for curve, quantity, size, values in one.points:
                merged.points[curve, quantity][size] = list(values)
            merged.failures |= one.failures
            merged.remarks += [remark for remark in one.remarks if remark not in merged.remarks]
        return merged

    def sizes(self, sizes: Sizes) -> Sizes:
        """With those that the workloads of the backlog had."""
        known = {
            field: one.sizes[field]
            for field, name in zip(_CHANGEABLE, ("backlog", "peers_backlog", "curves"), strict=True)
            if (one := self.workloads.get(name)) is not None
        }
        return replace(sizes, **known)  # type: ignore[arg-type]

    def versions(self) -> dict[str, str]:
        """The versions of the brokers that took part."""
        return {name: version for run in self.workloads.values() for name, version in run.versions.items()}
