"""A model of a broker that commits in groups: messages arrive, a turn takes all that wait, one commit answers them.

On a folder the event loop waits for its commit (``storage/commit/journal.py``). On a bucket it goes on meanwhile, and
the next commit waits a moment for the clients that were just answered (``broker/delivery/gathering.py``). Service times
are fixed; arrivals are random, from a seed. All times are in microseconds.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

#: as in broker/delivery/gathering.py: the part of a commit for which the next one waits, and the longest wait
_GATHER_PART, _GATHER_MOST = 0.2, 50_000.0
#: as in docs/limits.md: what a client that floods gets of a turn
_SLICE = 2_000.0
_SEED = 16


@dataclass(frozen=True)
class Costs:
    """What a broker's work takes.

    Attributes:
        message: the event loop, for each message.
        turn: the event loop, for each commit.
        commit: the disk or the bucket, for each commit.
        is_bucket: the event loop goes on during a commit.
        instances: among which the messages are spread evenly; each has commits of its own. A folder's only.
        is_flooded: another client always has more to do. A folder's only.
    """

    message: float
    turn: float
    commit: float
    is_bucket: bool = False
    instances: int = 1
    is_flooded: bool = False

    def on_bucket(self, request_ms: float) -> Costs:
        """The same work with a commit that is a request to a bucket."""
        return replace(self, commit=1000 * request_ms, is_bucket=True)


@dataclass(frozen=True)
class Outcome:
    """What became of the messages: how long each waited for its answer, in order; the commits, and the time of all."""

    waits: list[float]
    commits: int
    elapsed: float

    @property
    def rate(self) -> float:
        """Messages a second."""
        return 1e6 * len(self.waits) / self.elapsed

    def percentile(self, percent: float) -> float:
        """Of the waits."""
        return self.waits[math.ceil(percent / 100 * len(self.waits)) - 1]

    @property
    def commits_per_second(self) -> float:
        return 1e6 * self.commits / self.elapsed


def arrive(costs: Costs, rate: float, messages: int = 20_000, *, together: int = 0) -> Outcome:
    """Messages that arrive whether others are answered or not, `rate` a second.

    Args:
        together: they come at even intervals, so many at once; 0: at random (a Poisson process).
    """
    if together:
        times = [number // together * together * 1e6 / rate for number in range(messages)]
        return _run(costs, times, messages, None)
    source = random.Random(_SEED)
    now, times = 0.0, []
    for _ in range(messages):
        now += source.expovariate(rate / 1e6)
        times.append(now)
    return _run(costs, times, messages, None)


def take_turns(costs: Costs, clients: int, think: float, messages: int = 20_000) -> Outcome:
    """Clients that publish again when they are answered, on one core that they share, `think` for each publish."""
    free = 0.0

    def again(now: float) -> float:
        nonlocal free
        free = max(free, now) + think
        return free

    return _run(costs, [again(0.0) for _ in range(clients)], messages, again)


def one_by_one(costs: Costs, rate: float) -> float | None:
    """The mean wait if each message had a commit of its own, a queue M/D/1; None if they come too fast."""
    service = costs.message + costs.turn + costs.commit
    load = rate * service / 1e6
    return service + load * service / (2 * (1 - load)) if load < 1 else None


def _run(costs: Costs, times: list[float], messages: int, again: Callable[[float], float] | None) -> Outcome:
    serve = _serve_bucket if costs.is_bucket else _serve_folder
    waits: list[float] = []
    began = times[0]
    answers, ended = serve(costs, times, messages, again, waits)
    return Outcome(sorted(waits), answers, ended - began)


def _serve_folder(
    costs: Costs, times: list[float], messages: int, again: Callable[[float], float] | None, waits: list[float]
) -> tuple[int, float]:
    """Turns of an event loop that waits for each commit; returns how many commits there were, and when they ended."""
    source, now, commits = random.Random(_SEED), 0.0, 0
    flood = replace(costs, is_flooded=False, message=0.0, turn=costs.turn + max(_SLICE, costs.commit))
    while times and len(waits) < messages:
        if costs.is_flooded:
            while now < times[0]:
                now += flood.turn + flood.commit
            now += max(_SLICE, costs.commit)
        now = max(now, times[0])
        taken = _take(times, now)
        shares: Counter[int] = Counter(source.randrange(costs.instances) for _ in taken)
        for share in shares.values():
            now += costs.turn + share * costs.message + costs.commit
            commits += 1
            mine, taken = taken[:share], taken[share:]
            _answer(mine, now, waits, times, again)
    return commits, now


def _serve_bucket(
    costs: Costs, times: list[float], messages: int, again: Callable[[float], float] | None, waits: list[float]
) -> tuple[int, float]:
    """Commits one after another beside an event loop; as :func:`_serve_folder`."""
    loop = ended = 0.0
    commits = expected = 0
    while times and len(waits) < messages:
        group: list[float] = []
        begin = max(ended, times[0])
        until = ended + min(_GATHER_PART * costs.commit, _GATHER_MOST) if expected > 1 else begin
        while times and (times[0] <= begin or (len(group) < expected and times[0] <= until)):
            came = heapq.heappop(times)
            group.append(came)
            loop = max(loop, came) + costs.message
            begin = max(begin, loop)
        if len(group) < expected:
            begin = max(begin, until)
        ended = begin + costs.turn + costs.commit
        commits, expected = commits + 1, len(group)
        _answer(group, ended, waits, times, again)
    return commits, ended


def _take(times: list[float], now: float) -> list[float]:
    taken = []
    while times and times[0] <= now:
        taken.append(heapq.heappop(times))
    return taken


def _answer(
    group: list[float], now: float, waits: list[float], times: list[float], again: Callable[[float], float] | None
) -> None:
    for came in group:
        waits.append(now - came)
        if again is not None:
            heapq.heappush(times, again(now))
