"""Every byte of a table's file counts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import lz4.block
import pytest

from kombu_opendata.offline.files.sorted_table import _LZ4, DAMAGED, FlatTable, Info, TableFile, _plain
from kombu_opendata.storage.slatedb.slate_settings import SlateSettings
from kombu_opendata.storage.slatedb.store_writer import SlateStore


@pytest.fixture(scope="module", params=["", "Lz4"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A WAL file and tables of some blocks, as older versions wrote them, and compressed."""
    root = tmp_path_factory.mktemp("db")

    async def main() -> None:
        store = await SlateStore.open(f"file://{root}", "db", settings=SlateSettings(codec=request.param))
        for number in range(3):
            batch = store.batch()
            for row in range(40):
                batch.put(b"key %03d %d" % (row, number), bytes([row]) * 150)
            batch.delete(b"gone")
            await store.write(batch)
            await store.flush_wal()
        await store.flush_memtable()
        await store.close()

    asyncio.run(main())
    found = [path for path in (root / "db").rglob("*.sst") if path.stat().st_size]
    assert {path.parent.name for path in found} == {"wal", "compacted"}
    return found


def test_whole_files(files: list[Path]) -> None:
    for path in files:
        found = TableFile(path, with_rows=True)
        assert not found.damage
        assert found.rows
    table = next(path for path in files if path.parent.name == "compacted")
    found = TableFile(table, with_rows=True)
    assert found.info is not None
    assert (found.info.first_entry, found.last_seq) == (b"\0", 4)  # the flush wrote a row, too
    assert (found.info.codec > 0) == (found.size < 10_000)  # 18 kB of rows
    wal = [TableFile(path, with_rows=True) for path in sorted(files) if path.parent.name == "wal"]
    assert [one.first_seq for one in wal if one.rows > 1] == [1, 2, 3]


def test_any_flipped_byte_is_found(files: list[Path], tmp_path: Path) -> None:
    for path in (min(files, key=lambda p: p.stat().st_size), max(files, key=lambda p: p.stat().st_size)):
        data = path.read_bytes()
        copy = tmp_path / path.name
        for at in range(0, len(data), 1 if len(data) < 5000 else 7):
            mask = (0x01, 0x80, 0xFF)[at % 3]
            copy.write_bytes(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])
            assert TableFile(copy).damage, f"byte {at} of {len(data)} in {path.parent.name}"


def test_any_cut_is_found(files: list[Path], tmp_path: Path) -> None:
    data = max(files, key=lambda p: p.stat().st_size).read_bytes()
    copy = tmp_path / "cut.sst"
    for size in (*range(0, len(data), 97), len(data) - 1):
        copy.write_bytes(data[:size])
        assert TableFile(copy).damage, f"{size} of {len(data)} bytes"
    copy.write_bytes(data + b"\0")
    assert TableFile(copy).damage


def test_a_damaged_block_loses_its_own_keys_only(files: list[Path], tmp_path: Path) -> None:
    data = max((path for path in files if path.parent.name == "compacted"), key=lambda p: p.stat().st_size).read_bytes()
    copy = tmp_path / "block.sst"
    copy.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    found = TableFile(copy)
    assert found.damage[0].startswith("its block 0 (bytes 0 to ")
    (low, high), *more = found.lost
    assert not more
    assert low <= b"gone" < (high or b"")


@pytest.mark.parametrize("data", [b"", b"\1", b"\xff" * 4, bytes(64), b"\4\0\0\0\xff\xff\xff\x7f"])
def test_what_is_no_flatbuffer(data: bytes) -> None:
    with pytest.raises(DAMAGED):
        FlatTable(data)


def test_a_part_whose_size_can_not_be() -> None:
    """A damaged or crafted size must not reserve gigabytes."""
    info = Info(None, None, 0, 0, 0, 0, _LZ4, 0, 0)
    good = lz4.block.compress(b"row" * 100)
    assert _plain(info, good) == b"row" * 100
    with pytest.raises(ValueError, match="can't be"):
        _plain(info, (0x7F000000).to_bytes(4, "little") + good[4:])
