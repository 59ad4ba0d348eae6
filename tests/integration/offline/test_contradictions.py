"""Each invariant broken on purpose, by records that no broker writes: told apart from a good store, with the place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kombu_opendata.errors import CorruptRecord
from kombu_opendata.offline import Finding, Severity, VerifyStatus
from kombu_opendata.storage.records import (
    active,
    dead_letter,
    definitions,
    failures,
    history_headers,
    idempotency,
    keys,
    metadata,
    payload,
    results,
    routes_block,
    routing_cursor,
    session_records,
    settled,
    staged_jobs,
    store_records,
)
from kombu_opendata.storage.records.definitions import QueueOverrides
from kombu_opendata.storage.records.failures import TaskFailure
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.records.payload import CHUNK_BYTES
from kombu_opendata.storage.records.payload_places import EnvelopePlace
from kombu_opendata.storage.records.session_records import RunningTask, SessionLeases
from tests.support.engine import OTHER, SESSION
from tests.support.rich_store import edit
from tests.support.verified import describe, verify

from .conftest import Rich

Changes = Mapping[bytes, bytes | None]
Break = Callable[[Rich], Changes]
A_QUEUE = RecordKind.ACTIVE


def lists(rich: Rich, queue: str, bucket: int = 0) -> tuple[list[active.Entry], list[active.Entry]]:
    available, in_flight = rich.plain.of[A_QUEUE][queue, bucket]
    return list(available), list(in_flight)


def with_entry(rich: Rich, queue: str, available: active.Entry) -> Changes:
    """One more available message in a queue."""
    waiting, held = lists(rich, queue)
    return {keys.active_key(queue): active.encode([*waiting, available], held)}


def entry_of(rich: Rich, id: int) -> active.Entry:
    """The available entry of a message."""
    found: list[active.Entry] = [row for rows, _held in rich.plain.of[A_QUEUE].values() for row in rows if row[0] == id]
    return found[0]


def moved(rich: Rich, id: int, **changes: int) -> Changes:
    """A message's metadata, changed."""
    found = rich.plain.of[RecordKind.METADATA][id]._replace(**changes)
    return {keys.metadata_key(id): metadata.encode(*found)}


def changed_entry(rich: Rich, queue: str, field: int, value: int, *, held: bool = False) -> Changes:
    """The first entry of a queue's bucket 0, with a field changed."""
    both = lists(rich, queue)
    row = both[held][0]
    changed = (*row[:field], value, *row[field + 1 :])
    both[held][0] = active.AvailableMessage(*changed)
    return {keys.active_key(queue): active.encode(*both)}


def in_two_states(rich: Rich) -> Changes:
    done = settled.join(settled.pack_entries([*rich.plain.of[RecordKind.DONE]["many", 0], (rich.ids.waiting, NOW, 1)]))
    return {keys.done_key("many"): done}


def counted(rich: Rich, id: int, count: int) -> Changes:
    """The routes block of a message, which is in so many queues."""
    block = routes_block.empty()
    for other, found in {**rich.plain.of[RecordKind.ROUTES_BLOCK], id: count}.items():
        if other >> 8 == id >> 8:
            block[other & 255] = found
    return {keys.routes_block_key(id): routes_block.encode(block) if any(block) else None}


def a_settled_bucket(rich: Rich, kind: RecordKind, queue: str) -> int:
    return next(bucket for bucket, rows in rich.plain.buckets(kind, queue).items() if rows)


NOW = 1_769_385_600_000
AHEAD = NOW + 400 * 86_400_000 * 10

