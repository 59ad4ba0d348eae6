"""The formats of the stored records: each module has the byte layouts of a family, their encoders and decoders.

A chunk of a large payload or result is raw bytes and has no module. Encoders raise
:class:`~kombu_opendata.errors.InvalidMessage` for a text that can't be stored and
:class:`~kombu_opendata.errors.RequestError` for any other value out of range; decoders raise
:class:`~kombu_opendata.errors.CorruptRecord`, with the key.
"""

from __future__ import annotations

from collections.abc import Callable

from . import (
    active,
    dead_letter,
    definitions,
    failures,
    field_types,
    history_headers,
    history_index,
    history_log,
    history_trail,
    idempotency,
    keys,
    metadata,
    partition,
    payload,
    results,
    routes_block,
    routing_cursor,
    session_records,
    settled,
    staged_jobs,
    store_records,
)
from .keys import RecordKind

__all__ = ["decode_any"]


_DECODERS: dict[RecordKind, Callable[[bytes, bytes], object]] = {
    RecordKind.PAYLOAD: payload.decode,
    RecordKind.METADATA: metadata.decode,
    RecordKind.SEQ_BLOCK: store_records.decode_seq_block,
    RecordKind.ACTIVE: active.decode,
    RecordKind.DONE: settled.decode,
    RecordKind.FAILED: settled.decode,
    RecordKind.ATTEMPTS: active.decode_attempts,
    RecordKind.CONFIG: definitions.decode_config,
    RecordKind.STORE_HEADER: store_records.decode_header,
    RecordKind.EXCHANGE: definitions.decode_exchange,
    RecordKind.BINDING: definitions.decode_binding,
    RecordKind.OPTIONS: definitions.decode_options,
    RecordKind.PRODUCER: session_records.decode_producer,
    RecordKind.REMOVAL: session_records.decode_removal,
    RecordKind.LEASES: session_records.decode_leases,
    RecordKind.CHUNK: lambda _key, value: value,
    RecordKind.ROUTES_BLOCK: routes_block.decode,
    RecordKind.JOURNAL_POSITION: store_records.decode_journal_position,
    RecordKind.RESULT: results.decode_result,
    RecordKind.RESULT_EXPIRY: field_types.read_version_only,
    RecordKind.CHORD: results.decode_chord,
    RecordKind.CHORD_PART: results.decode_part,
    RecordKind.LARGE_VALUE: results.decode_large_value,
    RecordKind.VALUE_CHUNK: lambda _key, value: value,
    RecordKind.DEAD_LETTER: dead_letter.decode,
    RecordKind.CURSOR: routing_cursor.decode,
    RecordKind.IDEMPOTENCY: idempotency.decode,
    RecordKind.STAGED_JOB: staged_jobs.decode_job,
    RecordKind.STAGED_OBJECT: staged_jobs.decode_object,
    RecordKind.STAGED_EXPIRY: field_types.read_version_only,
    RecordKind.STAGED_ENDS: staged_jobs.decode_ends,
    RecordKind.STAGED_FOLLOWER: staged_jobs.decode_follower,
    RecordKind.HISTORY_LOG: history_log.decode,
    RecordKind.HISTORY_POSTINGS: history_index.decode_postings,
    RecordKind.HISTORY_SEGMENT: history_index.decode_segment,
    RecordKind.HISTORY_TRAIL: history_trail.decode,
    RecordKind.HISTORY_PAGE: history_index.decode_page,
    RecordKind.HISTORY_HEAD: history_index.decode_head,
    RecordKind.HISTORY_HEADERS: history_headers.decode,
    RecordKind.NEWEST_TIME: store_records.decode_newest_time,
    RecordKind.LOG_RETENTION: store_records.decode_log_retention,
    RecordKind.QUEUE_COUNTS: definitions.decode_counts,
    RecordKind.ARCHIVED_FAILED: settled.decode,
    RecordKind.RUNNING_TASKS: session_records.decode_running_tasks,
    RecordKind.TASK_FAILURE: failures.decode_task_failure,
    RecordKind.HANDLED_FAILURES: failures.decode_handled,
    RecordKind.OVERRIDES: definitions.decode_overrides,
    RecordKind.FLOW: definitions.decode_flow,
    RecordKind.PARTITION: partition.decode,
    RecordKind.SEGMENT: payload.decode_segment,
}


def decode_any(key: bytes, value: bytes) -> object:
    """Decode the value of any record, whose kind is in its key.

    Raises:
        CorruptRecord: an unknown key, or a value that does not decode.
        UnsupportedFormat: the store header of a store of another format.
    """
    return _DECODERS[keys.parse(key).kind](key, value)
