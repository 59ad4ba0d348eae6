from __future__ import annotations

import zlib
from dataclasses import replace

import pytest

from kombu_opendata.errors import CorruptRecord, RequestError
from kombu_opendata.storage.records import decode_any, field_types, keys, staged_jobs
from kombu_opendata.storage.records.kinds import ParsedKey

JOB = staged_jobs.StagedJob("j", 4096, 300, 2, 70_000, 1769385600000, 256, 5, 1, 0, {"celery": [250, 3, 2, 1]})
OBJECT = staged_jobs.StagedObject(1, 300, 299, 70_000, 0xCAFEBABE, "ab/0-0-cd.batch", "job")


def test_an_object_cannot_have_more_live_messages_than_rows() -> None:
    with pytest.raises(CorruptRecord, match="live messages"):
        decode_any(keys.staged_object_key(1), staged_jobs.encode_object(replace(OBJECT, live=301)))


@pytest.mark.parametrize(
    "value", [staged_jobs.encode_job(JOB), staged_jobs.encode_object(OBJECT), field_types.VERSION_ONLY]
)
def test_another_version_is_corrupt(value: bytes) -> None:
    key = {0: keys.staged_job_key("j")}.get(
        len(value) - len(staged_jobs.encode_job(JOB)), keys.staged_expiry_key(1, "j")
    )
    if value == staged_jobs.encode_object(OBJECT):
        key = keys.staged_object_key(1)
    with pytest.raises(CorruptRecord, match="record version 9"):
        decode_any(key, b"\x09" + value[1:])


def test_a_number_out_of_range_is_refused() -> None:
    with pytest.raises(RequestError, match="does not fit"):
        staged_jobs.encode_job(replace(JOB, rows=-1))


def test_an_unknown_number_of_final_states_is_corrupt() -> None:
    value = staged_jobs.encode_job(replace(JOB, ended=[0] * 13))
    with pytest.raises(CorruptRecord, match="13 final states"):
        decode_any(keys.staged_job_key("j"), value)


def test_a_truncated_message_on_completion_is_corrupt() -> None:
    value = staged_jobs.encode_job(replace(JOB, on_complete=b"body"))
    with pytest.raises(CorruptRecord):
        decode_any(keys.staged_job_key("j"), value[:-1])


def packed(codes: bytes) -> bytes:
    return field_types.VERSION_ONLY + zlib.compress(codes)


@pytest.mark.parametrize(
    "value",
    [
        packed(b""), packed(bytes(4097)), packed(b"\x0d"), packed(b"\xfd"), packed(b"\0")[:-1], packed(b"\0") + b"\0",
        b"\x01\0", b"\x02", b"",
    ],
)  # fmt: skip
def test_ends_that_no_broker_writes_are_corrupt(value: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode_any(keys.staged_ends_key(1), value)


def test_a_follower_with_an_unknown_code_is_corrupt() -> None:
    value = staged_jobs.encode_follower(staged_jobs.Follower(1, 2, 1, 13))
    with pytest.raises(CorruptRecord, match="code 13"):
        decode_any(keys.staged_follower_key(1), value)


def test_keys_sort_by_time_and_say_whose_they_are() -> None:
    assert keys.staged_expiry_key(5) < keys.staged_expiry_key(5, "a") < keys.staged_expiry_key(6)
    assert keys.parse(keys.staged_expiry_key(5, "a")) == ParsedKey(keys.RecordKind.STAGED_EXPIRY, "a", expires_at_ms=5)