BROKEN: dict[str, tuple[str, Break]] = {
    # ---- the store
    "no header": ("header-damaged", lambda _: {keys.STORE_HEADER_KEY: None}),
    "another instance's header": (
        "header-instance",
        lambda _: {keys.STORE_HEADER_KEY: store_records.encode_header(store_records.StoreHeader(NOW, "other"))},
    ),
    "header of the future": (
        "time-implausible",
        lambda _: {keys.STORE_HEADER_KEY: store_records.encode_header(store_records.StoreHeader(AHEAD, "default"))},
    ),
    "no sequence block": ("sequence-missing", lambda _: {keys.SEQ_BLOCK_KEY: None}),
    "a sequence block behind": (
        "sequence-behind",
        lambda _: {keys.SEQ_BLOCK_KEY: store_records.encode_seq_block(0, 10)},
    ),
    "an empty sequence block": (
        "sequence-behind",
        lambda _: {keys.SEQ_BLOCK_KEY: store_records.encode_seq_block(0, 0)},
    ),
    "a position behind the journal": (
        "journal-behind",
        lambda _: {keys.JOURNAL_POSITION_KEY: store_records.encode_journal_position(1_000_000)},
    ),
    "a position that does not decode": ("journal-position", lambda _: {keys.JOURNAL_POSITION_KEY: b"123"}),
    "a key of an unknown kind": ("key-unknown", lambda _: {b"\x01\x7fnew": b"1"}),
    "a key of nothing": ("key-unknown", lambda _: {b"something": b"1"}),
    "a key that goes on": ("record-corrupt", lambda rich: {keys.attempts_key(rich.ids.large) + b"\0": b"\0\0"}),
    "a payload's key that is too short": ("record-corrupt", lambda _: {b"\x01\x01\0\0\0\0\0": b"\1\0\0"}),
    # ---- queues
    "a queue without config": ("queue-incomplete", lambda _: {keys.config_key("b"): None}),
    "a queue without options": ("queue-incomplete", lambda _: {keys.options_key("b"): None}),
    "a queue without active bucket 0": ("queue-incomplete", lambda _: {keys.active_key("settled"): None}),
    "a queue without done bucket 0": ("queue-incomplete", lambda _: {keys.done_key("many"): None}),
    "a queue without failed bucket 0": ("queue-incomplete", lambda _: {keys.failed_key("many"): None}),
    "records of no queue": ("queue-unknown", lambda _: {keys.active_key("nobody"): active.encode([], [])}),
    "overrides of no queue": (
        "queue-unknown",
        lambda _: {
            keys.overrides_key("nobody"): definitions.encode_overrides(QueueOverrides(0, 0, {"x-max-length": 1}))
        },
    ),
    "overrides with another filter": (
        "filter-differs",
        lambda _: {
            keys.overrides_key("c"): definitions.encode_overrides(QueueOverrides(0, 0, {"x-filter": "a = 'other'"}))
        },
    ),
    "a bucket that is empty in the middle": (
        "bucket-empty",
        lambda rich: (
            {keys.active_key("many", max(rich.plain.buckets(A_QUEUE, "many")) + 5): active.encode([], [])}
            | {keys.active_key("many", max(rich.plain.buckets(A_QUEUE, "many")) + 6): active.encode([], [])}
        ),
    ),
    "a partition without its record": (
        "partition-missing",
        lambda _: {keys.active_key("many", 1 << 32): active.encode([], [])},
    ),
    "done messages before the first bucket": ("bucket-order", lambda rich: first_bucket(rich, "settled", done=2)),
    "a list that begins after its end": ("bucket-order", lambda rich: first_bucket(rich, "a", failed=9)),
    "an active record that does not decode": ("record-corrupt", lambda _: {keys.active_key("many"): b"\1\0"}),
    "options that do not decode": ("record-corrupt", lambda _: {keys.options_key("a"): b"\1\0"}),
    "another filter": (
        "filter-differs",
        lambda _: {
            keys.config_key("a"): definitions.encode_config(definitions.QueueConfig("exchange = 'y'", 2, 86_400))
        },
    ),
    "a filter that lacks a binding": (
        "filter-differs",
        lambda rich: {keys.binding_key("amq.topic", "a", "more.#"): definitions.encode_binding({})},
    ),
    "no attempts": (
        "settings-implausible",
        lambda rich: {
            keys.config_key("c"): definitions.encode_config(
                rich.plain.of[RecordKind.CONFIG]["c"]._replace(max_attempts=0)
            )
        },
    ),
    "a lease of 0 s": (
        "settings-implausible",
        lambda rich: {
            keys.options_key("c"): definitions.encode_options(
                rich.plain.of[RecordKind.OPTIONS]["c"]._replace(lease_seconds=0)
            )
        },
    ),
    # ---- topology
    "a binding to no exchange": (
        "binding-orphan",
        lambda _: {keys.binding_key("no", "a", "k"): definitions.encode_binding({})},
    ),
    "a binding of no queue": (
        "binding-orphan",
        lambda _: {keys.binding_key("x", "no", "k", "{}"): definitions.encode_binding({})},
    ),
    "a headers binding under another's key": (
        "key-value-mismatch",
        lambda _: {keys.binding_key("x", "b", "", '{"k":1}'): definitions.encode_binding({"k": 2})},
    ),
    "an exchange of no type": (
        "exchange-implausible",
        lambda _: {
            keys.exchange_key("odd"): definitions.encode_exchange(
                definitions.ExchangeRecord("strange", True, False, {})
            )
        },
    ),
    "an exchange that is not durable": (
        "exchange-implausible",
        lambda _: {
            keys.exchange_key("odd"): definitions.encode_exchange(definitions.ExchangeRecord("topic", False, False, {}))
        },
    ),
    # ---- messages
    "waiting and done": ("message-twice", in_two_states),
    "waiting twice": (
        "message-twice",
        lambda rich: with_entry(rich, "many", entry_of(rich, rich.ids.waiting)),
    ),
    "waiting and in flight": (
        "message-twice",
        lambda rich: with_entry(rich, "held", (rich.ids.held, 255, NOW, 0, 0)),
    ),
    "an id that was not given out": ("sequence-behind", lambda rich: with_entry(rich, "many", (99_999, 1, NOW, 0, 0))),
    "no metadata": ("metadata-missing", lambda rich: {keys.metadata_key(rich.ids.waiting): None}),
    "no metadata of a done one": ("metadata-missing", lambda rich: {keys.metadata_key(rich.ids.done): None}),
    "no payload": ("payload-missing", lambda rich: {keys.payload_key(rich.ids.waiting): None}),
    "no payload of a failed one": ("payload-missing", lambda rich: {keys.payload_key(rich.ids.failed): None}),
    "no payload of a dead letter": ("payload-missing", lambda rich: {keys.payload_key(rich.ids.expired): None}),
    "a payload that does not decode": ("record-corrupt", lambda rich: {keys.payload_key(rich.ids.waiting): b"\1\5\0"}),
    "metadata that does not decode": ("record-corrupt", lambda rich: {keys.metadata_key(rich.ids.waiting): b"1"}),
    "a missing chunk": ("chunks-wrong", lambda rich: {keys.chunk_key(rich.ids.large, 1): None}),
    "a short chunk": ("chunks-wrong", lambda rich: {keys.chunk_key(rich.ids.large, 2): b"x"}),
    "a chunk too many": ("chunks-wrong", lambda rich: {keys.chunk_key(rich.ids.large, 9): b"x"}),
    "a chunk of an inline payload": ("chunks-wrong", lambda rich: {keys.chunk_key(rich.ids.waiting, 0): b"x"}),
    "a chunk of no message": ("message-orphan", lambda _: {keys.chunk_key(4000, 0): b"x"}),
    "a URI that is no list of chunks": (
        "payload-uri",
        lambda rich: {keys.payload_key(rich.ids.waiting): payload.encode_uri("chunks:x")},
    ),
    "a URI of an unknown scheme": (
        "payload-uri",
        lambda rich: {keys.payload_key(rich.ids.waiting): payload.encode_uri("moon:1")},
    ),
    "chunks of another size": (
        "chunks-wrong",
        lambda rich: {keys.payload_key(rich.ids.large): payload.encode_uri(payload.chunks_uri(3, 5 * CHUNK_BYTES))},
    ),
    "a payload of no message": ("message-orphan", lambda _: {keys.payload_key(4000): payload.encode_inline(b"x")}),
    "metadata of no message": (
        "message-orphan",
        lambda _: {keys.metadata_key(4000): metadata.encode(4000, NOW, NOW, NOW, 0, {})},
    ),
    "attempts of no message": ("message-orphan", lambda _: {keys.attempts_key(4000): active.encode_attempts(["a"])}),
    "routes of no message": ("message-orphan", lambda rich: counted(rich, 4000, 1)),
    "kept by the log, and not there": (
        "payload-missing",
        lambda rich: {**counted(rich, 4000, routes_block.KEPT), keys.payload_key(4000): None},
    ),
    "kept by the log alone, and in queues": (
        "routes-wrong",
        lambda rich: counted(rich, rich.ids.shared, routes_block.KEPT),
    ),
    "too many routes": ("routes-wrong", lambda rich: counted(rich, rich.ids.shared, 9)),
    "no routes": ("routes-wrong", lambda rich: counted(rich, rich.ids.shared, 0)),
    "no routes of chunks": ("routes-wrong", lambda rich: counted(rich, rich.ids.large, 0)),
    "a routes block that does not decode": (
        "record-corrupt",
        lambda rich: {keys.routes_block_key(rich.ids.shared): b"\1\2\0"},
    ),
    "a routes block without entries": ("record-corrupt", lambda _: {keys.routes_block_key(4000): b"\1\0" + bytes(512)}),
    "a routes block's key that goes on": (
        "record-corrupt",
        lambda rich: {keys.routes_block_key(rich.ids.large) + b"\0": b"\1\1\1\1\0"},
    ),
    "another message's metadata": ("key-value-mismatch", lambda rich: moved(rich, rich.ids.waiting, message_id=7)),
    "received in the future": ("time-implausible", lambda rich: moved(rich, rich.ids.waiting, received_at_ms=AHEAD)),
    "received before the store was made": (
        "time-implausible",
        lambda rich: moved(rich, rich.ids.done, received_at_ms=1),
    ),
    "visible before it was received": (
        "entry-implausible",
        lambda rich: moved(rich, rich.ids.waiting, visible_at_ms=NOW - 9_000_000),
    ),
    "an entry visible before it was received": (
        "entry-implausible",
        lambda rich: changed_entry(rich, "many", 2, 5),
    ),
    "an entry that expires before it was received": (
        "entry-implausible",
        lambda rich: changed_entry(rich, "many", 3, 5),
    ),
    "claimed before it was received": (
        "entry-implausible",
        lambda rich: changed_entry(rich, "held", 2, 5, held=True),
    ),
    "a lease that ends before it begins": (
        "entry-implausible",
        lambda rich: changed_entry(rich, "held", 3, 5, held=True),
    ),
    "in flight without an attempt": (
        "entry-implausible",
        lambda rich: changed_entry(rich, "held", 4, 0, held=True),
    ),
    "done before it was received": (
        "entry-implausible",
        lambda rich: {
            keys.done_key("settled", a_settled_bucket(rich, RecordKind.DONE, "settled")): settled.join(
                [settled.pack_entry(id, 5, 1) for id, _at, _n in rich.plain.of[RecordKind.DONE]["settled", 0]]
            )
        },
    ),
    # ---- leases, producers, dead letters
    "in flight and no lease": (
        "lease-missing",
        lambda rich: {keys.session_key(OTHER): session_records.encode_leases(SessionLeases("other", NOW, {}))},
    ),
    "a lease of what waits": (
        "lease-stale",
        lambda rich: {
            keys.session_key(OTHER): session_records.encode_leases(
                SessionLeases("other", NOW, {"many": [rich.ids.waiting]})
            )
        },
    ),
    "leased twice": (
        "lease-twice",
        lambda rich: {
            keys.session_key(b"3" * 16): session_records.encode_leases(
                SessionLeases("third", NOW, {"held": [rich.ids.held]})
            )
        },
    ),
    "leased twice by one": (
        "lease-twice",
        lambda rich: {
            keys.session_key(OTHER): session_records.encode_leases(
                SessionLeases("other", NOW, {"held": [rich.ids.held] * 2})
            )
        },
    ),
    "leases of the future": (
        "time-implausible",
        lambda rich: {keys.session_key(b"3" * 16): session_records.encode_leases(SessionLeases("third", AHEAD, {}))},
    ),
    "a publish that was not yet": (
        "producer-implausible",
        lambda _: {
            keys.producer_key(SESSION): session_records.encode_producer(session_records.Producer(5, 99_999, 1, NOW))
        },
    ),
    "holes before the first number": (
        "producer-implausible",
        lambda _: {
            keys.producer_key(SESSION): session_records.encode_producer(session_records.Producer(2, 1, 1, NOW, 0b1100))
        },
    ),
    "the last number as a hole": (
        "producer-implausible",
        lambda _: {
            keys.producer_key(SESSION): session_records.encode_producer(session_records.Producer(5, 1, 1, NOW, 0b1))
        },
    ),
    "a publish of the future": (
        "producer-implausible",
        lambda _: {
            keys.producer_key(SESSION): session_records.encode_producer(session_records.Producer(5, 1, 1, AHEAD))
        },
    ),
    "a letter for no reason": (
        "dead-letter-wrong",
        lambda rich: letter(rich, reason="because"),
    ),
    "the last use of what is failed": ("dead-letter-wrong", lambda rich: letter(rich, last_use=True)),
    "a letter that left in the future": ("dead-letter-wrong", lambda rich: letter(rich, at_ms=AHEAD)),
    "a letter of what did not fail": (
        "dead-letter-wrong",
        lambda rich: {
            keys.dead_letter_key(rich.ids.waiting, "letters"): dead_letter.encode(
                dead_letter.DeadLetter("rejected", NOW, 1, "x", None, False)
            )
        },
    ),
    # ---- routing, sends, staged batches
    "a cursor of no queue": (
        "cursor-wrong",
        lambda _: {keys.cursor_key("nobody"): routing_cursor.encode(routing_cursor.Cursor(0, 0, 9))},
    ),
    "a cursor before its start": (
        "cursor-wrong",
        lambda _: {keys.cursor_key("a"): routing_cursor.encode(routing_cursor.Cursor(5, 2, 9))},
    ),
    "a cursor beyond the last id": (
        "cursor-wrong",
        lambda _: {keys.cursor_key("a"): routing_cursor.encode(routing_cursor.Cursor(0, 0, 99_999))},
    ),
    "a cursor whose selector is none": (
        "cursor-wrong",
        lambda _: {keys.cursor_key("a"): routing_cursor.encode(routing_cursor.Cursor(0, 0, 9, selector="((("))},
    ),
    "a send of messages to come": ("idempotency-wrong", lambda _: a_send((99_999,), (("a",),))),
    "a send to too few": ("idempotency-wrong", lambda _: a_send((1, 2, 3), (("a",), ("b",)))),
    "a staged job with more routed than rows": (
        "staged-wrong",
        lambda _: {
            keys.staged_job_key("j"): staged_jobs.encode_job(
                staged_jobs.StagedJob("j", 0, 5, 1, 9, NOW, 9, 0, 0, 0, {})
            )
        },
    ),
    "a staged job that is settled, and nobody knows when": (
        "staged-wrong",
        lambda _: {
            keys.staged_job_key("j"): staged_jobs.encode_job(
                staged_jobs.StagedJob("j", 0, 5, 1, 9, NOW, 5, 5, 0, NOW, {})
            )
        },
    ),
    "a batch that is not there": (
        "batch-missing",
        lambda _: {
            keys.staged_object_key(4000): staged_jobs.encode_object(
                staged_jobs.StagedObject(4000, 5, 5, 9, 0, "x/y.batch", "j")
            )
        },
    ),
    "a batch with more needed than there are": (
        "staged-wrong",
        lambda _: {
            keys.staged_object_key(4000): staged_jobs.encode_object(
                staged_jobs.StagedObject(4000, 5, 5, 9, 0, "x/y.batch", "j")
            )
        },
    ),
    # ---- running tasks
    "a task that runs twice": ("task-wrong", lambda _: {**running(OTHER, 7), **running(bytes(16), 7)}),
    "a task of a message to come": ("task-wrong", lambda _: running(OTHER, 99_999)),
    "a task that began before the store": ("time-implausible", lambda _: running(OTHER, 7, started_at=5)),
    # ---- history
    "an error of no attempt": (
        "history-wrong",
        lambda _: {keys.task_failure_key(99_999): failures.encode_task_failure(TaskFailure("no", ""))},
    ),
    "a failed attempt without its error": ("history-wrong", lambda _: {keys.task_failure_key(1): None}),
    "a failure handled before it happened": ("history-wrong", lambda _: handled(99_999, 1)),
    "a failure run again as a message to come": ("history-wrong", lambda _: handled(0, 99_999)),
    "headers kept for attempts to come": ("history-wrong", lambda _: kept(99_999, 4000)),
    "headers kept for attempts that are indexed": ("history-wrong", lambda _: kept(0, 4000)),
    "headers kept of a message that is there": ("history-wrong", lambda rich: kept(1, rich.ids.waiting)),
    "headers kept of a message to come": ("history-wrong", lambda _: kept(1, 99_999)),
    "headers kept twice": ("history-wrong", lambda _: {**kept(1, 4000), **kept(2, 4000)}),
    "headers kept under another's key": (
        "key-value-mismatch",
        lambda _: dict.fromkeys([keys.history_headers_key(1, 4001)], *kept(1, 4000).values()),
    ),
    "kept headers that do not decode": ("record-corrupt", lambda _: {keys.history_headers_key(1, 4000): b"\1\1"}),
    # ---- results
    "a result without its expiry": (
        "result-expiry",
        lambda _: {keys.result_key(b"new"): results.encode_result(results.Result(2, NOW, b"v"))},
    ),
    "a result that expires before time began": (
        "result-implausible",
        lambda _: {keys.result_key(b"new"): results.encode_result(results.Result(2, -5, b"v"))},
    ),
    "a large result without a chunk": (
        "result-chunks",
        lambda _: {keys.value_chunk_key(keys.result_key(b"large"), 1): None},
    ),
    "a large result in a segment that is missing": ("batch-missing", lambda _: in_segment(b"for ever")),
    "a value in a segment of no result": ("result-chunks", lambda _: in_segment(b"none")),
    "chunks that nothing counts": ("result-chunks", lambda _: {keys.value_chunk_key(b"no owner", 0): b"x"}),
    "chunks of no result": (
        "result-chunks",
        lambda _: {
            keys.large_value_key(b"none"): results.encode_large_value(payload.Chunks(1, 1)),
            keys.value_chunk_key(b"none", 0): b"x",
        },
    ),
    "parts of no chord": ("chord-wrong", lambda _: {keys.chord_key(b"group"): None}),
    "more parts than tasks": (
        "chord-wrong",
        lambda _: {keys.chord_key(b"group"): results.encode_chord(results.Chord(NOW, 1, 0, b""))},
    ),
    "a chord of less than no tasks": (
        "chord-wrong",
        lambda _: {keys.chord_key(b"group"): results.encode_chord(results.Chord(NOW, -7, 0, b""))},
    ),
    "a result of no kind": ("record-corrupt", lambda _: {keys.result_key(b"for ever"): b"\1\7" + bytes(12)}),
}


