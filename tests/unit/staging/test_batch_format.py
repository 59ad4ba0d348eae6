"""Binary format of a batch object, and its names."""

from __future__ import annotations

import random
import struct
import tracemalloc
from typing import Any
from zlib import crc32

import pytest

from kombu_opendata.errors import CorruptRecord, NewerFormat, RequestError
from kombu_opendata.staging import batch_format as fmt
from kombu_opendata.staging.batch_format import SegmentEntry, batch_uri, job_folder, parse_batch_uri
from kombu_opendata.staging.batch_reader import path_of, read_inline
from kombu_opendata.staging.batch_writer import BatchWriter
from kombu_opendata.staging.compression import Compressor, FrameError, decompress
from kombu_opendata.staging.job import INLINE_BYTES, BatchInfo, StagingTarget
from kombu_opendata.storage.records.payload_places import parse_payload_uri

# ---- batch format
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
        read(changed(info, b"ODQB\x03\x00" + info.data[6:]))


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


# ---------------------------------------------------------------------- a directory with valid checksums and lies in it
def forged(entries: list[SegmentEntry], body: bytes = b"", **footer: Any) -> bytes:
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
        forged([SegmentEntry(8, 10**18, 100, 0, 1, 1)]),
        forged([SegmentEntry(8, 0, 100, 0, 10**9, 1)], b"x" * 100),
        forged([SegmentEntry(8, 0, 100, 0, 0, 0)], b"x" * 100),
        forged([SegmentEntry(8, 0, 100, 0, 1, 2)], b"x" * 100),
        forged([SegmentEntry(9, 0, 99, 0, 1, 1)], b"x" * 100),
        forged([SegmentEntry(8, 0, 100, 0, 1, 1)], b"x" * 101),
        forged([SegmentEntry(8, 0, 0xFFFF_FFFF, 0, 1, 1)], b"x" * 100),
        forged([SegmentEntry(8, 0, 100, 0, 1, 1)], b"x" * 100, rows=10**9),
        forged([SegmentEntry(8, 0, 100, 0, 1, 1)], b"x" * 100, rows=1 << 40),
        forged([SegmentEntry(8, 0, 100, 0, 1, 1)], b"x" * 100, segments=0xFFFF_FFFF),
        forged([SegmentEntry(8, 0, 100, 0, 1, 1)], b"x" * 100, offset=0),
        forged([SegmentEntry(8, 0, 100, 0, 1, 1)], b"x" * 100, offset=1 << 63),
        forged([SegmentEntry(8, 0, 100, 0, 1, 1)], b"x" * 100, identity=5),
    ],
)  # fmt: skip
def test_directories_that_lie(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        read(BatchInfo(batch().uri, 1, len(data), 0, data=data))


# ---- batch uri
def test_uris_of_payloads() -> None:
    path = f"{job_folder('job')}/1-2-{'a' * 16}.batch"
    assert parse_payload_uri(f"batch:{path}:8:300:0000002a") == (path, 8, 300, 42, 0, 0)
    assert parse_payload_uri(f"batch:{path}:8:77:5:300:0000002a") == (path, 8, 300, 42, 77, 5)
    assert parse_payload_uri(f"batch:{path}:8:77:300:0000002a") is None
    assert parse_batch_uri(f"batch:{path}") == path
    assert parse_payload_uri(f"batch:{path}") is None
    assert parse_payload_uri(f"batch:{path}:-8:300:0000002a") is None
    assert parse_payload_uri(f"batch:{path}:{10**19}:300:0000002a") is None


# ---- compression
def test_frames() -> None:
    compressor = Compressor()
    for data in (b"", b"x", bytes(5 << 20), random.Random(1).randbytes(100_000)):
        frame = compressor.frame(data)
        assert decompress(frame, len(data)) == data
        for wrong in (frame[:-1], frame + b"\0", frame + frame, frame[:4], b""):
            with pytest.raises(FrameError):
                decompress(wrong, 10 << 20)


def test_a_frame_is_not_decompressed_beyond_its_limit() -> None:
    bomb = Compressor().frame(bytes(256 << 20))
    assert len(bomb) < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(FrameError, match="limit is 1048576"):
            decompress(bomb, 1 << 20)
        # the header claims a smaller size: the four bytes after magic and descriptor
        with pytest.raises(FrameError):
            decompress(bomb[:4] + b"\xa0" + (1 << 20).to_bytes(4, "little") + bomb[9:], 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_an_inline_batch_has_as_many_contents_as_it_may() -> None:
    writer = BatchWriter(TARGET, "job", 0, 0, token="0" * 16)
    writer.add(bytes(INLINE_BYTES - 1000), {})
    info = writer.close()
    assert len(info.data) < 1000
    assert info.contents_bytes <= INLINE_BYTES
    with pytest.raises(RequestError, match="too large to be inline"):
        read_inline(info, "default", "job", 1 << 20, 100_000)
