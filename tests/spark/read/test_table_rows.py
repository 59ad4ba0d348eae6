"""What executors read of queues and attempts, without Spark."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kombu_opendata.errors import NewerFormat
from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.spark.read import store_scan
from kombu_opendata.spark.read.table_reader import PARTITION_ROWS, TableReader
from kombu_opendata.spark.read.table_rows import entries
from kombu_opendata.spark.read.tables import TABLES, Bounds
from kombu_opendata.storage.records import keys, metadata, store_records
from kombu_opendata.storage.records.keys import RecordKind

from ...support.engine import World, run
from ...support.settled_store import active_records, done_records, write_store
from ...support.store_copy import copy_store

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
    low, high = keys.kind_range(kind)
    batches = list(store_scan.read(str(store), None, lambda opened: entries(opened, state, low, high, Bounds())))
    assert len(batches) > 2
    for batch in batches:
        for name, values in batch.items():
            whole.setdefault(name, []).extend(values)
    return whole


RUNS = 700  # more than there are in a batch with errors
RAISED = TaskReport(TaskState.RAISED, 5_000, 6, "add", "app.Bad", "no", "Traceback: …")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store as after a kill -9: each third task raised, and the second half of the attempts is in the journal only.

    The last message was put back, and then purged.
    """
    folder = tmp_path_factory.mktemp("attempts")

    async def steps(world: World) -> None:
        queue, engine = world.queue("q"), world.engine
        for number in range(RUNS):
            world.publish("q", headers={"task": "add", "id": f"id-{number}"})
            entry = await world.claim("q")
            report = RAISED if number % 3 == 0 else TaskReport(TaskState.SUCCEEDED, 5_000, 6)
            engine.task_runs.ack(queue, entry, report)
            if number == RUNS // 2:
                await engine.commits.checkpoint()
        world.publish("q", headers={"task": "purged", "id": "purged"})
        engine.operations.put_back(queue, (await world.claim("q"),), "w", costs_attempt=False)
        await engine.definitions.purge(queue)
        await engine.commits.commit()
        copy_store(world.root, folder / "killed")

    run(folder / "s", steps)
    return folder / "killed"


@pytest.mark.parametrize("partitions", [1, 3])
def test_attempts_in_the_store_and_in_the_journal(killed: Path, partitions: int) -> None:
    rows = read_attempts(killed, "attempt_id,outcome,state,exception,error,traceback,task,task_id", partitions)

    raised = "acked", "raised", "app.Bad", "no", "Traceback: …", "add"
    succeeded = "acked", "succeeded", "", None, None, "add"
    assert rows == [
        *((number, *(succeeded if number % 3 else raised), f"id-{number}") for number in range(RUNS)),
        (RUNS, "released", "", "", None, None, None, None),
    ]


def test_bounds_of_attempts_with_costly_columns(killed: Path) -> None:
    rows = read_attempts(killed, "message_id,task_id,error", 1, first_id=2, last_id=4)
    assert rows == [(2, "id-2", None), (3, "id-3", "no"), (4, "id-4", None)]


def read_attempts(store: Path, columns: str, partitions: int, **bounds: Any) -> list[tuple[Any, ...]]:
    kinds = {"long": pa.int64(), "string": pa.string()}
    schema = pa.schema([(name, kinds[TABLES["attempts"][name]]) for name in columns.split(",")])
    reader = TableReader("attempts", str(store), None, schema, Bounds(**bounds), partitions, min_rows=1)
    parts = reader.partitions()
    assert len(parts) == partitions
    return [tuple(row.values()) for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("rows", "partitions", "parallelism", "count"),
    [(150, 0, 8, 1), (450, 0, 8, 4), (450, 0, 2, 2), (450, 8, 2, 4), (450, 3, 9, 3), (450, 1, 9, 1)],
)
def test_partitions_are_for_the_cores_and_have_many_rows(
    tmp_path: Path, rows: int, partitions: int, parallelism: int, count: int
) -> None:
    write_store(tmp_path, "q", done_records("q", rows, received_at_ms=1, took_ms=1))
    schema = pa.schema([("message_id", pa.int64())])
    reader = TableReader("messages", str(tmp_path), None, schema, Bounds(), partitions, parallelism, min_rows=100)
    parts = reader.partitions()
    ids = [id for part in parts for batch in reader.read(part) for id in batch.column(0).to_pylist()]
    assert (len(parts), ids) == (count, list(range(1, rows + 1)))


@pytest.mark.parametrize(("rows", "count"), [(0, 0), (500_000, 1), (999_999, 2), (1_000_001, 3)])
def test_partitions_of_a_large_table_are_more_than_the_cores(rows: int, count: int) -> None:
    reader = TableReader("messages", "/store", None, pa.schema([]), Bounds(), 0, 1)
    parts = list(reader.numbers((1, rows)))
    assert len(parts) == count
    assert all(last - first < PARTITION_ROWS for first, last in parts)
    assert sum(last - first + 1 for first, last in parts) == rows


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_a_partition_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """Its rows take more than 100 MB in all."""
    count = 200_000
    headers = {"task": "t", "id": "i" * 36, "argsrepr": "a" * 300}
    rows = ((keys.metadata_key(id), metadata.encode(id, 1, 1, 1, 0, headers)) for id in range(count))
    write_store(tmp_path, "q", rows)
    schema = pa.schema([("message_id", pa.int64()), ("headers", pa.map_(pa.string(), pa.string()))])
    reader = TableReader("messages", str(tmp_path), None, schema, Bounds(), 1)
    batches = (batch for part in reader.partitions() for batch in reader.read(part))
    total = sum(next(batches).num_rows for _ in range(3))
    before = resident_mb()
    total += sum(batch.num_rows for batch in batches)
    assert total == count
    assert resident_mb() - before < 60


def test_a_store_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    header = store_records.StoreHeader(1, "default", store_records.FORMAT_VERSION + 1)
    write_store(tmp_path, "q", [(keys.STORE_HEADER_KEY, store_records.encode_header(header))])
    reader = TableReader("messages", str(tmp_path), None, pa.schema([("message_id", pa.int64())]), Bounds(), 1)
    with pytest.raises(NewerFormat, match="format version 3, this kombu-opendata reads up to 2; upgrade it"):
        reader.partitions()
