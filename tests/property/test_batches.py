"""Batch objects: what is written is read, and any damage is noticed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kombu_opendata.errors import CorruptRecord, NewerFormat, RequestError
from kombu_opendata.offline.checks.batch_objects import verify_object
from kombu_opendata.staging.batch_block import value_at
from kombu_opendata.staging.batch_format import batch_path
from kombu_opendata.staging.batch_reader import read_inline
from kombu_opendata.staging.batch_writer import BatchWriter
from kombu_opendata.staging.folder import LocalFolder
from kombu_opendata.staging.job import BatchInfo, StagingTarget

TARGET = StagingTarget("file:///nowhere/default.staged")
TOKEN = "0" * 16
PATH = batch_path("job", 0, 0, TOKEN)
TIMES = st.integers(0, 2**53)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "envelope": st.binary(max_size=60),
            "headers": st.dictionaries(st.text("abc", min_size=1, max_size=2), st.text(max_size=5), max_size=3),
            "exchange": st.sampled_from(["", "topic"]),
            "routing_key": st.text(max_size=4),
            "priority": st.integers(0, 255),
            "created_at_ms": TIMES,
            "visible_at_ms": TIMES,
            "ttl_ms": st.integers(-1, 2**53),
        }
    ),
    min_size=1,
    max_size=12,
)


def written(rows: list[dict[str, Any]]) -> BatchInfo:
    writer = BatchWriter(TARGET, "job", 0, 0, token=TOKEN)
    for row in rows:
        writer.add(**row)
    return writer.close()


def read(info: BatchInfo) -> list[dict[str, Any]]:
    found = []
    for _encoded, block, payload in read_inline(info, "default", "job", 1 << 20):
        at = 0
        for row, length in enumerate(block.lengths):
            names = ("exchange", "routing_key", "priority", "created_at_ms", "visible_at_ms", "ttl_ms")
            fields = {name: value_at(getattr(block, name), row) for name in names}
            found.append({"envelope": payload[at : at + length], "headers": block.headers_of(row), **fields})
            at += length
    return found


@given(ROWS)
def test_what_is_written_is_read(rows: list[dict[str, Any]]) -> None:
    assert read(written(rows)) == rows


@given(ROWS, st.data())
def test_each_flipped_bit_and_each_cut_is_noticed(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    info = written(rows)
    at, bit = data.draw(st.integers(0, info.bytes - 1)), data.draw(st.integers(0, 7))
    flipped = info.data[:at] + bytes((info.data[at] ^ 1 << bit,)) + info.data[at + 1 :]
    for damaged in (flipped, info.data[:at]):
        try:
            read(BatchInfo(info.uri, info.rows, len(damaged), info.checksum, data=damaged))
        except (CorruptRecord, NewerFormat, RequestError):
            pass
        else:
            raise AssertionError(f"bit {bit} of byte {at} of {info.bytes}, or the end there, is not noticed")
        assert is_damaged(damaged, info.checksum)


def is_damaged(data: bytes, checksum: int) -> bool:
    """What verification says of an object with these bytes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / PATH
        file.parent.mkdir()
        file.write_bytes(data)
        try:
            return any(True for _damaged in verify_object(LocalFolder(Path(folder)), PATH, len(data), checksum))
        except (CorruptRecord, NewerFormat):
            return True
