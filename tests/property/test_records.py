"""Codecs: every record round-trips, and no damage makes a decoder raise anything but CorruptRecord."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kombu_opendata.errors import CorruptRecord, UnsupportedFormat
from kombu_opendata.storage.records import (
    active,
    dead_letter,
    decode_any,
    definitions,
    failures,
    field_types,
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
from kombu_opendata.storage.records.payload_places import EnvelopePlace, segment_path

pytestmark = pytest.mark.contract(15)

u8 = st.integers(0, 2**8 - 1)
u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
u31 = st.integers(0, 2**31 - 1)
segment_paths = u31.map(lambda number: segment_path("0123456789abcdef", number))
holes = st.integers(0, (1 << session_records.WINDOW) - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
message_ids = st.integers(0, keys.MAX_MESSAGE_ID - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
sessions = st.binary(min_size=16, max_size=16)
objects = st.dictionaries(texts, st.none() | st.booleans() | i64 | texts | st.lists(texts, max_size=2), max_size=3)
some_counts = st.dictionaries(u8, st.integers(1, 2**16 - 1), min_size=1)
#: of a full block most are small
counts = some_counts | st.builds(
    lambda row, others: {place: byte % 4 for place, byte in enumerate(row) if byte % 4} | others,
    st.binary(min_size=256, max_size=256),
    some_counts,
)
entries = st.lists(st.tuples(u64, u8, i64, i64, u16), max_size=5)
settled_entries = st.lists(st.tuples(u64, i64, u16), max_size=5)


def block_of(value: dict[int, int]) -> bytes:
    """A routes block, of place → count."""
    block = routes_block.empty()
    for place, count in value.items():
        block[place] = count
    return routes_block.encode(block)


class Format(NamedTuple):
    """A record's key, the arguments of its encoder, and how they compare with what it decodes to."""

    key: bytes
    values: st.SearchStrategy[Any]
    encode: Callable[[Any], bytes]
    expected: Callable[[Any], object] = lambda value: value


def pack_settled(entries: Iterable[tuple[int, int, int]]) -> bytes:
    return settled.join(settled.pack_entries(entries))


