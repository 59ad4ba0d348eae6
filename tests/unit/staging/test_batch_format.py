"""Batches that are damaged, cut off or made by somebody hostile: each is a CorruptRecord, never anything else."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest

from kombu_opendata.errors import CorruptRecord, InvalidURL, NewerFormat, RequestError
from kombu_opendata.staging import BatchInfo, BatchWriter, StagingTarget
from kombu_opendata.staging import batch_format as fmt
from kombu_opendata.staging.batch_block import Block, decode_block
from kombu_opendata.staging.batch_format import Segment
from kombu_opendata.staging.batch_reader import check_batch, path_of, read_inline
from kombu_opendata.staging.batch_uri import batch_uri, job_folder, parse_batch_uri, parse_payload_uri
from kombu_opendata.staging.folder_url import open_folder
from kombu_opendata.staging.local_folder import LocalFolder

TARGET = StagingTarget("file:///nowhere/default.staged")


def batch() -> BatchInfo:
    writer = BatchWriter(TARGET, "job", 0, 0, token="0" * 16)
    for number in range(20):
        writer.add(b"%d" % number, {"task": "t", "id": str(number)}, routing_key="q")
    return writer.close()


def changed(info: BatchInfo, data: bytes, **fields: Any) -> BatchInfo:
    given = {"uri": info.uri, "rows": info.rows, "bytes": len(data), "checksum": info.checksum, "data": data, **fields}
    return BatchInfo(**given)


def read(info: BatchInfo) -> list[Any]:
    return read_inline(info, "default", "job", 1 << 20)


def test_a_whole_batch_is_read() -> None:
    ((_encoded, block, payload),) = read(batch())
    assert block.rows == 20
    assert payload.startswith(b"0123456789101112")


def test_every_byte_counts() -> None:
    info = batch()
    for position in range(len(info.data)):
        data = bytearray(info.data)
        data[position] ^= 0x10
        with pytest.raises((CorruptRecord, RequestError, NewerFormat)):
            read(changed(info, bytes(data)))


def test_every_cut_is_noticed() -> None:
    info = batch()
    for size in range(len(info.data)):
        with pytest.raises(CorruptRecord):
            read(changed(info, info.data[:size]))
        with pytest.raises(CorruptRecord):
            read(changed(info, info.data[len(info.data) - size :]))


def test_garbage_is_no_batch() -> None:
    chance = random.Random(7)
    info = batch()
    for _ in range(300):
        with pytest.raises(CorruptRecord):
            read(changed(info, fmt.HEADER_BYTES + chance.randbytes(chance.randrange(200))))


def test_a_newer_version_says_so() -> None:
    info = batch()
    with pytest.raises(NewerFormat, match="update the broker"):
        read(changed(info, b"ODQB\x02\x00" + info.data[6:]))


@pytest.mark.parametrize(
    ("field", "value"), [("rows", 19), ("checksum", 1), ("rows", 10**9)]
)  # fmt: skip
def test_a_commit_that_says_something_else_is_refused(field: str, value: int) -> None:
    info = batch()
    with pytest.raises(RequestError, match=f"its {field} is"):
        read(changed(info, info.data, **{field: value}))


def test_a_batch_of_another_instance_or_job_is_refused() -> None:
    info = batch()
    with pytest.raises(RequestError, match="its instance is 'default'"):
        read_inline(info, "other", "job", 1 << 20)
    with pytest.raises(RequestError, match="not a batch of job 'other'"):
        read_inline(info, "default", "other", 1 << 20)
    moved = changed(info, info.data, uri=batch_uri(f"{job_folder('other')}/0-0-{'0' * 16}.batch"))
    with pytest.raises(RequestError, match="its job id is 'job'"):
        read_inline(moved, "default", "other", 1 << 20)


@pytest.mark.parametrize(
    "uri",
    [
        "", "batch:", "batch:../../etc/passwd", "batch:/etc/passwd", "file:///etc/passwd", "batch:x/0-0-0.batch",
        f"batch:{job_folder('job')}/../0-0-{'0' * 16}.batch", f"batch:{job_folder('job')}/0-0-{'0' * 16}.batch\n",
        f"batch:{job_folder('job')}/0-0-{'0' * 16}.batch/..", f"batch:{job_folder('job')}/0-0-{'0' * 16}.batch:1:2:3",
        f"batch:{job_folder('job')}/٣-0-{'0' * 16}.batch", "x" * 100_000,
    ],
)  # fmt: skip
def test_uris_outside_of_the_job_are_refused(uri: str) -> None:
    with pytest.raises(RequestError, match="is not a batch of job"):
        path_of(BatchInfo(uri, 1, 1, 0), "job")
    assert parse_payload_uri(uri) is None


def test_uris_of_payloads() -> None:
    path = f"{job_folder('job')}/1-2-{'a' * 16}.batch"
    assert parse_payload_uri(f"batch:{path}:8:300:0000002a") == (path, 8, 300, 42)
    assert parse_batch_uri(f"batch:{path}") == path
    assert parse_payload_uri(f"batch:{path}") is None
    assert parse_payload_uri(f"batch:{path}:-8:300:0000002a") is None
    assert parse_payload_uri(f"batch:{path}:{10**19}:300:0000002a") is None


# ---------------------------------------------------------------------- a directory with valid checksums and lies in it
def forged(entries: list[Segment], body: bytes = b"", **footer: Any) -> bytes:
    """An object with this directory."""
    start = fmt.HEADER_BYTES + body
    tail, _checksum = fmt.encode_tail(entries, "default", "job", 0, 0, len(start))
    if footer:
        fields = list(fmt.FOOTER.unpack(tail[-fmt.FOOTER.size :]))
        for name, value in footer.items():
            fields[("offset", "rows", "segments", "identity").index(name)] = value
        head = tail[: -fmt.FOOTER.size] + fmt.FOOTER.pack(*fields)[:-8]
        tail = head + struct.pack("<I", crc32(head)) + fmt.MAGIC
    return start + tail


@pytest.mark.parametrize(
    "data",
    [
        forged([Segment(8, 10**18, 100, 0, 1, 1)]),
        forged([Segment(8, 0, 100, 0, 10**9, 1)], b"x" * 100),
        forged([Segment(8, 0, 100, 0, 0, 0)], b"x" * 100),
        forged([Segment(8, 0, 100, 0, 1, 2)], b"x" * 100),
        forged([Segment(9, 0, 99, 0, 1, 1)], b"x" * 100),
        forged([Segment(8, 0, 100, 0, 1, 1)], b"x" * 101),
        forged([Segment(8, 0, 0xFFFF_FFFF, 0, 1, 1)], b"x" * 100),
        forged([Segment(8, 0, 100, 0, 1, 1)], b"x" * 100, rows=10**9),
        forged([Segment(8, 0, 100, 0, 1, 1)], b"x" * 100, rows=1 << 40),
        forged([Segment(8, 0, 100, 0, 1, 1)], b"x" * 100, segments=0xFFFF_FFFF),
        forged([Segment(8, 0, 100, 0, 1, 1)], b"x" * 100, offset=0),
        forged([Segment(8, 0, 100, 0, 1, 1)], b"x" * 100, offset=1 << 63),
        forged([Segment(8, 0, 100, 0, 1, 1)], b"x" * 100, identity=5),
    ],
)  # fmt: skip
def test_directories_that_lie(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        read(BatchInfo(batch().uri, 1, len(data), 0, data=data))


# ---------------------------------------------------------------------- blocks with lies in them
def fields(**changes: Any) -> bytes:
    given = {
        "offset": 0, "lengths": [1, 2], "checksums": [1, 2], "exchange": "", "routing_key": "q", "priority": 0,
        "created_at_ms": 0, "visible_at_ms": 0, "ttl_ms": -1, "constants": {"a": "1"}, "columns": {"b": ["1", None]},
        **changes,
    }  # fmt: skip
    return msgspec.msgpack.encode(list(given.values()))


def test_a_block_decodes() -> None:
    assert isinstance(decode_block(fields(), "p", 3, 2), Block)


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": -1}, {"offset": (1 << 64) - 1}, {"lengths": []}, {"lengths": [1]}, {"lengths": [1, -1]},
        {"lengths": [0, 3]}, {"lengths": [1, 1 << 62]}, {"lengths": "x"}, {"lengths": [1.5, 1]}, {"checksums": [1]},
        {"checksums": [1, -1]}, {"checksums": [1, 1 << 32]}, {"exchange": ["a"]}, {"exchange": 5}, {"exchange": None},
        {"routing_key": "x" * 65_536}, {"routing_key": ["q", "x" * 65_536]}, {"priority": 256}, {"priority": [1, -1]},
        {"priority": [1]}, {"created_at_ms": 1 << 60}, {"visible_at_ms": -5}, {"ttl_ms": [-1, -2]},
        {"constants": {"a": "x" * 65_536}}, {"constants": {"b": "twice"}}, {"constants": {"a": 1}},
        {"constants": {str(number): "" for number in range(255)}}, {"columns": {"b": ["1"]}},
        {"columns": {"b": ["1", 2]}}, {"columns": {"b": ["1", "x" * 65_536]}}, {"columns": [1]}, {"extra": 1},
        {"lengths": [0] * 257, "checksums": [0] * 257, "columns": {}},
    ],
)  # fmt: skip
def test_blocks_that_lie(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptRecord):
        decode_block(fields(**changes), "p", 3, 2)


def test_blocks_of_garbage() -> None:
    chance = random.Random(3)
    for size in range(200):
        with pytest.raises(CorruptRecord):
            decode_block(chance.randbytes(size), "p", 1 << 40, 1 << 40)


# ---------------------------------------------------------------------- folders
@pytest.mark.parametrize("url", ["file://relative", "file:///", "memory://x", "ftp://x/y", "s3:///x"])
def test_folders_that_cannot_be(url: str) -> None:
    with pytest.raises(InvalidURL):
        open_folder(url)


def test_a_missing_batch_says_so(tmp_path: Path) -> None:
    with pytest.raises(CorruptRecord, match="is missing"):
        check_batch(LocalFolder(tmp_path), changed(batch(), b"xx"), "default", "job")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    info = batch()
    path = tmp_path / (parse_batch_uri(info.uri) or "")
    path.parent.mkdir()
    (tmp_path / "elsewhere").write_bytes(info.data)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Exception, match="can't be used"):
        LocalFolder(tmp_path).read(parse_batch_uri(info.uri) or "", [(0, 8)])


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    for name in ("notes.txt", f"{job_folder('job')}/x.batch", f"{job_folder('job')}/0-0-{'0' * 16}.batch"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    folder = LocalFolder(tmp_path)
    assert [[found.path for found in page] for page in folder.files()] == [
        [f"{job_folder('job')}/0-0-{'0' * 16}.batch"]
    ]
    assert folder.delete([found.path for page in folder.files() for found in page]) == 1
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["notes.txt", "x.batch"]
