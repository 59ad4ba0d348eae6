"""The formats of the stored records: one module each, with its byte layout, its encoder and its decoder.

A chunk of a large payload or result is raw bytes and has no module. Encoders raise
:class:`~kombu_opendata.errors.InvalidMessage` for a text that can't be stored and
:class:`~kombu_opendata.errors.RequestError` for any other value out of range; decoders raise
:class:`~kombu_opendata.errors.CorruptRecord`, with the key.
"""

from __future__ import annotations

from collections.abc import Callable

from . import (
    active,
    attempts,
    checkpoint_marks,
    config,
    dead_letter,
    handled_failures,
    header,
    history_headers,
    history_index,
    history_log,
    history_trail,
    idempotency,
    keys,
    leases,
    log_retention,
    metadata,
    options,
    overrides,
    payload,
    producer,
    queue_counts,
    removal,
    results,
    routes_block,
    routing_cursor,
    running_tasks,
    seq_block,
    settled,
    staged,
    task_failure,
    topology,
    types,
)
from .keys import RecordKind

__all__ = ["decode_any"]


_DECODERS: dict[RecordKind, Callable[[bytes, bytes], object]] = {
    RecordKind.PAYLOAD: payload.decode,
    RecordKind.METADATA: metadata.decode,
    RecordKind.SEQ_BLOCK: seq_block.decode,
    RecordKind.ACTIVE: active.decode,
    RecordKind.DONE: settled.decode,
    RecordKind.FAILED: settled.decode,
    RecordKind.ATTEMPTS: attempts.decode,
    RecordKind.CONFIG: config.decode,
    RecordKind.STORE_HEADER: header.decode,
    RecordKind.EXCHANGE: topology.decode_exchange,
    RecordKind.BINDING: topology.decode_binding,
    RecordKind.OPTIONS: options.decode,
    RecordKind.PRODUCER: producer.decode,
    RecordKind.REMOVAL: removal.decode,
    RecordKind.LEASES: leases.decode,
    RecordKind.CHUNK: lambda _key, value: value,
    RecordKind.ROUTES_BLOCK: routes_block.decode,
    RecordKind.JOURNAL_POSITION: checkpoint_marks.decode_journal_position,
    RecordKind.RESULT: results.decode_result,
    RecordKind.RESULT_EXPIRY: types.read_version_only,
    RecordKind.CHORD: results.decode_chord,
    RecordKind.CHORD_PART: results.decode_part,
    RecordKind.LARGE_VALUE: results.decode_large_value,
    RecordKind.VALUE_CHUNK: lambda _key, value: value,
    RecordKind.DEAD_LETTER: dead_letter.decode,
    RecordKind.CURSOR: routing_cursor.decode,
    RecordKind.IDEMPOTENCY: idempotency.decode,
    RecordKind.STAGED_JOB: staged.decode_job,
    RecordKind.STAGED_OBJECT: staged.decode_object,
    RecordKind.STAGED_EXPIRY: types.read_version_only,
    RecordKind.HISTORY_LOG: history_log.decode,
    RecordKind.HISTORY_POSTINGS: history_index.decode_postings,
    RecordKind.HISTORY_SEGMENT: history_index.decode_segment,
    RecordKind.HISTORY_TRAIL: history_trail.decode,
    RecordKind.HISTORY_PAGE: history_index.decode_page,
    RecordKind.HISTORY_HEAD: history_index.decode_head,
    RecordKind.HISTORY_HEADERS: history_headers.decode,
    RecordKind.NEWEST_TIME: checkpoint_marks.decode_newest_time,
    RecordKind.LOG_RETENTION: log_retention.decode,
    RecordKind.QUEUE_COUNTS: queue_counts.decode,
    RecordKind.ARCHIVED_FAILED: settled.decode,
    RecordKind.RUNNING_TASKS: running_tasks.decode,
    RecordKind.TASK_FAILURE: task_failure.decode,
    RecordKind.HANDLED_FAILURES: handled_failures.decode,
    RecordKind.OVERRIDES: overrides.decode,
}


def decode_any(key: bytes, value: bytes) -> object:
    """Decode the value of any record, whose kind is in its key.

    Raises:
        CorruptRecord: an unknown key, or a value that does not decode.
        UnsupportedFormat: the store header of a store of another format.
    """
    return _DECODERS[keys.parse(key).kind](key, value)
