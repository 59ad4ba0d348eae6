"""A file to which several processes append lines; its order is the order in which things happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from .processes import tail, wait_until


class Ledger:
    """What happened, one line each. The tasks of ``apps/farm.py`` write it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def __str__(self) -> str:
        return str(self.path)

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()

    def count(self) -> int:
        return self.path.read_bytes().count(b"\n")

    def runs(self) -> Counter[str]:
        """How often each line was written."""
        return Counter(self.lines())

    def wait_count(self, number: int, seconds: float = 60) -> None:
        wait_until(lambda: self.count() >= number, seconds, lambda: f"{number} lines, has {self.count()}")

    def wait_for(self, *lines: str, seconds: float = 60) -> None:
        """Until each of these was written."""
        wanted = set(lines)
        wait_until(lambda: wanted <= set(self.lines()), seconds, lambda: f"{wanted} in:\n{tail(self.path)}")

    def assert_once(self, expected: Iterable[str]) -> None:
        """Each of these lines is there once, and nothing else is."""
        runs = self.runs()
        wanted = set(expected)
        lost = sorted(wanted - runs.keys())
        repeated = sorted(line for line, times in runs.items() if times > 1)
        strange = sorted(runs.keys() - wanted)
        wrong = {"lost": lost, "repeated": repeated, "strange": strange}
        assert not any(wrong.values()), {name: (len(found), found[:10]) for name, found in wrong.items()}
