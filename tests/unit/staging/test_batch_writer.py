"""Writing batches: what comes back, what is refused, what is left behind."""

from __future__ import annotations

import os
import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from kombu_opendata.errors import InvalidMessage, MessageTooLarge, RequestError, StoreUnwritable
from kombu_opendata.staging.batch_block import IndexBlock, decode_block
from kombu_opendata.staging.batch_format import parse_batch_uri
from kombu_opendata.staging.batch_reader import check_batch, read_envelopes, read_index, read_tail
from kombu_opendata.staging.batch_writer import BatchWriter, merge_inline, write_object
from kombu_opendata.staging.folder_url import open_folder
from kombu_opendata.staging.job import BatchInfo, StagingTarget

Rows = list[dict[str, Any]]


@pytest.fixture
def target(tmp_path: Path) -> StagingTarget:
    return StagingTarget(f"file://{tmp_path}/default.staged", inline_bytes=0, inline_rows=0, max_message_bytes=5000)


def read_back(target: StagingTarget, info: BatchInfo) -> Rows:
    """All rows of a batch, each with its envelope and its columns."""
    folder = open_folder(target.url)
    path = check_batch(folder, info, target.instance, "job")
    found: Rows = []
    tail = read_tail(folder, path, info.bytes)
    for segment in tail.segments:
        for encoded in read_index(folder, path, segment, tail.version):
            block = decode_block(encoded, path, segment.payload_bytes, 1 << 30)
            envelopes, at = read_envelopes(folder, path, segment.payload_offset, block), 0
            for row in range(block.rows):
                length = block.lengths[row]
                body = envelopes[at : at + length]
                assert crc32(body) == block.checksums[row]
                found.append({"envelope": body, **row_of(block, row)})
                at += length
    return found


def row_of(block: IndexBlock, row: int) -> dict[str, Any]:
    names = ("exchange", "routing_key", "priority", "created_at_ms", "visible_at_ms", "ttl_ms")
    values = {name: getattr(block, name) for name in names}
    given = {name: value[row] if isinstance(value, list) else value for name, value in values.items()}
    varying = {name: column[row] for name, column in block.columns.items() if column[row] is not None}
    return {**given, "headers": {**block.constants, **varying}}


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_rows_come_back_as_they_were_added(target: StagingTarget) -> None:
    rows: Rows = [
        {
            "envelope": os.urandom(number % 97),
            "headers": {"task": "a", "id": str(number), **({"eta": "x"} if number % 3 else {})},
            "exchange": "e" if number % 5 else "",
            "routing_key": f"key.{number % 4}",
            "priority": number % 256,
            "created_at_ms": number,
            "visible_at_ms": 0 if number % 2 else 7,
            "ttl_ms": -1 if number % 7 else 3,
        }
        for number in range(1000)
    ]
    writer = BatchWriter(target, "job", 3, 1)
    for row in rows:
        writer.add(**row)
    assert writer.rows == 1000
    info = writer.close()
    assert (info.rows, info.partition, info.attempt, info.data) == (1000, 3, 1, b"")
    assert read_back(target, info) == rows


def test_columns_are_the_same_as_rows(target: StagingTarget) -> None:
    bodies = [b"%d" % number for number in range(700)]
    ids: list[str | None] = [None if number % 10 == 0 else str(number) for number in range(700)]
    one = BatchWriter(target, "job", 0, 0)
    for body, id in zip(bodies, ids, strict=True):
        one.add(body, {"task": "t", "id": id}, routing_key="q", priority=len(body))
    many = BatchWriter(target, "job", 0, 1)
    many.add_many(
        bodies[:300], {"task": "t", "id": ids[:300]}, routing_key="q", priority=[len(b) for b in bodies[:300]]
    )
    many.add(bodies[300], {"task": "t", "id": ids[300]}, routing_key="q", priority=3)
    many.add_many(
        bodies[301:], {"task": ["t"] * 399, "id": tuple(ids[301:])}, routing_key=["q"] * 399,
        priority=[len(b) for b in bodies[301:]],
    )  # fmt: skip
    assert read_back(target, one.close()) == read_back(target, many.close())


