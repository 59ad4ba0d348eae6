"""Counts every publish, run and ack, from what producers and workers wrote down."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..support.processes import wait_until


class Event(NamedTuple):
    """What happened to a task."""

    at: float
    what: str
    host: str


class Tally:
    """What is in the logs of a folder: ``sent-HOST.log`` and ``runs-HOST.log``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._excused: set[int] = set()

    def events(self, kind: str) -> dict[int, list[Event]]:
        """By the number of the task, in the order of time; a line that is being written is left out."""
        found: dict[int, list[Event]] = defaultdict(list)
        for path in sorted(self._folder.glob(f"{kind}-*.log")):
            host = path.stem.partition("-")[2]
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    at, what, number, *_ = line.split()
                    found[int(number)].append(Event(float(at), what, host))
        for events in found.values():
            events.sort()
        return found

    def confirmed(self) -> set[int]:
        """The tasks whose publishing returned."""
        return {number for number, events in self.events("sent").items() if events[-1].what == "confirmed"}

    def wait_progress(self, seconds: float = 60) -> None:
        """Wait until every producer gets a confirmation, and every worker runs something."""
        began = time.monotonic()

        def missing() -> list[str]:
            seen = {
                (event.host, event.what) for kind in ("sent", "runs") for one in self.events(kind).values()
                for event in one if event.at > began
            }  # fmt: skip
            return [f"{what} on {host}" for host in "ab" for what in ("confirmed", "ack") if (host, what) not in seen]

        wait_until(lambda: not missing(), seconds, lambda: f"nothing was {missing()}")

    def settle(self, seconds: float = 90) -> None:
        """Wait until everything that is confirmed by now has been run and acknowledged."""
        wanted = self.confirmed()

        def waiting() -> set[int]:
            runs = self.events("runs")
            return {number for number in wanted if not {"end", "ack"} <= {event.what for event in runs[number]}}

        wait_until(lambda: not waiting(), seconds, lambda: f"lost, or still waiting: {sorted(waiting())[:20]}")

    def wait_begun(self, numbers: set[int]) -> None:
        """Wait until all these run."""
        wait_until(lambda: numbers <= self.events("runs").keys(), 60, f"the beginning of {numbers}")

    def repeated(self) -> dict[int, list[Event]]:
        """The tasks that were run more than once."""
        runs = self.events("runs")
        return {number: events for number, events in runs.items() if _count(events, "run") > 1}

    def check(self, may_repeat: Callable[[list[Event]], bool] = lambda events: False) -> Counter[str]:
        """Fail if a task was run twice since the last check, unless that was allowed; returns numbers for people."""
        repeated = {number: events for number, events in self.repeated().items() if number not in self._excused}
        wrong = {number: events for number, events in repeated.items() if not may_repeat(events)}
        assert not wrong, f"{len(wrong)} of {len(repeated)} were run again: {list(_lines(wrong))[:10]}"
        self._excused |= repeated.keys()
        last = Counter(events[-1].what for events in self.events("sent").values())
        return last + Counter(repeated=len(repeated), runs=len(self.events("runs")))


def held_at_cut(host: str, at: float) -> Callable[[list[Event]], bool]:
    """Whether a task may have run twice because the host's worker held it when its link was cut, and beyond the lease.

    It is at most two runs. None of them was acknowledged before the cut.
    """

    def may_repeat(events: list[Event]) -> bool:
        acked_before = any(event.what == "ack" and event.at < at - 1.0 for event in events)
        return not acked_before and _count(events, "run") == 2 and any(event.host == host for event in events)

    return may_repeat


def _count(events: list[Event], what: str) -> int:
    return sum(event.what == what for event in events)


def _lines(tasks: dict[int, list[Event]]) -> Iterator[str]:
    for number, events in tasks.items():
        yield f"{number}: " + ", ".join(f"{event.what}@{event.host} {event.at:.2f}" for event in events)
