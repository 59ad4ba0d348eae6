"""What executors read of results, without Spark."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kombu_opendata.errors import NotFound
from kombu_opendata.protocol import revocation
from kombu_opendata.spark.encode.row_encoder import task_id
from kombu_opendata.spark.read.table_reader import TableReader
from kombu_opendata.spark.read.tables import TABLES, Bounds
from kombu_opendata.storage.records import keys, metadata, staged_jobs
from kombu_opendata.storage.records.results import FINAL, READY, Result, encode_result

from ...support.engine import World, run
from ...support.settled_store import write_store
from ...support.store_copy import copy_store

DONE = "2026-11-21T10:00:00.250000+00:00"
FAILED = {"exc_type": "Bad", "exc_message": ["no", 5], "exc_module": "app"}


def value(id: str, status: str = "SUCCESS", result: Any = 5, **more: Any) -> bytes:
    meta = {"status": status, "result": result, "traceback": None, "children": [], "date_done": DONE, "task_id": id}
    return json.dumps(meta | more).encode()


KINDS = {"string": pa.string(), "timestamp": pa.timestamp("us", "UTC"), "int": pa.int32(), "binary": pa.binary()}


def read(store: Path, columns: str, partitions: int = 0, **bounds: Any) -> list[tuple[Any, ...]]:
    schema = pa.schema([(name, KINDS[TABLES["results"][name]]) for name in columns.split(",")])
    reader = TableReader("results", str(store), None, schema, Bounds(**bounds), partitions, min_rows=1)
    return [
        tuple(row.values()) for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()
    ]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store after a kill -9; the last results are in the journal only, and one result of the store is forgotten."""
    folder = tmp_path_factory.mktemp("results")
    large, in_chunks = (value(id, result="x" * 3_000_000) for id in ("large", "chunks"))

    async def steps(world: World) -> None:
        results = world.engine.results
        results.note_revocable()
        results.store(b"celery-task-meta-ok", FINAL, value("ok", result={"é": [1, None]}), 0)
        extended = value("extended", name="app.add", worker="w@h", retries=2)
        results.store(b"mine_celery-task-meta-extended", FINAL, extended, 10**12)
        results.store(b"celery-task-meta-old", FINAL, value("old"), 1)
        results.store(b"celery-task-meta-forgotten", FINAL, value("forgotten"), 0)
        results.store(b"celery-task-meta-large", FINAL, large, 0)
        world.engine.commits.large_bytes = 1 << 30  # as in a store in memory, or of an earlier version
        results.store(b"celery-task-meta-chunks", FINAL, in_chunks, 0)
        world.engine.commits.large_bytes = 64 << 10
        results.store(b"celery-taskset-meta-group", FINAL, b"{}", 0)
        await world.engine.commits.checkpoint()
        results.forget([b"celery-task-meta-forgotten"])
        results.store(b"celery-task-meta-raised", READY, value("raised", "FAILURE", FAILED, traceback="Trace"), 0)
        results.store(b"celery-task-meta-revoked", READY, revocation.value("revoked", DONE), 0)
        results.store(b"celery-task-meta-pickled", FINAL, pickle.dumps({"status": "SUCCESS"}), 0)
        await world.engine.commits.commit()
        copy_store(world.root, folder / "killed")

    run(folder / "s", steps)
    return folder / "killed"


@pytest.mark.parametrize("partitions", [1, 7])
def test_results_of_each_kind(killed: Path, partitions: int) -> None:
    rows = {row[0]: row[1:] for row in read(killed, "task_id,state,value,exception,error,traceback", partitions)}

    for id in ("large", "chunks"):
        assert rows.pop(id)[:2] == ("SUCCESS", '"' + "x" * 3_000_000 + '"')
    assert rows == {
        "ok": ("SUCCESS", '{"\\u00e9": [1, null]}', None, None, None),
        "extended": ("SUCCESS", "5", None, None, None),
        "raised": ("FAILURE", None, "app.Bad", '["no",5]', "Trace"),
        "revoked": ("REVOKED", None, "celery.exceptions.TaskRevokedError", "expired", None),
        "pickled": (None, None, None, None, None),
    }


def test_other_columns_of_results(killed: Path) -> None:
    rows = {row[0]: row[1:] for row in read(killed, "task_id,ended_at,task,worker,attempts,raw")}
    at = dt.datetime(2026, 11, 21, 10, 0, 0, 250_000, dt.UTC)
    assert rows["extended"][:4] == (at, "app.add", "w@h", 3)
    assert rows["ok"][:4] == (at, None, None, None)
    assert pickle.loads(rows["pickled"][4]) == {"status": "SUCCESS"}
    expires = dict(read(killed, "task_id,expires_at"))
    assert (expires["extended"] is None, expires["ok"] is None) == (False, True)


ROWS = 5_000


def records() -> Iterator[tuple[bytes, bytes]]:
    """Two jobs, one with generated ids and one with random ones, and results of all their tasks but the first."""
    random = [str(uuid.UUID(int=number * 2_654_435_761 % 2**32 << 96)) for number in range(1, 21)]
    jobs = {"made": [task_id("made", row % 2, row) for row in range(ROWS)], "random": random}
    first = 1
    for job, ids in jobs.items():
        yield keys.staged_job_key(job), staged_jobs.encode_job(staged_jobs.StagedJob(job, first, len(ids), 2, 9, 1))
        for message_id, id in enumerate(ids, first):
            yield keys.metadata_key(message_id), metadata.encode(message_id, 1, 1, 1, 0, {"task": "t", "id": id})
            if message_id > first:
                name = b"celery-task-meta-" + id.encode()
                yield keys.result_key(name), encode_result(Result(FINAL, 0, value(id, result=message_id)))
        first += len(ids)


def test_results_of_a_job(tmp_path: Path) -> None:
    write_store(tmp_path, "q", records())

    made = read(tmp_path, "task_id,value", 3, job_id="made")
    assert sorted(made) == sorted((task_id("made", row % 2, row), str(row + 1)) for row in range(1, ROWS))
    assert sorted(int(number) for _id, number in read(tmp_path, "task_id,value", job_id="random")) == [
        *range(ROWS + 2, ROWS + 21)
    ]
    reader = TableReader("results", str(tmp_path), None, pa.schema({"task_id": "string"}), Bounds(job_id="random"), 1)
    assert [batch.num_rows for part in reader.partitions() for batch in reader.read(part)] == [19]
    for partitions in (1, 2, 30):
        assert len(read(tmp_path, "task_id", partitions)) == ROWS - 1 + 19
    with pytest.raises(NotFound, match="no job 'other'"):
        read(tmp_path, "task_id", job_id="other")


def test_a_store_without_results(tmp_path: Path) -> None:
    write_store(tmp_path, "q", [])
    assert read(tmp_path, "task_id") == []
