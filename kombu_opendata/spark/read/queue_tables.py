"""Tables of queues and of their entries, one table for each state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from ...offline import OfflineStore
from ...storage.records import active, config, keys, options, settled, types
from ...storage.records.keys import RecordKind
from .bounds import Bounds
from .store_scan import ROWS, Columns, Source

_STATE_KINDS = {
    "available": RecordKind.ACTIVE,
    "in_flight": RecordKind.ACTIVE,
    "done": RecordKind.DONE,
    "failed": RecordKind.FAILED,
}

#: fields of entries, in the order of their records
_ACTIVE = ("message_id", "priority", "at", "until", "attempts")
_SETTLED = ("message_id", "at", "attempts")
#: the column of an entry's time
_TIMES = {"available": "visible_at", "in_flight": "claimed_at", "done": "done_at", "failed": "failed_at"}


def entries(state: str, low: bytes, high: bytes | None, bounds: Bounds) -> Source:
    """Return the entries of one state with ids within the bounds, in the buckets between two keys."""
    is_active = _STATE_KINDS[state] is RecordKind.ACTIVE
    names = _ACTIVE if is_active else _SETTLED

    async def source(store: OfflineStore) -> AsyncIterator[Columns]:
        columns: Columns = {name: [] for name in ("queue", *names)}
        async for rows in store.scan_batches(low, high, batch=64):
            for key, value in rows:
                parsed = keys.parse(key)
                if parsed.kind is not _STATE_KINDS[state]:
                    continue
                bucket = active.decode(key, value)[state == "in_flight"] if is_active else settled.decode(key, value)
                if matching := [entry for entry in bucket if bounds.has_id(entry[0])]:
                    columns["queue"] += [parsed.name or ""] * len(matching)
                    for name, values in zip(names, zip(*matching, strict=True), strict=True):
                        columns[name] += values
            if len(columns["queue"]) >= ROWS:
                yield _named(state, columns)
                columns = {name: [] for name in ("queue", *names)}
        if columns["queue"]:
            yield _named(state, columns)

    return source


def _named(state: str, columns: Columns) -> Columns:
    """Return the columns with the names of the tables.

    A stored priority is 255 minus the message's; a time of 0 means none.
    """
    at = [ms or None for ms in columns.pop("at")]
    columns |= {"state": [state] * len(at), "at": at, _TIMES[state]: at}
    if "until" in columns:
        name = "expires_at" if state == "available" else "leased_until"
        columns[name] = [ms or None for ms in columns.pop("until")]
        columns["priority"] = [255 - priority for priority in columns["priority"]]
    return columns


async def bucket_keys(store: OfflineStore, state: str, bounds: Bounds) -> list[tuple[str, bytes]]:
    """Return queue and key of each bucket of a state, in the order of keys, for queues within the bounds."""
    buckets = []
    async for rows in store.scan_batches(*keys.kind_range(_STATE_KINDS[state]), batch=64):
        for key, _value in rows:
            name = keys.parse(key).name or ""
            if bounds.has_queue(name):
                buckets.append((name, key))
    return buckets


def queue_rows() -> Source:
    """Return a row for each queue with its counts and settings."""

    async def source(store: OfflineStore) -> AsyncIterator[Columns]:
        counts = await _counts(store)
        rows = []
        async for batch in store.scan_batches(*keys.kind_range(RecordKind.OPTIONS), batch=64):
            for key, value in batch:
                rows.append(await _queue(store, keys.parse(key).name or "", key, value, counts))
        if rows:
            yield {name: [row[name] for row in rows] for name in rows[0]}

    return source


async def _queue(
    store: OfflineStore, name: str, key: bytes, value: bytes, counts: dict[tuple[str, str], int]
) -> dict[str, Any]:
    ours = options.decode(key, value)
    config_key = keys.config_key(name)
    limits = config.decode(config_key, await store.get(config_key) or b"")
    return {
        "queue": name,
        **{state: counts.get((name, state), 0) for state in _STATE_KINDS},
        "max_attempts": limits.max_attempts,
        "done_retention_seconds": limits.done_retention_seconds,
        "failed_retention_seconds": ours.failed_retention_seconds,
        "lease_seconds": ours.lease_seconds,
        "filter": limits.filter,
        "arguments": types.json_utf8(ours.arguments)[2:].decode(),
    }


async def _counts(store: OfflineStore) -> dict[tuple[str, str], int]:
    """Return the number of entries of each queue in each state."""
    counts: dict[tuple[str, str], int] = {}
    for kind in (RecordKind.ACTIVE, RecordKind.DONE, RecordKind.FAILED):
        async for rows in store.scan_batches(*keys.kind_range(kind), batch=64):
            for key, value in rows:
                name = keys.parse(key).name or ""
                if kind is RecordKind.ACTIVE:
                    available, in_flight = active.decode(key, value)
                    sizes = {"available": len(available), "in_flight": len(in_flight)}
                else:
                    sizes = {"done" if kind is RecordKind.DONE else "failed": settled.count_of(value)}
                for state, size in sizes.items():
                    counts[name, state] = counts.get((name, state), 0) + size
    return counts