def a_send(ids: tuple[int, ...], queues: tuple[tuple[str, ...], ...]) -> Changes:
    return {keys.idempotency_key(bytes(16)): idempotency.encode(idempotency.Sending(ids, NOW, bytes(16), queues))}


def in_segment(name: bytes) -> Changes:
    """A result whose value is in a segment that is not there."""
    place = EnvelopePlace("segments/0123456789abcdef-0.segment", 0, 10, 0)
    return {keys.large_value_key(keys.result_key(name)): results.encode_large_value(place)}


def running(session: bytes, id: int, *, started_at: int = NOW) -> Changes:
    """A running task."""
    return {
        keys.running_tasks_key(session): session_records.encode_running_tasks(
            {"a": [RunningTask(id, 1, started_at, 0, 1)]}
        )
    }


def handled(number: int, id: int) -> Changes:
    """A failed attempt that was run again as a message."""
    row = failures.pack_handled(failures.Handled(number, failures.RETRIED, 1, id))
    return {keys.handled_failures_key(number >> 8): failures.join_handled(row)}


def kept(attempt: int, id: int) -> Changes:
    """Headers of a collected message."""
    return {keys.history_headers_key(attempt, id): history_headers.encode([(id, b"\1\1\0k\1\0v")])}


def letter(rich: Rich, **changes: object) -> Changes:
    found = rich.plain.of[RecordKind.DEAD_LETTER][rich.ids.letter, "letters"]._replace(**changes)
    return {keys.dead_letter_key(rich.ids.letter, "letters"): dead_letter.encode(found)}


