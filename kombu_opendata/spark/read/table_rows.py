"""Rows of each table: sources of columns for the part of a store between two keys."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ...offline import OfflineStore
from ...protocol import task_reports
from ...protocol.envelope import open_envelope
from ...staging.folder_url import StagedFolder
from ...storage.messages.payload_reader import PayloadReader, locate, require
from ...storage.records import active, definitions, failures, field_types, history_log, keys, settled
from ...storage.records.keys import RecordKind
from ...storage.records.payload_places import Place
from . import metadata_columns
from .store_scan import ROWS, Columns, number_of
from .tables import Bounds

#: rows of a batch with payloads
PAYLOAD_ROWS = 512
_PAYLOADS = frozenset(("payload", "payload_bytes", "body"))
_TEXTS = frozenset(("error", "traceback"))
#: columns that may be large
LARGE = _PAYLOADS | _TEXTS


# ---------------------------------------------------------------------- messages
async def messages(store: OfflineStore, low: bytes, high: bytes, wanted: frozenset[str]) -> AsyncIterator[Columns]:
    """Yield the wanted columns of the messages whose metadata is between two keys."""
    with_payloads = bool(wanted & _PAYLOADS)
    reader = PayloadReader(store, StagedFolder(store.location.url, store.location.instance))
    async for rows in store.scan_rows(low, high, batch=PAYLOAD_ROWS if with_payloads else ROWS):
        columns = metadata_columns.columns(rows, wanted)
        if with_payloads:
            envelopes = await _envelopes(store, reader, [number_of(key) for key, _ in rows.pairs()])
            columns["payload"] = envelopes
            columns["payload_bytes"] = [None if envelope is None else len(envelope) for envelope in envelopes]
            if "body" in wanted:
                columns["body"] = list(map(_body, envelopes))
        yield columns


async def _envelopes(store: OfflineStore, reader: PayloadReader, ids: list[int]) -> list[bytes | None]:
    """Return the envelopes of these messages, with None where the payload is missing.

    Raises CorruptRecord if a payload is damaged.
    """
    places: dict[int, Place] = {}
    low, high = keys.payload_key(ids[0]), keys.payload_key(ids[-1]) + b"\0"
    async for rows in store.scan_batches(low, high, batch=PAYLOAD_ROWS):
        for key, value in rows:
            id = int.from_bytes(key[2:], "big")
            places[id] = locate(id, value)
    payloads = await reader.read(places)
    return [require(payloads[id]) if id in payloads else None for id in ids]


def _body(envelope: bytes | None) -> bytes | None:
    """Return the serialized body; None if the bytes are not an envelope."""
    opened = None if envelope is None else open_envelope(envelope, len(envelope))
    if opened is None:
        return None
    body = msgspec.msgpack.decode(opened[0])
    return body.encode("utf-8", "surrogateescape") if isinstance(body, str) else bytes(body)


# ---------------------------------------------------------------------- attempts
#: fields of an attempt, in order
_ATTEMPT = (
    "message_id", "queue", "consumer", "claimed_at", "ended_at", "attempt", "outcome", "state", "runtime_ms", "pid",
    "exception",
)  # fmt: skip
_HEADERS = frozenset(("task", "task_id"))
#: messages between two others for which one scan is faster than two
_GAP = 1_000


async def attempts(
    store: OfflineStore, low: bytes, high: bytes, wanted: frozenset[str], bounds: Bounds, numbers: tuple[int, int]
) -> AsyncIterator[Columns]:
    """Yield the attempts within the bounds, from the records of the history log between two keys.

    Of the expensive columns, only the wanted ones are read. ``numbers`` are those of the first and the last attempt.
    """
    lowest, highest = numbers
    records, size = (1, PAYLOAD_ROWS) if wanted & _TEXTS else (16, ROWS)
    async for rows in store.scan_batches(low, high, batch=records):
        numbered = [
            (number, attempt)
            for key, value in rows
            if _may_match(key, value, bounds)
            for number, attempt in enumerate(history_log.decode(key, value).attempts, number_of(key))
            if lowest <= number <= highest
            and bounds.has_id(attempt.message_id)
            and bounds.has_time(attempt.ended_at_ms)
            and bounds.has_queue(attempt.queue)
        ]
        for start in range(0, len(numbered), size):
            part = numbered[start : start + size]
            columns = _attempt_columns(part)
            if wanted & _HEADERS:
                columns |= await _headers(store, columns["message_id"])
            if wanted & _TEXTS:
                columns |= await _texts(store, part)
            yield columns


def _may_match(key: bytes, value: bytes, bounds: Bounds) -> bool:
    """Return True if a record may have attempts that ended within the bounds; they are in the order of their ends."""
    count = history_log.attempts_of(key, value)
    if not count or (bounds.last_ms is not None and history_log.ended_at(key, value, 0) > bounds.last_ms):
        return False
    return bounds.first_ms is None or history_log.ended_at(key, value, count - 1) >= bounds.first_ms


def _attempt_columns(numbered: list[tuple[int, history_log.Attempt]]) -> Columns:
    fields = zip(*(msgspec.structs.astuple(attempt) for _, attempt in numbered), strict=True)
    columns: Columns = dict(zip(_ATTEMPT, fields, strict=True))
    outcomes = columns["outcome"]
    return columns | {
        "attempt_id": [number for number, _ in numbered],
        "manual": [bool(outcome & history_log.MANUAL) for outcome in outcomes],
        "outcome": [history_log.OUTCOMES[outcome & ~history_log.MANUAL] for outcome in outcomes],
        "state": [task_reports.STATES[state & ~history_log.DETAILED] for state in columns["state"]],
        "runtime_ms": [runtime / 1000 for runtime in columns["runtime_ms"]],
    }


async def _headers(store: OfflineStore, ids: Sequence[int]) -> Columns:
    """Return task and task id of these messages; null for those that were collected."""
    parts: list[Columns] = []
    for first, last in _spans(sorted(set(ids))):
        async for rows in store.scan_rows(keys.metadata_key(first), keys.metadata_key(last) + b"\0", batch=ROWS):
            parts.append(metadata_columns.columns(rows, _HEADERS | {"message_id"}))

    def stored(name: str, kind: pa.DataType) -> pa.Array:
        return pa.chunked_array([part[name] for part in parts], kind).combine_chunks()

    places = pc.index_in(pa.array(ids, pa.int64()), value_set=stored("message_id", pa.int64()))
    return {name: stored(name, pa.string()).take(places) for name in _HEADERS}


def _spans(ids: list[int]) -> Iterator[tuple[int, int]]:
    """Yield first and last of the ascending ids without a large gap in between."""
    edges = [at for at in range(1, len(ids)) if ids[at] - ids[at - 1] > _GAP]
    for start, end in zip([0, *edges], [*edges, len(ids)], strict=True):
        yield ids[start], ids[end - 1]


async def _texts(store: OfflineStore, numbered: list[tuple[int, history_log.Attempt]]) -> Columns:
    """Return error and traceback of these attempts; null for those without a failure."""
    stored: dict[int, failures.TaskFailure] = {}
    if detailed := [number for number, attempt in numbered if attempt.state & history_log.DETAILED]:
        low, high = keys.task_failure_key(detailed[0]), keys.task_failure_key(detailed[-1]) + b"\0"
        async for rows in store.scan_batches(low, high, batch=PAYLOAD_ROWS):
            stored |= {number_of(key): failures.decode_task_failure(key, value) for key, value in rows}
    found = [stored.get(number) for number, _ in numbered]
    return {name: [failure and getattr(failure, name) for failure in found] for name in _TEXTS}


# ---------------------------------------------------------------------- entries of queues
_STATE_KINDS = {
    "backlog": RecordKind.ACTIVE,
    "in_flight": RecordKind.ACTIVE,
    "done": RecordKind.DONE,
    "failed": RecordKind.FAILED,
}
#: fields of entries, in the order of their records
_ACTIVE = ("message_id", "priority", "at", "until", "attempts")
_SETTLED = ("message_id", "at", "attempts")
#: the column of an entry's time
_TIMES = {"backlog": "visible_at", "in_flight": "claimed_at", "done": "done_at", "failed": "failed_at"}


async def entries(store: OfflineStore, state: str, low: bytes, high: bytes, bounds: Bounds) -> AsyncIterator[Columns]:
    """Yield the entries of one state with ids within the bounds, in the buckets between two keys."""
    is_active = _STATE_KINDS[state] is RecordKind.ACTIVE
    names = _ACTIVE if is_active else _SETTLED
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


def _named(state: str, columns: Columns) -> Columns:
    """Return the columns with the names of the tables.

    A stored priority is 255 minus the message's; a time of 0 means none.
    """
    at = [ms or None for ms in columns.pop("at")]
    columns |= {"state": [state] * len(at), "at": at, _TIMES[state]: at}
    if "until" in columns:
        name = "expires_at" if state == "backlog" else "leased_until"
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


# ---------------------------------------------------------------------- queues
async def queues(store: OfflineStore) -> AsyncIterator[Columns]:
    """Yield a row for each queue with its counts and settings."""
    counts = await _counts(store)
    rows = []
    async for name, queue_options, limits in _settings(store):
        row: dict[str, Any] = {
            "queue": name,
            **{state: counts.get((name, state), 0) for state in _STATE_KINDS},
            "max_attempts": limits.max_attempts,
            "done_retention_seconds": limits.done_retention_seconds,
            "failed_retention_seconds": queue_options.failed_retention_seconds,
            "lease_seconds": queue_options.lease_seconds,
            "filter": limits.filter,
            "arguments": field_types.json_utf8(queue_options.arguments)[2:].decode(),
            "available": counts.get((name, "backlog"), 0),
        }
        rows.append(row)
    if rows:
        yield {name: [row[name] for row in rows] for name in rows[0]}


async def shortest_retention(store: OfflineStore) -> float:
    """Return the shortest time, in seconds, for which a queue keeps its done or failed messages."""
    times: list[int] = []
    async for _name, queue_options, limits in _settings(store):
        times += (queue_options.failed_retention_seconds, limits.done_retention_seconds)
    return min(filter(None, times), default=math.inf)


async def _settings(
    store: OfflineStore,
) -> AsyncIterator[tuple[str, definitions.QueueOptionsRecord, definitions.QueueConfig]]:
    """Yield name, options and configuration of each queue."""
    async for batch in store.scan_batches(*keys.kind_range(RecordKind.OPTIONS), batch=64):
        for key, value in batch:
            name = keys.parse(key).name or ""
            config_key = keys.config_key(name)
            limits = definitions.decode_config(config_key, await store.get(config_key) or b"")
            yield name, definitions.decode_options(key, value), limits


async def _counts(store: OfflineStore) -> dict[tuple[str, str], int]:
    """Return the number of entries of each queue in each state."""
    counts: dict[tuple[str, str], int] = {}
    for kind in (RecordKind.ACTIVE, RecordKind.DONE, RecordKind.FAILED):
        async for rows in store.scan_batches(*keys.kind_range(kind), batch=64):
            for key, value in rows:
                name = keys.parse(key).name or ""
                if kind is RecordKind.ACTIVE:
                    backlog, in_flight = active.decode(key, value)
                    sizes = {"backlog": len(backlog), "in_flight": len(in_flight)}
                else:
                    sizes = {"done" if kind is RecordKind.DONE else "failed": settled.count_of(value)}
                for state, size in sizes.items():
                    counts[name, state] = counts.get((name, state), 0) + size
    return counts
