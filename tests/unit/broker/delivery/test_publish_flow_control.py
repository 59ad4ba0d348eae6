"""A broker that was frozen does not take that for a store that does not answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kombu_opendata.broker.delivery.publish_flow_control import StoreGate


class Broker:
    """A gate whose commit never ends.

    Attributes:
        now: the clock.
        refused: how often calls were refused.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self.now = 0.0
        self.refused = 0
        parts: Any = SimpleNamespace(refuse=self._refuse, change=lambda reason, is_closed: None)
        commits: Any = SimpleNamespace(stalled_seconds=0.0)
        self.commits = commits
        self.gate = StoreGate(commits, parts, parts, timeout_seconds, lambda: self.now)

    def _refuse(self, *_what: object) -> None:
        self.refused += 1

    def run(self, seconds: float) -> None:
        """Tick for so long."""
        for _ in range(int(2 * seconds)):
            self.wait(0.5)

    def wait(self, seconds: float) -> None:
        """Tick once, after so long."""
        self.now += seconds
        self.commits.stalled_seconds += seconds
        self.gate.tick()


def test_calls_are_refused_when_the_store_has_not_answered_in_time() -> None:
    broker = Broker(timeout_seconds=10)
    broker.run(10)
    assert not broker.refused
    assert broker.gate.is_closed
    broker.run(1)
    assert broker.refused


def test_the_time_begins_again_when_the_broker_wakes_up() -> None:
    broker = Broker(timeout_seconds=10)
    broker.run(2)
    broker.wait(30)
    broker.run(10)
    assert not broker.refused
    broker.run(1)
    assert broker.refused
