"""The checked-in bytes of RFC 0001's records: every vector is encoded and decoded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.storage.records import (
    active,
    decode_any,
    definitions,
    field_types,
    keys,
    metadata,
    payload,
    routes_block,
    routing_cursor,
    settled,
    staged_jobs,
    store_records,
)

VECTORS: dict[str, dict[str, Any]] = {
    vector["name"]: vector for vector in json.loads(Path(__file__).with_name("rfc0001.json").read_text())
}
Fields = dict[str, Any]
#: key, encoded value, what the value decodes to
Record = tuple[bytes, bytes, object]


def _queue(fields: Fields) -> str:
    return (
        str(fields["queue"])
        if "queue" in fields
        else bytes.fromhex(fields["queue_hex"]).decode("utf-8", "surrogateescape")
    )


def _tuples(rows: list[list[Any]]) -> list[Any]:
    return [tuple(row) for row in rows]


def _payload_inline(fields: Fields) -> Record:
    body = bytes.fromhex(fields["payload_hex"])
    return keys.payload_key(fields["message_id"]), payload.encode_inline(body), body


def _payload_uri(fields: Fields) -> Record:
    uri = fields["uri"]
    return keys.payload_key(fields["message_id"]), payload.encode_uri(uri), payload.PayloadURI(uri)


def _seq_block(fields: Fields) -> Record:
    block = fields["base_sequence"], fields["block_size"]
    return keys.SEQ_BLOCK_KEY, store_records.encode_seq_block(*block), block


def _metadata(fields: Fields) -> Record:
    names = ("message_id", "created_at", "received_at", "visible_at", "retention_seconds")
    message_id, created_at, received_at, visible_at, retention = (fields[name] for name in names)
    pairs = tuple(_tuples(fields["headers"]))
    key = keys.metadata_key(message_id)
    value = metadata.encode(message_id, created_at, received_at, visible_at, retention, dict(pairs))
    return key, value, metadata.Metadata(message_id, created_at, received_at, visible_at, retention, pairs)


def _active(fields: Fields) -> Record:
    lists = _tuples(fields["available"]), _tuples(fields["in_flight"])
    return keys.active_key(_queue(fields), fields["bucket"]), active.encode(*lists), lists


def _done(fields: Fields) -> Record:
    entries = _tuples(fields["done"])
    return keys.done_key(_queue(fields)), settled.join(settled.pack_entries(entries)), entries


def _failed(fields: Fields) -> Record:
    entries = _tuples(fields["failed"])
    return keys.failed_key(_queue(fields)), settled.join(settled.pack_entries(entries)), entries


def _attempts(fields: Fields) -> Record:
    return keys.attempts_key(fields["message_id"]), active.encode_attempts(fields["consumers"]), fields["consumers"]


def _queue_config(fields: Fields) -> Record:
    settings = definitions.QueueConfig(fields["filter"], fields["max_attempts"], fields["done_retention_seconds"])
    return keys.config_key(_queue(fields)), definitions.encode_config(settings), settings


def _overrides(fields: Fields) -> Record:
    found = definitions.QueueOverrides(fields["paused"], fields["paused_at_ms"], fields["arguments"])
    return keys.overrides_key(_queue(fields)), definitions.encode_overrides(found), found


def _cursor(fields: Fields) -> Record:
    found = routing_cursor.Cursor(**{name: value for name, value in fields.items() if name != "queue"})
    return keys.cursor_key(_queue(fields)), routing_cursor.encode(found), found


def _staged_job(fields: Fields) -> Record:
    given = {"id" if name == "job_id" else name: value for name, value in fields.items()}
    job = staged_jobs.StagedJob(**given | {"on_complete": given["on_complete"].encode()})
    return keys.staged_job_key(job.id), staged_jobs.encode_job(job), asdict(job)


def _staged_object(fields: Fields) -> Record:
    found = staged_jobs.StagedObject(**fields)
    return keys.staged_object_key(found.first_id), staged_jobs.encode_object(found), asdict(found)


def _staged_expiry(fields: Fields) -> Record:
    return keys.staged_expiry_key(fields["settled_at_ms"], fields["job_id"]), field_types.VERSION_ONLY, None


def _routes_block(fields: Fields) -> Record:
    counts = {int(id): count for id, count in fields["counts"].items()}
    block = routes_block.empty()
    for id, count in counts.items():
        block[id & 255] = count
    return keys.routes_block_key(min(counts)), routes_block.encode(block), counts


RECORDS: dict[str, Callable[[Fields], Record]] = {
    "payload_inline": _payload_inline,
    "payload_uri": _payload_uri,
    "seq_block": _seq_block,
    "metadata": _metadata,
    "active_bucket_0": _active,
    "active_bucket_7": _active,
    "active_escaped_queue": _active,
    "done": _done,
    "failed": _failed,
    "attempts": _attempts,
    "queue_config": _queue_config,
    "overrides": _overrides,
    "cursor": _cursor,
    "staged_job": _staged_job,
    "staged_object": _staged_object,
    "staged_expiry": _staged_expiry,
    "routes_block_sparse": _routes_block,
    "routes_block_dense": _routes_block,
}


def test_every_vector_is_tested() -> None:
    assert set(VECTORS) == {*RECORDS, "terminated_bytes", "staged_job_version_1"}


def test_terminated_bytes() -> None:
    vector = VECTORS["terminated_bytes"]
    raw, stored = bytes.fromhex(vector["fields"]["raw_hex"]), bytes.fromhex(vector["value_hex"])
    assert field_types.terminated(raw) == stored
    assert field_types.read_terminated(stored, 0) == (raw, len(stored))


def test_a_job_of_version_1_counts_its_messages_as_tasks() -> None:
    vector = VECTORS["staged_job_version_1"]
    job = staged_jobs.decode_job(bytes.fromhex(vector["key_hex"]), bytes.fromhex(vector["value_hex"]))
    fields = asdict(job)
    assert {name: fields["id" if name == "job_id" else name] for name in vector["fields"]} == vector["fields"]
    ended = {name: count for name, count in zip(staged_jobs.END_STATES, job.ended, strict=True) if count}
    assert (job.tasks, ended) == (44 + 6 + 250, {"acknowledged": 3, "rejected": 2, "removed": 1 + 6})


@pytest.mark.parametrize("name", RECORDS)
def test_record(name: str) -> None:
    vector = VECTORS[name]
    key, value, decoded = RECORDS[name](vector["fields"])
    assert key.hex() == vector["key_hex"]
    assert value.hex() == vector["value_hex"]
    found = decode_any(key, value)
    assert (asdict(found) if isinstance(found, (staged_jobs.StagedJob, staged_jobs.StagedObject)) else found) == decoded


def test_key_of_an_escaped_queue_name_parses() -> None:
    key = keys.parse(bytes.fromhex(VECTORS["active_escaped_queue"]["key_hex"]))
    assert key.name is not None
    assert key.name.encode("utf-8", "surrogateescape") == b"q\xffx"
