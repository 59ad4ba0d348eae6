"""The stored records: one module per format, with its byte layout; bytes in, values out, nothing else.

====================  =======================================================  ==========
module                record                                                   from
====================  =======================================================  ==========
``types``             what the formats share: names, texts, arrays             OpenData
``keys``              every key, built and parsed; ranges for scans            both
``payload``           the body of a message or its URI                         RFC 0001
``metadata``          ids, times and headers of a message                      RFC 0001
``seq_block``         the block of message ids in use                          OpenData
``active``            available and in-flight messages of a bucket             RFC 0001
``settled``           done or failed messages of a bucket                      RFC 0001
``attempts``          who claimed a message                                    RFC 0001
``config``            filter, attempts and retention of a queue                RFC 0001
``header``            format version and instance of the store                 ours
``topology``          exchanges and bindings                                   ours
``options``           further settings of a queue                              ours
``producer``          the last publish of a session                            ours
``removal``           what a session's last purge has removed                  ours
``leases``            the messages that a session holds                        ours
``routes_block``      how many queues hold each of 256 messages                ours
``journal_position``  how far the journal is applied                           ours
``results``           results of tasks, parts of chords                        ours
``dead_letter``       a message on its way to a dead-letter exchange           ours
``columns``           many integers of one size                                ours
``cursor``            how far the background routing into a queue has come     ours
``idempotency``       what was sent with an idempotency key                    ours
``history_log``       what happened to messages between two checkpoints        ours
``history_trail``     what became of the messages of a block                   ours
``history_index``     which messages and attempts have a value                 ours
``history_headers``   headers of collected messages, for their attempts        ours
``staged``            staged jobs and their batch objects                      ours
``newest_time``       no time in the store is after it                         ours
``log_retention``     how long messages stay that no queue needs               ours
====================  =======================================================  ==========

A chunk of a large payload or result is raw bytes and has no module. Encoders raise
:class:`~kombu_opendata.errors.InvalidMessage` for a text that can't be stored and
:class:`~kombu_opendata.errors.RequestError` for any other value out of range; decoders raise
:class:`~kombu_opendata.errors.CorruptRecord`, which names the key.
"""

from __future__ import annotations

from collections.abc import Callable

from . import (
    active,
    attempts,
    config,
    cursor,
    dead_letter,
    header,
    history_headers,
    history_index,
    history_log,
    history_trail,
    idempotency,
    journal_position,
    keys,
    leases,
    log_retention,
    metadata,
    newest_time,
    options,
    payload,
    producer,
    queue_counts,
    removal,
    results,
    routes_block,
    seq_block,
    settled,
    staged,
    topology,
    types,
)
from .keys import RecordKind

__all__ = ["decode_any"]


def _chunk(_key: bytes, value: bytes) -> bytes:
    return value


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
    RecordKind.CHUNK: _chunk,
    RecordKind.ROUTES_BLOCK: routes_block.decode,
    RecordKind.JOURNAL_POSITION: journal_position.decode,
    RecordKind.RESULT: results.decode_result,
    RecordKind.RESULT_EXPIRY: types.read_version_only,
    RecordKind.CHORD: results.decode_chord,
    RecordKind.CHORD_PART: results.decode_part,
    RecordKind.LARGE_VALUE: results.decode_large_value,
    RecordKind.VALUE_CHUNK: _chunk,
    RecordKind.DEAD_LETTER: dead_letter.decode,
    RecordKind.CURSOR: cursor.decode,
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
    RecordKind.NEWEST_TIME: newest_time.decode,
    RecordKind.LOG_RETENTION: log_retention.decode,
    RecordKind.QUEUE_COUNTS: queue_counts.decode,
    RecordKind.ARCHIVED_FAILED: settled.decode,
}


def decode_any(key: bytes, value: bytes) -> object:
    """The value of any record of the store, decoded by what its key says it is.

    Raises:
        CorruptRecord: an unknown key, or a value that does not decode.
        UnsupportedFormat: the store header of a store of another format.
    """
    return _DECODERS[keys.parse(key).kind](key, value)