FORMATS = {
    "payload inline": Format(keys.payload_key(1), st.binary(max_size=40), payload.encode_inline),
    "payload uri": Format(keys.payload_key(1), texts, payload.encode_uri, payload.PayloadURI),
    "segment": Format(
        keys.segment_key("segments/0123456789abcdef-0.segment"),
        st.tuples(st.integers(1, (1 << 64) - 1), u64).map(lambda fields: payload.SegmentUse(*fields)),
        payload.encode_segment,
    ),
    "metadata": Format(
        keys.metadata_key(1),
        st.tuples(u64, i64, i64, i64, u32, st.lists(st.tuples(texts, texts), max_size=4).map(tuple)),
        lambda value: metadata.encode(*value),
        lambda value: metadata.Metadata(*value),
    ),
    "partition": Format(
        keys.partition_key("q", 7),
        st.tuples(texts, texts, i64, i64).map(lambda fields: partition.PartitionRecord(*fields)),
        partition.encode,
    ),
    "handled failures": Format(
        keys.handled_failures_key(3),
        st.lists(st.tuples(st.integers(0, 255), st.integers(1, 2), i64, u64), min_size=1, unique_by=lambda row: row[0]),
        lambda rows: failures.join_handled(
            b"".join(failures.pack_handled(failures.Handled(768 + row[0], *row[1:])) for row in rows)
        ),
        lambda rows: [failures.Handled(768 + row[0], *row[1:]) for row in rows],
    ),
    "seq block": Format(keys.SEQ_BLOCK_KEY, st.tuples(u64, u64), lambda value: store_records.encode_seq_block(*value)),
    "active": Format(keys.active_key("q", 3), st.tuples(entries, entries), lambda value: active.encode(*value)),
    "done": Format(keys.done_key("q"), settled_entries, pack_settled),
    "failed": Format(keys.failed_key("q", 1), settled_entries, pack_settled),
    "archived failed": Format(keys.archived_failed_key("q", 1), settled_entries, pack_settled),
    "attempts": Format(keys.attempts_key(1), st.lists(texts, max_size=4), active.encode_attempts),
    "config": Format(
        keys.config_key("q"), st.builds(definitions.QueueConfig, texts, u16, u32), definitions.encode_config
    ),
    "header": Format(
        keys.STORE_HEADER_KEY,
        st.builds(store_records.StoreHeader, i64, texts, st.just(store_records.FORMAT_VERSION)),
        store_records.encode_header,
    ),
    "exchange": Format(
        keys.exchange_key("e"),
        st.builds(definitions.ExchangeRecord, texts, st.booleans(), st.booleans(), objects),
        definitions.encode_exchange,
    ),
    "binding": Format(keys.binding_key("e", "q", "k"), objects, definitions.encode_binding),
    "options": Format(
        keys.options_key("q"),
        st.builds(definitions.QueueOptionsRecord, u32, u32, u64, u64, objects),
        definitions.encode_options,
    ),
    "overrides": Format(
        keys.overrides_key("q"),
        st.builds(definitions.QueueOverrides, st.integers(0, 3), i64, objects),
        definitions.encode_overrides,
    ),
    "flow": Format(keys.flow_key("q"), st.builds(definitions.FlowRecord, u64, i64), definitions.encode_flow),
    "result": Format(
        keys.result_key(b"k"),
        st.builds(results.Result, st.integers(0, 2), i64, st.binary(max_size=20), st.none()),
        results.encode_result,
    ),
    "result expiry": Format(keys.result_expiry_key(1, b"k"), st.none(), lambda _value: field_types.VERSION_ONLY),
    "chord": Format(
        keys.chord_key(b"g"),
        st.builds(
            results.Chord,
            i64,
            i64,
            i64,
            st.binary(max_size=20),
            st.binary(max_size=3),
            st.lists(st.binary(max_size=3), max_size=3).map(tuple),
        ),
        results.encode_chord,
    ),
    "large value": Format(
        keys.large_value_key(b"k"),
        st.builds(payload.Chunks, u32, st.integers(0, 2**64 - 1))
        | st.builds(EnvelopePlace, segment_paths, u31, u31, u32, st.integers(1, 2**31 - 1), st.just(0)),
        results.encode_large_value,
    ),
    "chord part": Format(keys.chord_part_key(b"g", 1, b"m"), st.binary(max_size=20), results.encode_part),
    "producer": Format(
        keys.producer_key(bytes(16)),
        st.builds(session_records.Producer, u64, u64, u31, i64, holes),
        session_records.encode_producer,
    ),
    "removal": Format(
        keys.removal_key(bytes(16)),
        st.builds(session_records.Removal, u64, u64, i64, st.booleans()),
        session_records.encode_removal,
    ),
    "log retention": Format(
        keys.LOG_RETENTION_KEY,
        st.builds(store_records.LogRetention, st.integers(-1, 2**63 - 1), u64, i64, u64),
        store_records.encode_log_retention,
    ),
    "leases": Format(
        keys.session_key(bytes(16)),
        st.builds(
            lambda consumer, at, rows, owner: session_records.SessionLeases(
                consumer,
                at,
                {queue: [id for id, _deadline in some] for queue, (_expires, some) in rows.items()},
                {
                    queue: [deadline for _id, deadline in some]
                    for queue, (expires, some) in rows.items()
                    if expires and some
                },
                owner,
            ),
            texts,
            st.integers(0, 2**63 - 1),
            st.dictionaries(texts, st.tuples(st.booleans(), st.lists(st.tuples(u64, i64), max_size=4)), max_size=3),
            texts,
        ),
        session_records.encode_leases,
    ),
    "dead letter": Format(
        keys.dead_letter_key(1, "q"),
        st.builds(dead_letter.DeadLetter, texts, i64, st.integers(0, 255), texts, st.none() | texts, st.booleans()),
        dead_letter.encode,
    ),
    "cursor": Format(
        keys.cursor_key("q"),
        st.builds(
            routing_cursor.Cursor, u64, u64, u64, i64, i64, i64, i64, u64, u64, st.booleans(), st.booleans(), texts
        ),
        routing_cursor.encode,
    ),
    "queue counts": Format(
        keys.queue_counts_key("q"),
        st.builds(definitions.StoredCounts, i64, i64, st.lists(u64, max_size=4).map(tuple)),
        definitions.encode_counts,
    ),
    "idempotency": Format(
        keys.idempotency_key(bytes(16)),
        st.builds(
            idempotency.Sending,
            st.lists(i64, max_size=4).map(tuple),
            i64,
            st.binary(min_size=16, max_size=16),
            st.lists(st.lists(texts, max_size=3).map(tuple), max_size=3).map(tuple),
            st.none(),
        ),
        idempotency.encode,
    ),
    "unique key": Format(
        keys.idempotency_key(bytes(16)),
        st.builds(
            idempotency.Sending,
            st.tuples(i64),
            i64,
            st.binary(min_size=16, max_size=16),
            st.tuples(st.tuples(texts, texts)),
            st.builds(idempotency.UniqueHold, st.integers(0, 2), st.booleans(), texts, st.tuples(u64, u64)),
        ),
        idempotency.encode,
    ),
    "staged job": Format(
        keys.staged_job_key("j"),
        st.builds(
            staged_jobs.StagedJob,
            st.just("j"),
            u64,
            u64,
            u32,
            u64,
            i64,
            u64,
            u64,
            u64,
            i64,
            st.dictionaries(texts, st.lists(u64, min_size=4, max_size=4), max_size=3),
            u64,
            st.lists(u64, min_size=(ends := len(staged_jobs.END_STATES)), max_size=ends),
            st.floats(0, allow_nan=False),
            i64,
            i64,
            texts,
            st.binary(max_size=9),
        ),
        staged_jobs.encode_job,
    ),
    "staged object": Format(
        keys.staged_object_key(1),
        st.builds(
            lambda rows, live, *rest: staged_jobs.StagedObject(1, max(rows, live), live, *rest),
            u64,
            u64,
            u64,
            u32,
            texts,
            texts,
        ),
        staged_jobs.encode_object,
    ),
    "staged ends": Format(
        keys.staged_ends_key(1),
        st.lists(st.sampled_from([0, 1, 2, 12, 254, 255]), min_size=1, max_size=4096).map(bytearray),
        staged_jobs.encode_ends,
    ),
    "staged follower": Format(
        keys.staged_follower_key(1),
        st.builds(staged_jobs.Follower, u64, u64, u16, st.sampled_from([0, 1, 12, 254, 255])),
        staged_jobs.encode_follower,
    ),
    "staged expiry": Format(keys.staged_expiry_key(1, "j"), st.none(), lambda _value: field_types.VERSION_ONLY),
    "routes block": Format(
        keys.routes_block_key(513),
        counts,
        block_of,
        lambda value: {512 + place: count for place, count in value.items()},
    ),
    "running tasks": Format(
        keys.running_tasks_key(bytes(16)),
        st.dictionaries(
            texts, st.lists(st.builds(session_records.RunningTask, u64, i64, i64, u32, u16), max_size=3), max_size=3
        ),
        session_records.encode_running_tasks,
    ),
    "task failure": Format(
        keys.task_failure_key(7), st.builds(failures.TaskFailure, texts, texts), failures.encode_task_failure
    ),
    "newest time": Format(keys.NEWEST_TIME_KEY, i64, store_records.encode_newest_time),
    "journal position": Format(keys.JOURNAL_POSITION_KEY, u64, store_records.encode_journal_position),
}
formats = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


