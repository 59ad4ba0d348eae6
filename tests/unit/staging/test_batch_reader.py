"""Verification of batch objects."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from kombu_opendata.errors import DamagedBatch, NewerFormat
from kombu_opendata.offline.checks.batch_objects import DamagedRows, verify_object
from kombu_opendata.staging.batch_format import parse_batch_uri
from kombu_opendata.staging.batch_reader import read_tail
from kombu_opendata.staging.folder import LocalFolder
from kombu_opendata.staging.job import BatchInfo, StagingTarget

from ...support.batches import stage

#: does not compress
LARGE = random.Random(5).randbytes(5 << 20)


def staged(root: Path, *bodies: bytes) -> tuple[Path, BatchInfo]:
    """The file of a batch, and what its writer returned."""
    (info,) = stage(StagingTarget(f"file://{root}", inline_bytes=0, inline_rows=0), "job", [bodies])
    return root / (parse_batch_uri(info.uri) or ""), info


def verified(root: Path, info: BatchInfo) -> list[DamagedRows]:
    folder = LocalFolder(root)
    return list(verify_object(folder, parse_batch_uri(info.uri) or "", info.bytes, info.checksum))


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes((byte ^ 1,)))


def test_every_flipped_byte_is_reported(tmp_path: Path) -> None:
    path, info = staged(tmp_path, b"one", b"", b"three")
    assert verified(tmp_path, info) == []
    for at in range(info.bytes):
        flip(path, at)
        with contextlib.suppress(DamagedBatch, NewerFormat):
            assert verified(tmp_path, info), f"byte {at}"
        flip(path, at)


def test_the_damaged_rows_are_named(tmp_path: Path) -> None:
    """Rows of several segments, and larger than a read."""
    path, info = staged(tmp_path, b"zero", LARGE, b"two", LARGE, b"four")
    flip(path, info.bytes // 3)
    flip(path, info.bytes // 3 * 2)
    assert [(damaged.first, damaged.rows) for damaged in verified(tmp_path, info)] == [(1, 1), (3, 1)]


def test_a_damaged_index_is_the_damage_of_its_rows(tmp_path: Path) -> None:
    path, info = staged(tmp_path, b"zero", LARGE, b"two", b"three")
    tail = read_tail(LocalFolder(tmp_path), parse_batch_uri(info.uri) or "", info.bytes)
    flip(path, tail.segments[1].index_offset + 9)
    assert [(damaged.first, damaged.rows) for damaged in verified(tmp_path, info)] == [(2, 2)]


def test_an_object_that_is_another_one(tmp_path: Path) -> None:
    path, info = staged(tmp_path, b"one")
    other, second = staged(tmp_path, b"two")
    assert second.bytes == info.bytes
    path.write_bytes(other.read_bytes())
    with pytest.raises(DamagedBatch, match="the commit has"):
        verified(tmp_path, info)
