"""Take-overs one after the other, under load, with a checker of what was lost or came twice."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path

from tests.support.waiting import random_moment

from .ledger import Ledger
from .pair import Pair, greet
from .processes import Child, Children, free_ports, tail, wait_until
from .served import ServedBroker
from .workers import APPS

KILL, HAND_OVER, FREEZE = "kill -9", "SIGTERM", "SIGSTOP"
FENCED = 6
_PAIRS = 2
_PER_PUBLISHER = 10_000_000
_SECONDS = 120.0


class TakeOvers:
    """Two brokers of a store, and clients that publish and consume numbers.

    Attributes:
        seconds: how long each take-over took, by its cause: from the moment when the old one
            let no client in until the successor did.
    """

    def __init__(self, store: str, folder: Path, started: Children, dice: random.Random, *options: str) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._dice = dice
        self._folder = folder
        self._pair = Pair(store, folder, started, *options)
        ports = free_ports(2)
        self._active = self._pair.start(port=ports[0])
        self._pair.wait_active(self._active)
        self._standby = self._pair.start(port=ports[1])
        urls = f"opendata://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/default"
        self.ledger = Ledger(folder / "ledger")
        self._end, self._drained = folder / "end", folder / "drained"
        self._files = [folder / f"confirmed{number}" for number in range(_PAIRS)]
        self._publishers, self._consumers = [], []
        for number, file in enumerate(self._files):
            first = str(number * _PER_PUBLISHER)
            command = [APPS / "publish.py", urls, file, first, str(_PER_PUBLISHER), self._end]
            self._publishers.append(self._client(started, f"publisher{number}", command))
            command = [APPS / "consume.py", urls, self.ledger, str(dice.randrange(1 << 32)), self._drained]
            self._consumers.append(self._client(started, f"consumer{number}", command))

    def _client(self, started: Children, name: str, command: list[object]) -> Child:
        child = Child([sys.executable, *map(str, command)], self._folder / f"{name}.log", cwd=self._folder)
        started.add(child)
        return child

    def round(self, cause: str) -> float:
        """One take-over; returns how many seconds it took. The replaced broker is the standby afterwards."""
        old, new = self._active, self._standby
        self._wait_for_work()
        self._pair.wait_connected(old, _SECONDS)
        random_moment(self._dice, 0.3)
        began = time.monotonic()
        self._strike(old, cause)
        while cause == HAND_OVER and greet(old.port) is None:  # it serves until the standby may go on
            began = time.monotonic()
        seconds = self._pair.wait_active(new, _SECONDS) - began
        self.seconds[cause].append(seconds)
        if cause == FREEZE:
            os.kill(old.pid, signal.SIGCONT)
            code = old.wait(_SECONDS)
            assert code == FENCED, f"{code}: {tail(old.log)}"
        elif cause == HAND_OVER:
            assert old.wait(_SECONDS) == 0, tail(old.log)
        self._active, self._standby = new, self._pair.start(port=old.port)
        return seconds

    def _strike(self, broker: ServedBroker, cause: str) -> None:
        if cause == KILL:
            broker.kill()
        else:
            os.kill(broker.pid, signal.SIGTERM if cause == HAND_OVER else signal.SIGSTOP)

    def _wait_for_work(self) -> None:
        """Until the clients have done some work with the broker that is active now."""
        wanted = self.ledger.count() + 100
        wait_until(lambda: self.ledger.count() >= wanted, _SECONDS, self._state)
        for child in (*self._publishers, *self._consumers):
            child.check()

    def _state(self) -> str:
        logs = [child.log for child in (*self._publishers, *self._consumers, *self._pair.brokers[-3:])]
        return "\n".join(f"{log}:\n{tail(log, 15)}" for log in logs)

    def check(self) -> dict[str, int]:
        """Let the clients end; returns how many were confirmed, and were lost, and came again after their ack."""
        self._end.touch()
        for publisher in self._publishers:
            assert publisher.wait(_SECONDS) == 0, publisher.log.read_text()
        confirmed = {line for file in self._files for line in file.read_text().split()}
        wait_until(lambda: acked(self.ledger.lines()) >= confirmed, _SECONDS / 4, str)
        self._drained.touch()
        for consumer in self._consumers:
            assert consumer.wait(_SECONDS) == 0, consumer.log.read_text()
        lines = self.ledger.lines()
        again = len(again_after_ack(lines))
        for broker in (self._pair.brokers[-1], self._active):
            code = broker.terminate()
            assert code == 0, f"{code}: {tail(broker.log, 30)}"
        return {"confirmed": len(confirmed), "lost": len(confirmed - acked(lines)), "again": again}


def acked(lines: list[str]) -> set[str]:
    """The numbers that were acknowledged."""
    return {number for what, number in map(str.split, lines) if what == "ack"}


def again_after_ack(lines: list[str]) -> list[str]:
    """Lines about a number that was acknowledged before: the same message again, or a second one of one publish."""
    done: set[str] = set()
    wrong = []
    for line in lines:
        what, number = line.split()
        if number in done:
            wrong.append(line)
        elif what == "ack":
            done.add(number)
    return wrong