def first_bucket(rich: Rich, queue: str, done: int = 0, failed: int = 0) -> Changes:
    found = rich.plain.of[RecordKind.OPTIONS][queue]
    return {
        keys.options_key(queue): definitions.encode_options(
            found._replace(first_done_bucket=done, first_failed_bucket=failed)
        )
    }


def test_a_good_store_is_clean(rich: Rich, killed: Rich) -> None:
    for store in (rich, killed):
        report = verify(store.root)
        assert report.status is VerifyStatus.CLEAN, describe(report)
        assert not report.findings
        assert report.messages == 68
    counted = [verify(store.root).records for store in (rich, killed)]
    for records in counted:
        del records["history log"]  # one record a checkpoint
    assert counted[0] == counted[1]


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_found(name: str, rich: Rich, copy_of: Callable[[Rich], Path]) -> None:
    code, make = BROKEN[name]
    changes = make(rich)
    root = copy_of(rich)
    edit(root, changes)
    report = verify(root)
    found = [one for one in report.findings if one.code == code]
    assert found, describe(report)
    assert any(names(one, key) for one in found for key in changes), describe(report)
    is_fault = found[0].severity is not Severity.NOTE
    assert report.status is (VerifyStatus.FINDINGS if is_fault else VerifyStatus.CLEAN)


#: a finding about a message in one of these names the message
_OF_SEVERAL = (A_QUEUE, RecordKind.DONE, RecordKind.SEQ_BLOCK, RecordKind.LEASES)


def names(found: Finding, key: bytes) -> bool:
    """Whether a finding leads to the record: by its key, its message, its queue or the chord's prefix."""
    try:
        parsed = keys.parse(key)
    except CorruptRecord:
        return found.key == key.hex()
    if found.file is not None and parsed.kind is RecordKind.JOURNAL_POSITION:
        return True
    by_value = found.message_id is not None and parsed.kind in _OF_SEVERAL
    same_queue = found.queue is not None and found.queue in (parsed.name, parsed.queue)
    is_chord = parsed.chord is not None and parsed.chord.hex() in found.key
    is_large = parsed.owner is not None and found.key == keys.large_value_key(parsed.owner).hex()
    is_same = found.key == key.hex() or found.message_id == parsed.id is not None
    return is_same or by_value or same_queue or is_chord or is_large
