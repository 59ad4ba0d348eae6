"""Health of the broker: its state, and the state of its stores. Probes, systemd and the status call use it.

=============  ========================================================================================
state          meaning
=============  ========================================================================================
``starting``   the store is being opened; clients wait
``standby``    another broker is active; clients are sent there
``active``     it serves
``stopping``   it sends its clients a goodbye and closes the store
=============  ========================================================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from ...storage.clock import Clock
from ..instance.instance import Instance
from ..wire.standby_connections import Gate

State = Literal["starting", "standby", "active", "stopping"]


class Health:
    """State of one broker, in its event loop."""

    def __init__(self, gate: Gate, instances: Mapping[str, Instance], clock: Clock) -> None:
        self._gate, self._instances, self._clock = gate, instances, clock
        self._is_stopping = False
        self.ticked_at = time.monotonic()  # the time of the last tick in the event loop, by the monotonic clock
        #: called when the state changes, or when a store stalls or recovers
        self.watchers: list[Callable[[], None]] = []
        #: the time since which a store accepts no writes, by instance, in milliseconds since the epoch
        self.stalled_since_ms: dict[str, int] = {}
        gate.watchers.append(self._changed)

    @property
    def state(self) -> State:
        if self._is_stopping:
            return "stopping"
        if self._gate.sends_away:
            return "standby"
        return "active" if self._gate.is_open else "starting"

    @property
    def fault(self) -> str:
        """Reason why clients are not served; empty if they are."""
        if self.state == "standby":
            return f"another broker is active: {', '.join(self._gate.active) or 'where is not known'}"
        if self.state != "active":
            return f"the broker is {self.state}"
        for name, since in self.stalled_since_ms.items():
            at = datetime.fromtimestamp(since // 1000, UTC).isoformat().replace("+00:00", "Z")
            return f"the store of instance {name} has taken no writes since {at}"
        return ""

    def report(self) -> dict[str, Any]:
        """Return the report for probes and the status call."""
        now = self._clock.now_ms()
        return {
            "state": self.state,
            "ready": not self.fault,
            "reason": self.fault,
            "stalled_seconds": {name: round((now - at) / 1000, 1) for name, at in self.stalled_since_ms.items()},
        }

    def stop(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self._changed()

    def tick(self) -> None:
        """Check whether the stores take writes. Called twice per second."""
        self.ticked_at = time.monotonic()
        now = self._clock.now_ms()
        stalled = {
            name: self.stalled_since_ms.get(name, now - int(1000 * seconds))
            for name, instance in self._instances.items()
            if (seconds := instance.engine.stalled_seconds)
        }
        if stalled != self.stalled_since_ms:
            self.stalled_since_ms = stalled
            self._changed()

    def _changed(self) -> None:
        for watcher in self.watchers:
            watcher()
