"""Blocks of an index: what is wrong in one is found before it is used."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from kombu_opendata.errors import CorruptRecord
from kombu_opendata.staging.batch_block import IndexBlock, cut, decode_block


def fields(**changes: Any) -> bytes:
    given = {
        "offset": 0, "lengths": [1, 2], "checksums": [1, 2], "exchange": "", "routing_key": "q", "priority": 0,
        "created_at_ms": 0, "visible_at_ms": 0, "ttl_ms": -1, "constants": {"a": "1"}, "columns": {"b": ["1", None]},
        "frame_bytes": 0, "frame_checksum": 0, "start": 0, **changes,
    }  # fmt: skip
    return msgspec.msgpack.encode(list(given.values()))


def test_a_block_decodes() -> None:
    assert isinstance(decode_block(fields(), "p", 3, 2), IndexBlock)


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
        {"columns": {"b": ["1", 2]}}, {"columns": {"b": ["1", "x" * 65_536]}}, {"columns": [1]},
        {"frame_bytes": 4}, {"frame_bytes": -1}, {"frame_bytes": 1.5}, {"frame_checksum": 1 << 32},
        {"frame_checksum": -1}, {"start": 1}, {"frame_bytes": 1, "start": -1},
        {"extra": 1},
        {"lengths": [0] * 257, "checksums": [0] * 257, "columns": {}},
    ],
)  # fmt: skip
def test_blocks_that_lie(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptRecord):
        decode_block(fields(**changes), "p", 3, 2)


def test_the_size_of_a_frame_is_limited_by_its_block() -> None:
    mib = 1 << 20
    for lengths in ([mib], [mib - 1, 1], [50 * mib]):
        block = fields(lengths=lengths, checksums=[0] * len(lengths), columns={}, frame_bytes=1)
        assert decode_block(block, "p", 1, 50 * mib).frame_bytes == 1
    for lengths in ([mib, 1], [50 * mib + 1], [4096] * 257):
        with pytest.raises(CorruptRecord):
            decode_block(
                fields(lengths=lengths, checksums=[0] * len(lengths), columns={}, frame_bytes=1), "p", 1, 50 * mib
            )


def test_a_part_of_a_block_is_a_later_part_of_its_frame() -> None:
    framed = decode_block(fields(lengths=[1, 2], frame_bytes=3), "p", 3, 2)
    part = cut(framed, 1, 1)
    assert (part.offset, part.start, part.lengths) == (0, 1, [2])
    plain = cut(decode_block(fields(), "p", 3, 2), 1, 1)
    assert (plain.offset, plain.start, plain.lengths) == (1, 0, [2])


def test_blocks_of_garbage() -> None:
    chance = random.Random(3)
    for size in range(200):
        with pytest.raises(CorruptRecord):
            decode_block(chance.randbytes(size), "p", 1 << 40, 1 << 40)
