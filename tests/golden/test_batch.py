"""The checked-in bytes of staged batches: those of each version are read, and those of the newest are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from kombu_opendata.staging import batch_format as fmt
from kombu_opendata.staging.batch_block import IndexBlock, decode_block
from kombu_opendata.staging.batch_reader import read_inline
from kombu_opendata.staging.batch_writer import BatchWriter
from kombu_opendata.staging.compression import decompress
from kombu_opendata.staging.job import BatchInfo, StagingTarget

FILES = sorted(Path(__file__).parent.glob("batch_v*.json"))


def vector(version: int) -> dict[str, Any]:
    return dict(json.loads(Path(__file__).with_name(f"batch_v{version}.json").read_text()))


def written(about: dict[str, Any]) -> BatchInfo:
    target = StagingTarget("file:///store/default.staged", "default")
    writer = BatchWriter(target, about["job_id"], about["partition"], about["attempt"], token=about["token"])
    for row in about["rows"]:
        writer.add(bytes.fromhex(row["envelope_hex"]), **{k: v for k, v in row.items() if k != "envelope_hex"})
    return writer.close()


def parts(data: bytes) -> list[bytes]:
    """The decompressed contents of an object with one block: other versions of zstd compress otherwise."""
    start = fmt.directory_start(data, len(data), "p")
    (segment,) = fmt.decode_tail(data[start:], start, "p", fmt.VERSION).segments
    frame, index = data[fmt.HEADER.size : segment.index_offset], data[segment.index_offset : start]
    identity = data[start + fmt.ENTRY.size : -fmt.FOOTER.size]
    return [data[: fmt.HEADER.size], decompress(frame, 1000), decompress(index, 1000), identity]


def without_frame(index: bytes) -> IndexBlock:
    """The only block of an index, with its size in front, without what describes the compressed bytes."""
    assert int.from_bytes(index[:4], "little") == len(index) - 4
    return structs.replace(decode_block(index[4:], "p", 1000, 1000), frame_bytes=0, frame_checksum=0)


def test_a_batch_is_written_as_it_was() -> None:
    about = vector(fmt.VERSION)
    info = written(about)
    header, envelopes, index, identity = parts(info.data)
    golden = parts(bytes.fromhex(about["object_hex"]))
    assert [header, envelopes, identity] == [golden[0], golden[1], golden[3]]
    assert without_frame(index) == without_frame(golden[2])
    assert (info.uri, info.rows) == (about["uri"], len(about["rows"]))
    assert info.contents_bytes == len(envelopes) + len(index)


@pytest.mark.parametrize("version", [1, 2])
def test_a_batch_of_then_is_read(version: int) -> None:
    about = vector(version)
    data = bytes.fromhex(about["object_hex"])
    assert fmt.read_header(data, "p") == version
    info = BatchInfo(about["uri"], len(about["rows"]), len(data), about["checksum"], data=data)
    ((_encoded, block, payload),) = read_inline(info, "default", about["job_id"], 1 << 20)
    assert payload.hex() == "".join(row["envelope_hex"] for row in about["rows"])
    assert (block.exchange, block.routing_key, block.priority) == ("", ["celery", "celery", "billing"], [0, 9, 0])
    assert (block.constants, block.columns) == ({"task": "app.añadir"}, {"id": ["1", "2", None]})
    assert (block.visible_at_ms, block.ttl_ms, block.created_at_ms) == ([0, 0, 1769385660000], -1, 1769385600000)


def test_there_are_bytes_of_each_version() -> None:
    assert [file.name for file in FILES] == [f"batch_v{number + 1}.json" for number in range(fmt.VERSION)]
