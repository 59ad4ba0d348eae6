"""The messages and tasks that each client has completed and failed in the last minute."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ...storage.clock import Clock
from ..model.sessions import Session

#: the interval of the samples, and the maximum number of samples
SAMPLE_MS = 5_000
_SAMPLES = 13
_MINUTE_MS = 60_000


class _Sample(NamedTuple):
    """The totals of the sessions at one time; sessions that had ended nothing are omitted."""

    at_ms: int
    ended: dict[bytes, tuple[int, int]]


class ClientRates:
    """The rates of one instance's clients."""

    def __init__(self, sessions: Mapping[bytes, Session], clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock
        self._samples = deque([_Sample(clock.now_ms(), {})], maxlen=_SAMPLES)

    def tick(self) -> None:
        """Take a sample, if one is due."""
        now = self._clock.now_ms()
        if now - self._samples[-1].at_ms >= SAMPLE_MS:
            sessions = self._sessions.items()
            busy = {id: (session.done, session.failed) for id, session in sessions if session.done or session.failed}
            self._samples.append(_Sample(now, busy))

    def of(self, sessions: Iterable[Session]) -> dict[str, float]:
        """Return a client's totals of the last minute, whose first seconds may be missing."""
        now = self._clock.now_ms()
        recent = (sample for sample in self._samples if now - sample.at_ms <= _MINUTE_MS)
        before = next(recent, self._samples[-1])
        done = failed = 0
        for session in sessions:
            old_done, old_failed = before.ended.get(session.id, (0, 0))
            done += max(session.done - old_done, 0)
            failed += max(session.failed - old_failed, 0)
        return {"done_per_minute": float(done), "failed_per_minute": float(failed)}
