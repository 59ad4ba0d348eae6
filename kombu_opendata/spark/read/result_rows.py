"""Rows of the table ``results``: results of tasks, as the result backend of this package stores them.

A result that is not JSON (of another ``result_serializer``, or compressed) has a row with its id and ``raw`` alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import msgspec
from celery.states import EXCEPTION_STATES

from ...errors import NotFound
from ...offline import OfflineStore
from ...protocol import revocation
from ...staging.folder_url import StagedFolder
from ...storage.messages.payload_reader import PayloadReader
from ...storage.records import keys, results, staged_jobs
from ...storage.records.keys import RecordKind
from ...storage.records.payload_places import EnvelopePlace
from ...storage.records.results import Result
from . import metadata_columns
from .store_scan import ROWS, Columns
from .tables import TABLES

#: rows of a batch, whose values may be large
RESULT_ROWS = 2_048
#: Celery's name of a task's result, before its id
_NAME = b"celery-task-meta-"
#: characters of a generated task id that all rows of a partition of a job share
_SHARED = 24
#: results with a common beginning for which one scan is faster than a read of each
_FEW = 8


class _Meta(msgspec.Struct):
    """Celery's metadata of a result; the last fields are present with ``result_extended``."""

    status: str = ""
    result: msgspec.Raw = msgspec.Raw(b"null")
    traceback: str | None = None
    date_done: str | None = None
    task_id: str | None = None
    name: str | None = None
    worker: str | None = None
    retries: int | None = None


_decode_meta = msgspec.json.Decoder(_Meta).decode
_Row = tuple[bytes, bytes]


async def results_between(store: OfflineStore, low: bytes, high: bytes) -> AsyncIterator[Columns]:
    """Yield the results of tasks whose keys are between two keys."""
    async for rows in store.scan_batches(low, high, batch=RESULT_ROWS):
        yield await _columns(store, rows)


async def results_of_messages(store: OfflineStore, low: bytes, high: bytes) -> AsyncIterator[Columns]:
    """Yield the results of the tasks whose messages have their metadata between two keys."""
    async for messages in store.scan_rows(low, high, batch=ROWS):
        column = metadata_columns.columns(messages, frozenset(("task_id",)))["task_id"]
        ids = sorted(column.drop_null().unique().to_pylist())
        single: list[bytes] = []
        for _beginning, group in groupby(ids, lambda id: id[:_SHARED]):
            wanted = [keys.result_key(_NAME + id.encode()) for id in group]
            if len(wanted) < _FEW:
                single += wanted
                continue
            names = frozenset(wanted)
            async for rows in store.scan_batches(wanted[0], wanted[-1] + b"\0", batch=RESULT_ROWS):
                yield await _columns(store, [row for row in rows if row[0] in names])
        for start in range(0, len(single), RESULT_ROWS):
            some = single[start : start + RESULT_ROWS]
            pairs = zip(some, await store.get_many(some), strict=True)
            yield await _columns(store, [(key, value) for key, value in pairs if value is not None])


async def job_messages(store: OfflineStore, job_id: str) -> tuple[int, int]:
    """Return the first and the last message id of a job; raise NotFound if the store has no such job."""
    key = keys.staged_job_key(job_id)
    value = await store.get(key)
    if value is None:
        raise NotFound(f"the store has no job {job_id!r}: it was never committed, or was settled long ago")
    job = staged_jobs.decode_job(key, value)
    return job.first_id, job.first_id + job.rows - 1


async def result_ranges(store: OfflineStore, count: int) -> list[tuple[bytes, bytes]]:
    """Return ``count`` ranges of keys, or fewer, that together have all results.

    They divide the space between the first and the last name evenly, as random task ids are distributed.
    """
    start, end = keys.kind_range(RecordKind.RESULT)
    first = await store.scan(keys.result_key(b"\x01")[:-1], end, limit=1)  # not those that this package names
    last = await store.last_key(start, end)
    if not first or last is None:
        return []
    low, high = first[0][0], last + b"\0"
    width = max(len(low), len(high))
    edges = [int.from_bytes(key.ljust(width, b"\0"), "big") for key in (low, high)]
    step = max(1, -(-(edges[1] - edges[0]) // count))
    starts = [number.to_bytes(width, "big") for number in range(edges[0] + step, edges[1], step)]
    return list(zip([low, *starts], [*starts, high], strict=True))


async def _columns(store: OfflineStore, rows: list[_Row]) -> Columns:
    now_ms = store.clock.now_ms()
    found: list[tuple[Any, ...]] = []
    for key, value in rows:
        name = keys.parse(key).result or b""
        _prefix, is_task, id = name.partition(_NAME)
        result = results.decode_result(key, value)
        if is_task and not 0 < result.expires_at_ms <= now_ms:
            if not result.value:
                result = result._replace(value=await _large_value(store, key))
            found.append(_row(id.decode("utf-8", "replace"), result))
    return dict(zip(TABLES["results"], zip(*found, strict=True), strict=True)) if found else {}


async def _large_value(store: OfflineStore, key: bytes) -> bytes:
    record = await store.get(keys.large_value_key(key))
    place = None if record is None else results.decode_large_value(keys.large_value_key(key), record)
    if isinstance(place, EnvelopePlace):
        folder = StagedFolder(store.location.url, store.location.instance)
        return await PayloadReader(store, folder).read_value(place)
    low, high = keys.prefix_range(keys.value_chunk_key(key))
    return b"".join([value async for rows in store.scan_batches(low, high, batch=16) for _key, value in rows])


def _row(task_id: str, result: Result) -> tuple[Any, ...]:
    """Return the values of the columns of :data:`.TABLES`, in their order."""
    raw, expires_at = result.value, result.expires_at_ms or None
    value = exception = error = None
    try:
        meta = _decode_meta(raw.removeprefix(revocation.MARK))
        if meta.status in EXCEPTION_STATES:
            exception, error = _failure(bytes(meta.result))
        if exception is None:
            value = bytes(meta.result).decode()
        ended_at = _milliseconds(meta.date_done) if meta.date_done else None
    except ValueError:  # of another serializer
        return task_id, None, None, None, None, None, None, expires_at, None, None, None, raw
    return (
        meta.task_id or task_id, meta.status, value, exception, error, meta.traceback, ended_at, expires_at, meta.name,
        meta.worker, None if meta.retries is None else meta.retries + 1, raw,
    )  # fmt: skip


def _failure(value: bytes) -> tuple[str | None, str | None]:
    """Return the type and the message of an exception; None if the value describes none."""
    failure = msgspec.json.decode(value)
    if not isinstance(failure, dict) or not isinstance(name := failure.get("exc_type"), str):
        return None, None
    module, message = failure.get("exc_module"), failure.get("exc_message", "")
    if isinstance(message, list) and len(message) == 1:
        message = message[0]
    text = message if isinstance(message, str) else msgspec.json.encode(message).decode()
    return f"{module}.{name}" if isinstance(module, str) and module != "builtins" else name, text


def _milliseconds(text: str) -> int:
    at = datetime.fromisoformat(text)
    return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)