def test_a_writer_holds_only_a_segment(target: StagingTarget) -> None:
    writer = BatchWriter(target, "job", 0, 0, max_segment_bytes=1 << 20)
    bodies = [random.Random(number).randbytes(4000) for number in range(1600)]
    for number, body in enumerate(bodies):
        writer.add(body, {"id": str(number)})
    info = writer.close()
    path = parse_batch_uri(info.uri) or ""
    tail = read_tail(open_folder(target.url), path, info.bytes)
    assert max(segment.payload_bytes for segment in tail.segments) < (1 << 20) + 256 * 4000
    assert len(tail.segments) > 2
    assert [row["envelope"] for row in read_back(target, info)] == bodies


def test_the_frames_of_large_rows_are_small(target: StagingTarget) -> None:
    """So that reading a message decompresses at most 1 MiB, or only the message."""
    sizes = [1, 300_000, 300_000, 800_000, 3 << 20, 1, 2, 1 << 20]
    large = replace(target, max_message_bytes=3 << 20)
    for is_bulk in (False, True):
        writer = BatchWriter(large, "job", 0, int(is_bulk))
        if is_bulk:
            writer.add_many([bytes(size) for size in sizes], {})
        for size in () if is_bulk else sizes:
            writer.add(bytes(size), {})
        info = writer.close()
        assert info.bytes < 5000 < info.contents_bytes
        folder, path = open_folder(target.url), parse_batch_uri(info.uri) or ""
        tail = read_tail(folder, path, info.bytes)
        (segment,) = tail.segments
        blocks = [
            decode_block(each, path, 1 << 20, 3 << 20) for each in read_index(folder, path, segment, tail.version)
        ]
        assert [block.lengths for block in blocks] == [[1, 300_000, 300_000], [800_000], [3 << 20], [1, 2], [1 << 20]]


def test_large_columns_are_cut_into_smaller_blocks(target: StagingTarget) -> None:
    writer = BatchWriter(target, "job", 0, 0)
    for number in range(60):
        writer.add(b"x", {"long": chr(ord("a") + number % 26) * 60_000})
    info = writer.close()
    assert [row["headers"]["long"][0] for row in read_back(target, info)] == [chr(97 + n % 26) for n in range(60)]


def test_a_batch_appears_only_when_it_is_closed(target: StagingTarget, tmp_path: Path) -> None:
    writer = BatchWriter(target, "job", 0, 0)
    writer.add_many([b"x"] * 300, {})
    assert [name.endswith(".part") for name in files(tmp_path)] == [True]
    info = writer.close()
    assert files(tmp_path) == [f"default.staged/{parse_batch_uri(info.uri)}"]
    writer.abort()  # too late: nothing happens
    assert files(tmp_path)


def test_an_aborted_batch_leaves_nothing(target: StagingTarget, tmp_path: Path) -> None:
    writer = BatchWriter(target, "job", 0, 0)
    writer.add_many([b"x"] * 300, {})
    writer.abort()
    writer.abort()
    assert not files(tmp_path)
    with pytest.raises(RequestError, match="closed or aborted"):
        writer.close()
    with pytest.raises(RequestError, match="closed or aborted"):
        writer.add_many([b"x"], {})


def test_no_rows_are_no_object(target: StagingTarget, tmp_path: Path) -> None:
    info = BatchWriter(target, "job", 5, 2).close()
    assert info == BatchInfo("", 0, 0, 0, 5, 2)
    assert not files(tmp_path)


def test_a_small_batch_is_handed_over(tmp_path: Path) -> None:
    target = StagingTarget(f"file://{tmp_path}/default.staged")
    writer = BatchWriter(target, "job", 0, 0)
    writer.add(b"x", {"id": "1"})
    info = writer.close()
    assert len(info.data) == info.bytes
    assert not files(tmp_path)
    assert pickle.loads(pickle.dumps((target, info))) == (target, info)
    written = write_object(open_folder(target.url), info)
    assert written.data == b""
    assert [row["envelope"] for row in read_back(target, written)] == [b"x"]


@pytest.mark.parametrize("rows", [499, 500, 501])
def test_a_batch_of_many_rows_is_an_object(tmp_path: Path, rows: int) -> None:
    target = StagingTarget(f"file://{tmp_path}/default.staged")
    writer = BatchWriter(target, "job", 0, 0)
    writer.add_many([b"x"] * rows, {})
    info = writer.close()
    assert bool(info.data) == (rows <= target.inline_rows)
    assert bool(files(tmp_path)) == (rows > target.inline_rows)


