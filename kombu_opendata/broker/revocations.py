"""The results of tasks that expired in a queue: REVOKED, as a worker says that gets such a task too late."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ..errors import CorruptRecord
from ..protocol import revocation
from ..protocol.envelope import open_envelope
from ..protocol.revocation import Revocation
from ..storage.records.results import INTERIM, NO_INDEX, READY, Result
from .results import MAX_NAME_BYTES, MAX_TTL_MS

if TYPE_CHECKING:
    from .instance import Instance

log = logging.getLogger(__name__)


def of(envelope: bytes) -> Revocation | None:
    """What the expiry of a message changes; None for one that says nothing, or nothing that can be stored."""
    opened = open_envelope(envelope)
    found = None if opened is None else revocation.read(opened[3], opened[4])
    if found is None or not 0 <= found.ttl_ms <= MAX_TTL_MS or not -1 <= found.place < NO_INDEX:
        return None
    sizes = [len(found.name), len(found.task_id.encode()), *([len(found.chord)] if found.chord else [])]
    return found if all(0 < size <= MAX_NAME_BYTES for size in sizes) else None


async def load(instance: Instance, envelope: bytes) -> None:
    """Have at hand what is stored of the task's result."""
    found = of(envelope)
    if found is not None:
        try:
            await instance.engine.results.get(found.name)
        except CorruptRecord as exc:
            log.error("the result of an expired task can't be read: %s", exc)


def store(instance: Instance, envelope: bytes) -> None:
    """Store the result of a task that expired, unless there is one; and count its part of a chord.

    Raises:
        StoreFull: nothing happened; try again.
    """
    found = of(envelope)
    if found is None:
        return
    engine = instance.engine
    now = datetime.fromtimestamp(engine.clock.now_ms() / 1000, UTC).isoformat()
    value = revocation.value(found.task_id, now)
    current = engine.results.find(found.name)[1]
    name = found.name if current is None or current.kind == INTERIM else b""
    chord = engine.state.results.chords.get(found.chord)
    if chord is None:
        group, ttl_ms = b"", 0
    else:
        group, ttl_ms = found.chord, max(1, chord.expires_at_ms - engine.clock.now_ms()) if chord.expires_at_ms else 0
    index = found.place if found.place >= 0 else NO_INDEX
    if engine.results.store(name, READY, value, found.ttl_ms, group, index, found.task_id.encode(), ttl_ms) and name:
        instance.results.changed(name, Result(READY, 0, value))
    if chord is not None and chord.is_complete and chord.sender is None:
        _fail(instance, found, now)


def _fail(instance: Instance, found: Revocation, now: str) -> None:
    """A chord is complete, and no worker is there that would tell its callback that a part is missing."""
    results = instance.engine.results
    body = instance.engine.state.results.chords[found.chord].body.decode(errors="replace")
    if body:
        name = found.name.removesuffix(found.task_id.encode()) + body.encode()
        value = revocation.failed_chord(body, found.task_id, now)
        if results.store(name, READY, value, found.ttl_ms):
            instance.results.changed(name, Result(READY, 0, value))
    results.close_chord(found.chord)
