"""The checked-in bytes of the records of history, and of running tasks and failures, which belong to it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from kombu_opendata.errors import CorruptRecord
from kombu_opendata.storage.records import (
    decode_any,
    failures,
    history_headers,
    history_index,
    history_log,
    history_trail,
    keys,
    metadata,
    session_records,
)
from kombu_opendata.storage.records.failures import Handled, TaskFailure
from kombu_opendata.storage.records.history_index import IndexHead, PostingRun
from kombu_opendata.storage.records.history_log import Attempt, ChunkRows, Left
from kombu_opendata.storage.records.history_trail import TrailEvent
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.records.session_records import RunningTask

VECTORS = {one["name"]: one for one in json.loads(Path(__file__).with_name("history.json").read_text())}
AT = 1769385600000
LOG = ChunkRows(
    [258, 259, 300],
    {"celery": [258, 259], "b": [258, 300]},
    [Left(300, "b", AT + 500, 1)],
    [
        Attempt(258, "celery", "celery@a", AT + 7, AT + 90, 1, history_log.ACKED),
        Attempt(259, "celery", "", AT + 8, AT + 91, 20, history_log.REDRIVEN | history_log.MANUAL),
    ],
)
REPORTED = LOG._replace(
    attempts=[
        *LOG.attempts,
        Attempt(300, "b", "celery@a", AT + 9, AT + 92, 1, history_log.ACKED, 1, 1_500_000, 4321),
        Attempt(
            259, "celery", "é", AT + 9, AT + 93, 2, history_log.REJECTED, 2 | history_log.DETAILED, 7, 8, "app.Bad"
        ),
    ]
)
RUNNING = {"celery": [RunningTask(258, AT, AT + 5, 60_000, 1)], "é\0": []}
FAILURE = TaskFailure("no “luck”", "Traceback: …")
TRAIL = [
    TrailEvent(257, "celery", history_trail.ROUTED),
    TrailEvent(257, "celery", 0, 1, AT + 90, 7),
    TrailEvent(511, "b", history_trail.LEFT + 1, 0, AT + 500),
]
HEAD = IndexHead(3, 9, 100, 250, 12, (PostingRun(0, 4, 1, 6, 258, 9000, 77), PostingRun(1, 8, 0, 6, 0, 99, 5)))
HEADERS = {258: (("task", "add"), ("id", "ä")), 300: (), 1 << 40: (("k", ""), ("k", "v"))}
HANDLED = [Handled(511, 1, AT, 300), Handled(256, 2, AT + 1, 0)]
PARTS = [(id, bytes((len(pairs),)) + metadata.encode_pairs(pairs)) for id, pairs in HEADERS.items()]
BITS = sum(1 << 2 * number for number in range(400))

#: key, encoded value, decoded
RECORDS = {
    "log": (keys.history_log_key(7, 12), history_log.encode(LOG), LOG),
    "reported_log": (keys.history_log_key(7, 12), history_log.encode(REPORTED), REPORTED),
    "running_tasks": (keys.running_tasks_key(bytes(range(16))), session_records.encode_running_tasks(RUNNING), RUNNING),
    "task_failure": (keys.task_failure_key(10), failures.encode_task_failure(FAILURE), FAILURE),
    "postings_range": (
        keys.history_postings_key(0, 0x0102030405060708, 9, 3),
        history_index.encode_postings([9 * 4096 + 5, 9 * 4096 + 6, 9 * 4096 + 7]),
        0b1110_0000,
    ),
    "postings_offsets": (
        keys.history_postings_key(1, 2, 0, 0),
        history_index.encode_postings([4095, 1, 300]),
        1 << 1 | 1 << 300 | 1 << 4095,
    ),
    "postings_bits": (
        keys.history_postings_key(1, 2, 1, 0),
        history_index.encode_postings([4096 + 2 * number for number in range(400)]),
        BITS,
    ),
    "segment": (keys.history_segment_key(1, 2, 3), history_index.encode_segment([1, 1 << 63]), [1, 1 << 63]),
    "trail": (keys.history_trail_key(1, 3), history_trail.encode(TRAIL), TRAIL),
    "page": (keys.history_page_key(0, 4, 63), history_index.encode_page([5, 1 << 63], [258, 9000]), None),
    "head": (keys.HISTORY_HEAD_KEY, history_index.encode_head(HEAD), HEAD),
    "headers": (keys.history_headers_key(9, 258), history_headers.encode(PARTS), HEADERS),
    "handled": (
        keys.handled_failures_key(1),
        failures.join_handled(b"".join(map(failures.pack_handled, HANDLED))),
        HANDLED,
    ),
}


def test_every_vector_and_every_kind_is_tested() -> None:
    assert set(VECTORS) == set(RECORDS)
    kinds = {keys.parse(key).kind for key, _value, _decoded in RECORDS.values()}
    history = {kind for kind in RecordKind if kind.name.startswith("HISTORY_")}
    beside = {RecordKind.RUNNING_TASKS, RecordKind.TASK_FAILURE, RecordKind.HANDLED_FAILURES}
    assert kinds == history | beside


@pytest.mark.parametrize("rows", [LOG, REPORTED])
def test_single_attempts_are_read_from_both_versions(rows: ChunkRows) -> None:
    key, value = keys.history_log_key(7, 12), history_log.encode(rows)
    assert value[0] == (1 if rows is LOG else 2)
    assert history_log.attempts_of(key, value) == len(rows.attempts)
    for place, attempt in enumerate(rows.attempts):
        assert history_log.attempt_at(key, value, place) == attempt
        assert history_log.ended_at(key, value, place) == attempt.ended_at_ms


@pytest.mark.parametrize("name", RECORDS)
def test_record(name: str) -> None:
    key, value, wanted = RECORDS[name]
    assert key.hex() == VECTORS[name]["key_hex"]
    assert value.hex() == VECTORS[name]["value_hex"]
    decoded = decode_any(key, value)
    if name == "page":
        hashes, positions = history_index.decode_page(key, value)
        assert (list(hashes), list(positions)) == ([5, 1 << 63], [258, 9000])
    elif name == "segment":
        assert list(history_index.decode_segment(key, value)) == wanted
    else:
        assert decoded == wanted


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_was_cut_is_corrupt(name: str) -> None:
    """Postings say nothing of their length: those that are cut between two offsets read as fewer."""
    key, value, _decoded = RECORDS[name]
    for end in range(len(value)):
        if name in ("postings_offsets", "segment") and (end - 1) % (2 if name == "postings_offsets" else 8) == 0:
            continue
        with pytest.raises(CorruptRecord) as caught:
            decode_any(key, value[:end])
        assert caught.value.values["key"] == key


@pytest.mark.parametrize("name", RECORDS)
def test_damage_is_found_or_harmless(name: str) -> None:
    """No byte makes a decoder fail otherwise than it says."""
    key, value, _decoded = RECORDS[name]
    for at in range(min(len(value), 200)):
        for byte in (0, 1, 0x7F, 0xFF):
            broken = value[:at] + bytes((byte,)) + value[at + 1 :]
            with suppress(CorruptRecord):
                decode_any(key, broken)


def test_single_attempts_are_read_alone() -> None:
    key, value, _decoded = RECORDS["log"]
    assert history_log.attempts_of(key, value) == 2
    assert [history_log.attempt_at(key, value, index) for index in (0, 1)] == LOG.attempts
    assert [history_log.ended_at(key, value, index) for index in (0, 1)] == [AT + 90, AT + 91]
    with pytest.raises(CorruptRecord):
        history_log.attempt_at(key, value, 2)


def test_events_of_single_messages_are_read_alone() -> None:
    key, value, _decoded = RECORDS["trail"]
    assert history_trail.decode_some(key, value, [511, 300, 5000]) == TRAIL[2:]


def test_headers_of_single_messages_are_read_alone() -> None:
    key, value, _decoded = RECORDS["headers"]
    table = history_headers.HeaderTable(key, value)
    assert [table.find(id) for id in HEADERS] == list(HEADERS.values())
    assert list(table.ids) == [258, 300, 1 << 40]
    broken = history_headers.HeaderTable(key, value.replace(b"add", b"\xffdd"))
    assert broken.find(300) == ()
    with pytest.raises(CorruptRecord, match="not UTF-8"):
        broken.find(258)


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([PARTS[1], PARTS[0]], "do not ascend"),
        ([PARTS[0], PARTS[0]], "do not ascend"),
        ([(258, PARTS[0][1] + b"\0")], "should end at byte"),
        ([(258, b"\1" + PARTS[0][1][1:])], "should end at byte"),
        ([(258, b"\3" + PARTS[0][1][1:])], "2 bytes expected, 0 found"),
        ([(258, b"")], "1 bytes expected, 0 found"),
    ],
)
def test_headers_that_contradict_their_head_are_corrupt(messages: list[tuple[int, bytes]], text: str) -> None:
    key = keys.history_headers_key(9, 258)
    with pytest.raises(CorruptRecord, match=text):
        history_headers.decode(key, history_headers.encode(messages))


def test_headers_of_no_message_are_corrupt() -> None:
    with pytest.raises(CorruptRecord, match="no messages"):
        history_headers.decode(keys.history_headers_key(9, 258), b"\1" + bytes(4))


def test_the_headers_of_a_metadata_record_are_taken_as_they_are() -> None:
    key = keys.metadata_key(258)
    value = metadata.encode(258, AT, AT, AT, 0, HEADERS[258])
    assert metadata.headers_part(key, value) == PARTS[0][1]
    with pytest.raises(CorruptRecord):
        metadata.headers_part(key, value[:-1])