@pytest.mark.parametrize("job_id", ["", "x" * 256, "ä" * 128, "x" * (1 << 20), "\ud800"])
def test_job_ids_that_cannot_be(target: StagingTarget, job_id: str) -> None:
    with pytest.raises(RequestError, match="job id"):
        BatchWriter(target, job_id, 0, 0)


@pytest.mark.parametrize(("partition", "attempt"), [(-1, 0), (0, -1), (1 << 32, 0)])
def test_parts_that_cannot_be(target: StagingTarget, partition: int, attempt: int) -> None:
    with pytest.raises(RequestError, match="is not within"):
        BatchWriter(target, "job", partition, attempt)


def test_a_message_over_the_limit_is_refused_with_its_row(target: StagingTarget) -> None:
    writer = BatchWriter(target, "job", 9, 0)
    writer.add(b"x", {})
    with pytest.raises(MessageTooLarge) as caught:
        writer.add(b"x" * 5001, {})
    assert (caught.value.values["row"], caught.value.values["partition"]) == (1, 9)
    assert (caught.value.values["size"], caught.value.values["limit"]) == (5001, 5000)
    with pytest.raises(MessageTooLarge) as caught:
        writer.add_many([b"x"] * 300 + [b"x" * 5001], {})
    assert caught.value.values["row"] == 301
    writer.abort()


@pytest.mark.parametrize(
    "fields",
    [
        {"headers": {"id": 7}},
        {"headers": {"id": "x" * 65_536}},
        {"headers": {"x" * 65_536: "1"}},
        {"headers": {"id": "\ud800"}},
        {"headers": {str(number): "" for number in range(256)}},
        {"priority": 256},
        {"priority": -1},
        {"priority": True},
        {"priority": "1"},
        {"ttl_ms": -2},
        {"visible_at_ms": 1 << 60},
        {"created_at_ms": 1.5},
        {"routing_key": "x" * 65_536},
        {"exchange": None},
    ],
)  # fmt: skip
def test_rows_that_cannot_be_are_refused_with_their_place(target: StagingTarget, fields: dict[str, Any]) -> None:
    writer = BatchWriter(target, "job", 2, 0)
    writer.add(b"fine", {"id": "1"})
    writer.add(b"bad", **{"headers": {}, **fields})
    with pytest.raises(InvalidMessage) as caught:
        writer.close()
    if "row" in caught.value.values:
        assert caught.value.values["partition"] == 2
    writer.abort()


def test_columns_of_other_lengths_are_refused(target: StagingTarget) -> None:
    writer = BatchWriter(target, "job", 0, 0)
    with pytest.raises(RequestError, match="'id' has 2 values for 3 messages"):
        writer.add_many([b""] * 3, {"id": ["1", "2"]})


def test_a_folder_that_is_not_here_says_what_that_means(tmp_path: Path) -> None:
    target = StagingTarget(f"file://{tmp_path}/elsewhere/default.staged", inline_bytes=0)
    with pytest.raises(StoreUnwritable, match="executors on other hosts"):
        BatchWriter(target, "job", 0, 0).add_many([b"x"], {})


def test_inline_batches_become_one_object(tmp_path: Path) -> None:
    target = StagingTarget(f"file://{tmp_path}/default.staged")
    infos: list[BatchInfo] = []
    rows: Rows = []
    for partition in range(40):
        writer = BatchWriter(target, "job", partition, 7)
        for number in range(10):
            id = f"{partition}-{number}"
            rows.append({"envelope": id.encode(), "headers": {"id": id}, "routing_key": "qrs"[number % 3]})
            writer.add(**rows[-1], priority=partition)
        infos.append(writer.close())
    merged = merge_inline(infos, target, "job")
    assert (merged.uri, merged.rows, merged.data) == (infos[0].uri, 400, b"")
    assert len(files(tmp_path)) == 1
    found = read_back(target, merged)
    assert [{name: row[name] for name in ("envelope", "headers", "routing_key")} for row in found] == rows
    assert [row["priority"] for row in found] == [partition for partition in range(40) for _row in range(10)]
    assert merge_inline(infos, target, "job") == merged  # as when the commit is called again
