"""Revocation of tasks that expired in a queue: stores the result REVOKED, as a worker does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from ...errors import CorruptRecord
from ...protocol import revocation
from ...protocol.envelope import open_envelope
from ...protocol.revocation import Revocation
from ...storage.clock import Clock
from ...storage.operations.task_results import ResultStore
from ...storage.records.results import INTERIM, NO_INDEX, READY, Result
from ...storage.state.result_state import ChordState
from ..delivery.result_watches import MAX_NAME_BYTES, MAX_TTL_MS

log = logging.getLogger(__name__)


def of(envelope: bytes) -> Revocation | None:
    """Return the result to store when a message expires; None if its envelope has none, or an invalid one."""
    fields = open_envelope(envelope)
    candidate = None if fields is None else revocation.read(fields[3], fields[4])
    if candidate is None or not 0 <= candidate.ttl_ms <= MAX_TTL_MS or not -1 <= candidate.place < NO_INDEX:
        return None
    sizes = [len(candidate.name), len(candidate.task_id.encode()), *([len(candidate.chord)] if candidate.chord else [])]
    return candidate if all(0 < size <= MAX_NAME_BYTES for size in sizes) else None


class Revocations:
    """The storage of the results of expired tasks, with notifications of their watchers."""

    def __init__(
        self,
        results: ResultStore,
        chords: Mapping[bytes, ChordState],
        clock: Clock,
        changed: Callable[[bytes, Result], None],
    ) -> None:
        self._results = results
        self._chords = chords
        self._clock = clock
        self._changed = changed

    async def load(self, envelope: bytes) -> None:
        """Load the stored result of the task into memory."""
        expired = of(envelope)
        if expired is not None:
            try:
                await self._results.get(expired.name)
            except CorruptRecord as exc:
                log.error("the result of an expired task can't be read: %s", exc)

    def store(self, envelope: bytes) -> None:
        """Store the result of a task that expired, unless it has one, and count it as a part of its chord.

        Raises:
            StoreFull: nothing was stored; try again.
        """
        expired = of(envelope)
        if expired is None:
            return
        now_ms = self._clock.now_ms()
        now = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat()
        value = revocation.value(expired.task_id, now)
        current = self._results.find(expired.name)[1]
        name = expired.name if current is None or current.kind == INTERIM else b""
        chord = self._chords.get(expired.chord)
        if chord is None:
            group, ttl_ms = b"", 0
        else:
            group, ttl_ms = expired.chord, max(1, chord.expires_at_ms - now_ms) if chord.expires_at_ms else 0
        index = expired.place if expired.place >= 0 else NO_INDEX
        stored = self._results.store(
            name, READY, value, expired.ttl_ms, group, index, expired.task_id.encode(), ttl_ms
        )  # fmt: skip
        if stored and name:
            self._changed(name, Result(READY, 0, value))
        if chord is not None and chord.is_complete and chord.sender is None:
            self._fail_chord(expired, chord.body.decode(errors="replace"), now)

    def _fail_chord(self, found: Revocation, body: str, now: str) -> None:
        """Fail a complete chord with an expired part, which no worker does."""
        if body:
            name = found.name.removesuffix(found.task_id.encode()) + body.encode()
            value = revocation.failed_chord(body, found.task_id, now)
            if self._results.store(name, READY, value, found.ttl_ms):
                self._changed(name, Result(READY, 0, value))
        self._results.close_chord(found.chord)