def test_every_kind_of_record_is_tested() -> None:
    tested = {keys.parse(form.key).kind for form in FORMATS.values()}
    elsewhere = {kind for kind in keys.RecordKind if kind.name.startswith("HISTORY_")}  # tests/golden/test_history.py
    chunks = {keys.RecordKind.CHUNK, keys.RecordKind.VALUE_CHUNK}  # raw bytes
    assert tested == set(keys.RecordKind) - elsewhere - chunks


@formats
@given(data=st.data())
def test_round_trip(form: Format, data: st.DataObject) -> None:
    value = data.draw(form.values)
    assert _plain(decode_any(form.key, form.encode(value))) == _plain(form.expected(value))


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


@formats
@settings(max_examples=30)  # each has a hundred truncations
@given(data=st.data())
def test_every_truncation_is_corrupt(form: Format, data: st.DataObject) -> None:
    stored = form.encode(data.draw(form.values))
    for end in range(len(stored)):
        with pytest.raises(CorruptRecord) as caught:
            decode_any(form.key, stored[:end])
        assert form.key.hex() in str(caught.value)
        assert caught.value.values["key"] == form.key


@formats
@settings(max_examples=30)
@given(data=st.data(), more=st.binary(min_size=1, max_size=30))
def test_trailing_bytes_are_corrupt(form: Format, data: st.DataObject, more: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode_any(form.key, form.encode(data.draw(form.values)) + more)


@formats
@given(data=st.data(), flips=st.lists(st.tuples(u16, st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bytes_decode_or_are_corrupt(form: Format, data: st.DataObject, flips: list[tuple[int, int]]) -> None:
    stored = bytearray(form.encode(data.draw(form.values)))
    for place, mask in flips:
        stored[place % len(stored)] ^= mask
    _decode_damaged(form.key, bytes(stored))


def _decode_damaged(key: bytes, value: bytes) -> None:
    try:
        decode_any(key, value)
    except CorruptRecord as error:
        assert error.values["key"] == key  # noqa: PT017 - it need not raise
    except UnsupportedFormat:
        assert key == keys.STORE_HEADER_KEY  # a damaged version number is like another version's


# ---- keys
names = texts | st.binary(max_size=10).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
parsed_keys = st.one_of(
    st.builds(lambda i: (keys.payload_key(i), keys.ParsedKey(keys.RecordKind.PAYLOAD, id=i)), message_ids),
    st.builds(lambda i: (keys.metadata_key(i), keys.ParsedKey(keys.RecordKind.METADATA, id=i)), message_ids),
    st.builds(lambda q, b: (keys.active_key(q, b), keys.ParsedKey(keys.RecordKind.ACTIVE, q, b)), names, u64),
    st.builds(lambda q, b: (keys.done_key(q, b), keys.ParsedKey(keys.RecordKind.DONE, q, b)), names, u64),
    st.builds(lambda q, b: (keys.failed_key(q, b), keys.ParsedKey(keys.RecordKind.FAILED, q, b)), names, u64),
    st.builds(
        lambda q, b: (keys.archived_failed_key(q, b), keys.ParsedKey(keys.RecordKind.ARCHIVED_FAILED, q, b)), names, u64
    ),
    st.builds(lambda i: (keys.attempts_key(i), keys.ParsedKey(keys.RecordKind.ATTEMPTS, id=i)), message_ids),
    st.builds(lambda q: (keys.config_key(q), keys.ParsedKey(keys.RecordKind.CONFIG, q)), names),
    st.builds(lambda e: (keys.exchange_key(e), keys.ParsedKey(keys.RecordKind.EXCHANGE, e)), names),
    st.builds(
        lambda e, q, r: (
            keys.binding_key(e, q, r),
            keys.ParsedKey(keys.RecordKind.BINDING, e, queue=q, routing_key=r),
        ),
        names,
        names,
        names,
    ),
    st.builds(lambda q: (keys.options_key(q), keys.ParsedKey(keys.RecordKind.OPTIONS, q)), names),
    st.builds(lambda s: (keys.producer_key(s), keys.ParsedKey(keys.RecordKind.PRODUCER, session=s)), sessions),
    st.builds(lambda s: (keys.removal_key(s), keys.ParsedKey(keys.RecordKind.REMOVAL, session=s)), sessions),
    st.builds(lambda s: (keys.session_key(s), keys.ParsedKey(keys.RecordKind.LEASES, session=s)), sessions),
    st.builds(
        lambda i, n: (keys.chunk_key(i, n), keys.ParsedKey(keys.RecordKind.CHUNK, id=i, chunk=n)), message_ids, u32
    ),
    st.builds(
        lambda i: (keys.routes_block_key(i), keys.ParsedKey(keys.RecordKind.ROUTES_BLOCK, numbers=(i >> 8,))),
        message_ids,
    ),
    st.builds(
        lambda e, q, r, text: (
            keys.binding_key(e, q, r, text),
            keys.ParsedKey(
                keys.RecordKind.BINDING,
                e,
                queue=q,
                routing_key=r,
                digest=hashlib.blake2b(text.encode(), digest_size=8).digest(),
            ),
        ),
        names,
        names,
        names,
        st.text("abc", min_size=1),
    ),
    st.builds(
        lambda i, q: (keys.dead_letter_key(i, q), keys.ParsedKey(keys.RecordKind.DEAD_LETTER, q, id=i)),
        message_ids,
        names,
    ),
    st.builds(lambda q: (keys.cursor_key(q), keys.ParsedKey(keys.RecordKind.CURSOR, q)), names),
    st.builds(lambda q: (keys.queue_counts_key(q), keys.ParsedKey(keys.RecordKind.QUEUE_COUNTS, q)), names),
    st.builds(lambda j: (keys.staged_job_key(j), keys.ParsedKey(keys.RecordKind.STAGED_JOB, j)), names),
    st.builds(lambda i: (keys.staged_object_key(i), keys.ParsedKey(keys.RecordKind.STAGED_OBJECT, id=i)), message_ids),
    st.builds(lambda i: (keys.staged_ends_key(i), keys.ParsedKey(keys.RecordKind.STAGED_ENDS, id=i)), message_ids),
    st.builds(
        lambda i: (keys.staged_follower_key(i), keys.ParsedKey(keys.RecordKind.STAGED_FOLLOWER, id=i)), message_ids
    ),
    st.builds(
        lambda at, j: (
            keys.staged_expiry_key(at, j),
            keys.ParsedKey(keys.RecordKind.STAGED_EXPIRY, j, expires_at_ms=at),
        ),
        u64,
        names.filter(bool),
    ),
)


@given(st.binary(max_size=30), st.binary(max_size=5))
def test_terminated_bytes_round_trip(raw: bytes, after: bytes) -> None:
    stored = field_types.terminated(raw)
    assert stored.index(0) == len(stored) - 1
    assert field_types.read_terminated(b"\xaa" + stored + after, 1) == (raw, 1 + len(stored))


@given(parsed_keys)
def test_keys_parse_to_what_built_them(built: tuple[bytes, keys.ParsedKey]) -> None:
    key, expected = built
    assert keys.parse(key) == expected


@given(parsed_keys)
def test_a_key_is_in_the_range_of_its_own_kind_only(built: tuple[bytes, keys.ParsedKey]) -> None:
    key, expected = built
    inside = {kind for kind in keys.RecordKind if keys.kind_range(kind)[0] <= key < keys.kind_range(kind)[1]}
    assert inside == {expected.kind}


@given(parsed_keys, st.lists(st.tuples(u16, st.integers(1, 255)), max_size=3), u16)
def test_damaged_keys_parse_or_are_corrupt(
    built: tuple[bytes, keys.ParsedKey], flips: list[tuple[int, int]], length: int
) -> None:
    key = bytearray(built[0])
    for place, mask in flips:
        key[place % len(key)] ^= mask
    try:
        keys.parse(bytes(key[: length % (len(key) + 1)]))
    except CorruptRecord as error:
        assert str(error)  # noqa: PT017 - it need not raise


def _decoded(decoder: metadata.Decoder, value: bytes) -> Any:
    try:
        return decoder.decode(keys.metadata_key(1), value)
    except CorruptRecord as error:
        return str(error)


similar_texts = st.sampled_from(["", "a", "b", "aa", "bb", "\0", "ä"])
header_lists = st.lists(st.tuples(similar_texts, similar_texts), max_size=4)


@given(
    st.none() | st.sets(similar_texts),
    st.lists(st.tuples(header_lists, st.lists(st.tuples(u16, st.integers(1, 255)), max_size=1)), max_size=20),
)
def test_a_decoder_remembers_nothing_but_layouts(
    wanted: set[str] | None, records: list[tuple[list[tuple[str, str]], list[tuple[int, int]]]]
) -> None:
    """Records before it change nothing about how one is read, also a damaged one."""
    decoder = metadata.Decoder(wanted)
    for number, (headers, flips) in enumerate(records):
        value = bytearray(metadata.encode(number, 1, 2, 3, 4, headers))
        for place, mask in flips:
            value[place % len(value)] ^= mask
        found = _decoded(decoder, bytes(value))
        assert found == _decoded(metadata.Decoder(wanted), bytes(value))
        if not flips:
            kept = tuple(pair for pair in headers if wanted is None or pair[0] in wanted)
            assert found == metadata.Metadata(number, 1, 2, 3, 4, kept)


def test_a_decoder_does_not_remember_what_is_large() -> None:
    decoder = metadata.Decoder({"k"})
    for number in range(50):
        text = f"{number:05d}" * 2000
        assert decoder.decode(b"", metadata.encode(number, 1, 2, 3, 4, {"k": text, "l": "m"})).headers == {"k": text}
    assert not decoder._known
    assert not decoder._layouts
    decoder.decode(b"", metadata.encode(1, 1, 2, 3, 4, {"k": "small"}))
    assert decoder._known
    assert decoder._layouts


@given(available=entries, in_flight=entries)
def test_columns_of_a_bucket(available: list[tuple[int, int, int, int, int]], in_flight: list[Any]) -> None:
    columns = active.decode_columns(keys.active_key("q", 3), active.encode(available, in_flight))
    if in_flight or not available:
        assert columns is None
    else:
        assert columns is not None
        assert list(zip(*columns, strict=True)) == [row[:4] for row in available]
