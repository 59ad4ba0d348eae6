"""What executors read of queues, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from kombu_opendata.spark.read import store_scan
from kombu_opendata.spark.read.table_rows import entries
from kombu_opendata.spark.read.tables import Bounds
from kombu_opendata.storage.records import keys
from kombu_opendata.storage.records.keys import RecordKind

from ...support.settled_store import active_records, done_records, write_store

#: more than what is read in one go
BUCKETS = 130


@pytest.mark.parametrize(
    ("state", "own"),
    [
        ("backlog", {"visible_at": {None}, "expires_at": {None}, "priority": {0}, "attempts": {0}}),
        ("in_flight", {"claimed_at": {1_000}, "leased_until": {2_000}, "priority": {5}, "attempts": {1}}),
    ],
)
def test_what_waits_in_many_buckets(tmp_path: Path, state: str, own: dict[str, set[int | None]]) -> None:
    write_store(tmp_path, "q", active_records("q", BUCKETS, size=256))

    columns = read(tmp_path, state, RecordKind.ACTIVE)

    first = state == "in_flight"
    assert columns["message_id"] == list(range(first, 2 * BUCKETS * 256, 2))
    assert {name: set(columns[name]) for name in own} == own
    assert (set(columns["queue"]), set(columns["state"])) == ({"q"}, {state})


def test_done_messages_in_many_buckets(tmp_path: Path) -> None:
    count = BUCKETS * 1024
    write_store(tmp_path, "q", list(done_records("q", count, received_at_ms=1_000, took_ms=500))[:BUCKETS])

    columns = read(tmp_path, "done", RecordKind.DONE)

    assert columns["message_id"] == list(range(1, count + 1))
    assert columns["done_at"] == columns["at"] == [1_500 + id % 1000 for id in range(1, count + 1)]
    assert (set(columns["queue"]), set(columns["state"]), set(columns["attempts"])) == ({"q"}, {"done"}, {1})


def read(store: Path, state: str, kind: RecordKind) -> store_scan.Columns:
    """All columns of a state's entries; several batches of them must come."""
    whole: store_scan.Columns = {}
    batches = list(store_scan.read(str(store), None, entries(state, *keys.kind_range(kind), Bounds())))
    assert len(batches) > 2
    for batch in batches:
        for name, values in batch.items():
            whole.setdefault(name, []).extend(values)
    return whole
