"""Positions of streams, and the rows between them, without Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kombu_opendata.errors import StoreError
from kombu_opendata.spark.read.stream_reader import Position, TableStream
from kombu_opendata.spark.read.table_reader import TableReader
from kombu_opendata.spark.read.tables import Bounds
from kombu_opendata.storage.records import history_log, keys, metadata
from kombu_opendata.storage.records.history_log import Attempt, ChunkRows
from kombu_opendata.storage.state.staged_state import StagedBatch

from ...support.engine import World, run
from ...support.settled_store import write_store
from ...support.store_copy import copy_store

NAMES = {"messages": "message_id", "attempts": "attempt_id"}


class Limit:
    def __init__(self, rows: int) -> None:
        self.max_rows = rows


def stream(store: Path, table: str = "messages", partitions: int = 2, **options: Any) -> TableStream:
    schema = pa.schema([(NAMES[table], pa.int64())])
    reader = TableReader(table, str(store), None, schema, Bounds(), partitions, min_rows=1)
    return TableStream(table, reader, **options)


def batch(reader: TableStream, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    return [
        number
        for part in reader.partitions(start, end)
        for rows in reader.read(part)
        for number in rows.column(0).to_pylist()
    ]


def read_all(reader: TableStream, start: dict[str, Any], limit: int) -> Iterator[list[int]]:
    """The batches that are available, as Spark requests them."""
    while (end := reader.latestOffset(start, Limit(limit))) != start:
        yield batch(reader, start, end)
        start = end


def test_positions_with_gaps() -> None:
    first = Position(10, {"2": 4, "8": 10})
    later = Position(30, {"9": 10, "20": 25})
    assert first.since(Position()) == [(0, 2), (4, 8)]
    assert later.since(first) == [(2, 4), (8, 9), (10, 20), (25, 30)]
    for number in (3, 8, 9, 15, 22, 27, 30):
        middle = later.until(first, number)
        before, after = middle.since(first), later.since(middle)
        assert sorted(id for low, high in before for id in range(low, high)) == [
            id for low, high in later.since(first) for id in range(low, high) if id < number
        ], number
        assert sorted(id for low, high in after for id in range(low, high)) == [
            id for low, high in later.since(first) for id in range(low, high) if id >= number
        ], number
    assert later.until(first, 30) == later


def records(messages: int = 25, attempts: int = 25) -> Iterator[tuple[bytes, bytes]]:
    for id in range(5, 5 + messages):
        yield keys.metadata_key(id), metadata.encode(id, 1, 1, 1, 0, {"task": "t"})
    for first in range(100, 100 + attempts, 10):
        rows = [Attempt(1, "q", "w", 1, 2, 1, 0) for _ in range(min(10, 100 + attempts - first))]
        yield keys.history_log_key(first, first), history_log.encode(ChunkRows([], {}, [], rows))


@pytest.mark.parametrize("table", ["messages", "attempts"])
@pytest.mark.parametrize("limit", [3, 10, 25, 99])
def test_batches_have_all_rows_once_in_order(tmp_path: Path, table: str, limit: int) -> None:
    write_store(tmp_path, "q", records())
    first = 5 if table == "messages" else 100
    reader = stream(tmp_path, table)

    batches = list(read_all(reader, reader.initialOffset(), limit))

    assert [len(rows) for rows in batches[:-1]] == [limit] * (len(batches) - 1)
    assert [number for rows in batches for number in rows] == list(range(first, first + 25))
    later = stream(tmp_path, table, from_latest=True)
    start = later.initialOffset()
    assert later.latestOffset(start, None) == start


def test_latest_rows_that_arrive_after_the_target_of_a_query(tmp_path: Path) -> None:
    """With ``availableNow``, Spark requests the target before the beginning."""
    reader = stream(tmp_path, from_latest=True)
    write_store(tmp_path, "q", records())
    reader.prepareForTriggerAvailableNow()
    write_store(tmp_path, "q", [(keys.metadata_key(30), metadata.encode(30, 1, 1, 1, 0, {"task": "t"}))])
    start = reader.initialOffset()
    assert reader.latestOffset(start, None) == start


def test_rows_of_the_journal_and_messages_of_a_job_that_is_being_routed(tmp_path: Path) -> None:
    """The rows become visible in several commits, and one of them was stored in a table in the meantime."""
    copies: list[Path] = []
    ids: list[list[int]] = []

    async def steps(world: World) -> None:
        engine = world.engine

        async def copy() -> None:
            await engine.commits.commit()
            copies.append(tmp_path / f"copy{len(copies)}")
            copy_store(world.root, copies[-1])

        ids.append([world.publish("q") for _ in range(3)])
        await copy()
        engine.staging.commit("j", [StagedBatch("j/0", rows=4, bytes=10, checksum=0)])
        ids.append([world.publish("q") for _ in range(2)])
        entry = await world.claim("q")
        engine.operations.ack(world.queue("q"), (entry,))
        await copy()
        await engine.commits.checkpoint()
        ids.append([world.publish("q")])
        await copy()

    run(tmp_path / "s", steps)
    start: dict[str, Any] = stream(copies[0]).initialOffset()
    for copy, expected in zip(copies, ids, strict=True):
        reader = stream(copy)
        end = reader.latestOffset(start, None)
        assert batch(reader, start, end) == expected
        assert batch(stream(copies[-1]), start, end) == expected  # repeated later
        start = end
    gap = Position(**start)
    assert [high - low for low, high in gap.ranges] == [4]
    attempts = [stream(copy, "attempts").latestOffset(Position().__dict__, None)["end"] for copy in copies]
    assert attempts == [0, 1, 1]


@pytest.mark.parametrize("is_target", [False, True])
def test_the_newest_messages_are_deleted(tmp_path: Path, is_target: bool) -> None:
    """As when a store is idle for longer than its retention. Rows of a job that are not routed yet stay a gap."""
    copies: list[Path] = []

    async def steps(world: World) -> None:
        engine = world.engine

        async def copy() -> None:
            await engine.commits.checkpoint()
            copies.append(tmp_path / f"copy{len(copies)}")
            copy_store(world.root, copies[-1])

        world.publish("q")
        engine.staging.commit("j", [StagedBatch("j/0", rows=4, bytes=10, checksum=0)])
        entries = [world.queue("q").messages.buckets[0].available[world.publish("q")]]
        await copy()
        engine.operations.remove(world.queue("q"), entries)
        await copy()
        world.publish("q")
        await copy()

    run(tmp_path / "s", steps)
    start = stream(copies[0]).latestOffset(Position().__dict__, None)
    assert [high - low for low, high in Position(**start).ranges] == [4]
    reader = stream(copies[1])
    if is_target:
        reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(start, None) == start
    last = stream(copies[2])
    assert len(batch(last, start, last.latestOffset(start, None))) == 1


def test_a_stream_of_a_store_without_rows(tmp_path: Path) -> None:
    write_store(tmp_path, "q", [])
    for table in NAMES:
        reader = stream(tmp_path, table)
        start = reader.initialOffset()
        assert reader.latestOffset(start, None) == start
        assert reader.partitions(start, start) == []


def test_deleted_attempts_are_an_error_or_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_store(tmp_path, "q", records())
    start, end = Position(95).__dict__, Position(120).__dict__
    with pytest.raises(StoreError, match=r"attempts 95 to 99 are deleted .* set failOnDataLoss to false"):
        batch(stream(tmp_path, "attempts"), start, end)
    with caplog.at_level(logging.WARNING):
        assert batch(stream(tmp_path, "attempts", fails_on_data_loss=False), start, end) == list(range(100, 120))
    assert "attempts 95 to 99 are deleted" in caplog.text


def test_a_late_stream_fails_if_messages_may_have_been_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ids 0 to 4 are missing. By default a queue keeps its done messages for a day."""
    write_store(tmp_path, "q", records())
    start, soon, late = (Position(end, {}, at).__dict__ for end, at in ((0, 0), (20, 3_600_000), (20, 90_000_000)))
    assert batch(stream(tmp_path), start, soon) == list(range(5, 20))
    assert batch(stream(tmp_path), Position(5).__dict__, late) == list(range(5, 20))
    with pytest.raises(StoreError, match="5 messages were deleted before they were read"):
        batch(stream(tmp_path), start, late)
    with caplog.at_level(logging.WARNING):
        assert batch(stream(tmp_path, fails_on_data_loss=False), start, late) == list(range(5, 20))
    assert "messages may have been deleted" in caplog.text


@pytest.mark.parametrize("table", ["messages", "attempts"])
def test_a_checkpoint_of_another_store(tmp_path: Path, table: str) -> None:
    write_store(tmp_path, "q", records())
    start = Position(1_000).__dict__
    with pytest.raises(StoreError, match="before the checkpoint's position 1000: another store"):
        stream(tmp_path, table).latestOffset(start, None)
    assert stream(tmp_path, table, fails_on_data_loss=False).latestOffset(start, None) == start


def test_available_now_ends_with_the_rows_of_its_start(tmp_path: Path) -> None:
    write_store(tmp_path / "s", "q", records(messages=5))
    reader = stream(tmp_path / "s")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    write_store(tmp_path / "s", "q", records(messages=20))
    assert list(read_all(reader, start, 2)) == [[5, 6], [7, 8], [9]]
