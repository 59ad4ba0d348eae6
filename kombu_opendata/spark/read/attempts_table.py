"""Table ``attempts``, from the history log.

Attempts that are only in the journal of a killed broker are missing until it starts again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec.structs import astuple

from ...offline import OfflineStore
from ...protocol.task_reports import STATES
from ...storage.records import history_log, keys
from .bounds import Bounds
from .store_scan import Columns, Source, number_of


def attempt_rows(first: int, last: int, bounds: Bounds) -> Source:
    """Return the attempts within the bounds, from records whose first attempt is number ``first`` to ``last``."""

    async def source(store: OfflineStore) -> AsyncIterator[Columns]:
        low, high = keys.history_log_key(first, 0), keys.history_log_key(last, _LAST_ROW) + b"\0"
        async for rows in store.scan_batches(low, high, batch=16):
            columns: Columns = {name: [] for name in (*_ATTEMPT, "attempt_id", "manual")}
            for key, value in rows:
                if _may_match(key, value, bounds):
                    numbered = enumerate(history_log.decode(key, value).attempts, number_of(key))
                    _append_attempts(columns, [attempt for attempt in numbered if _matches(attempt[1], bounds)])
            if columns["attempt_id"]:
                yield columns

    return source


_LAST_ROW = (1 << 64) - 1
#: fields of an attempt, in order
_ATTEMPT = (
    "message_id", "queue", "consumer", "claimed_at", "ended_at", "attempt", "outcome", "state", "runtime_ms", "pid",
    "exception",
)  # fmt: skip


def _may_match(key: bytes, value: bytes, bounds: Bounds) -> bool:
    """Return True if a record may have attempts that ended within the bounds.

    Attempts are in the order of their ends.
    """
    count = history_log.attempts_of(key, value)
    if not count:
        return False
    if bounds.last_ms is not None and history_log.ended_at(key, value, 0) > bounds.last_ms:
        return False
    return bounds.first_ms is None or history_log.ended_at(key, value, count - 1) >= bounds.first_ms


def _matches(attempt: history_log.Attempt, bounds: Bounds) -> bool:
    return (
        bounds.has_id(attempt.message_id) and bounds.has_time(attempt.ended_at_ms) and bounds.has_queue(attempt.queue)
    )


def _append_attempts(columns: Columns, numbered: list[tuple[int, history_log.Attempt]]) -> None:
    """Add attempts with their numbers."""
    if not numbered:
        return
    numbers, attempts = zip(*numbered, strict=True)
    columns["attempt_id"] += numbers
    for name, values in zip(_ATTEMPT, zip(*map(astuple, attempts), strict=True), strict=True):
        columns[name] += values
    new = slice(-len(attempts), None)
    outcomes = columns["outcome"][new]
    columns["manual"] += [bool(outcome & history_log.MANUAL) for outcome in outcomes]
    columns["outcome"][new] = [history_log.OUTCOMES[o & ~history_log.MANUAL] for o in outcomes]
    columns["state"][new] = [STATES[state & ~history_log.DETAILED] for state in columns["state"][new]]
    columns["runtime_ms"][new] = [runtime / 1000 for runtime in columns["runtime_ms"][new]]
