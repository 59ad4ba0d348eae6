import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from kombu_opendata.errors import DamagedBatch
from kombu_opendata.staging.batch_block import decode_block
from kombu_opendata.staging.batch_format import batch_path, parse_batch_uri
from kombu_opendata.staging.batch_reader import read_index, read_tail
from kombu_opendata.staging.batch_writer import BatchWriter
from kombu_opendata.staging.compression import Compressor
from kombu_opendata.staging.folder import Folder
from kombu_opendata.staging.folder_url import StagedFolder
from kombu_opendata.staging.job import StagingTarget
from kombu_opendata.storage.effects.staged_jobs import StagedChunk, records_of
from kombu_opendata.storage.messages.payload_reader import PayloadReader, locate
from kombu_opendata.storage.messages.payloads import Payloads
from kombu_opendata.storage.records.keys import payload_key
from kombu_opendata.storage.records.payload import encode_inline
from kombu_opendata.storage.records.payload_places import EnvelopePlace, Place
from kombu_opendata.storage.records.staged_jobs import StagedObject
from tests.support import batches

pytestmark = pytest.mark.contract(15)

FIRST_ID = 1000
PATH = batch_path("job", 0, 0, "0" * 16)


class NoChunks:
    async def get_many(self, keys: object, /) -> list[bytes | None]:
        raise AssertionError(keys)


def places_in(root: Path, frames: list[list[bytes]]) -> list[list[EnvelopePlace]]:
    """Write a file with these frames; return the places of their envelopes."""
    content, compressor, places = b"", Compressor(), list[list[EnvelopePlace]]()
    for envelopes in frames:
        frame, start = compressor.frame(b"".join(envelopes)), 0
        places.append([])
        for envelope in envelopes:
            place = EnvelopePlace(PATH, len(content), len(envelope), crc32(envelope), len(frame), start)
            places[-1].append(place)
            start += len(envelope)
        content += frame
    file = root / PATH
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    return places


def test_frames_are_read_once_for_messages_in_any_order(tmp_path: Path) -> None:
    staged_folder = StagedFolder(f"file://{tmp_path}", "default")
    reader = PayloadReader(NoChunks(), staged_folder)
    folder = staged_folder.open()
    assert folder.root is not None
    first, second = places_in(folder.root, [[b"a", b"bb", b"ccc"], [b"d", b"ee"]])
    mixed: dict[int, Place] = {1: first[2], 2: second[1], 3: first[0], 4: b"inline", 5: second[0], 6: first[1]}
    expected = {1: b"ccc", 2: b"ee", 3: b"a", 4: b"inline", 5: b"d", 6: b"bb"}
    assert asyncio.run(reader.read(mixed)) == expected
    (folder.root / PATH).unlink()
    assert asyncio.run(reader.read(mixed)) == expected  # both frames are in memory


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_sector_that_can_not_be_read_fails_its_payload_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    folder = StagedFolder(f"file://{tmp_path}", "default")
    root = folder.open().root
    assert root is not None
    envelopes = [bytes([number]) * size for number in range(3)]
    (root / PATH).parent.mkdir(parents=True)
    (root / PATH).write_bytes(b"".join(envelopes))
    places: dict[int, Place] = {
        number: EnvelopePlace(PATH, number * size, size, crc32(each), 0) for number, each in enumerate(envelopes)
    }
    read = os.pread

    def pread(fd: int, length: int, offset: int) -> bytes:
        if offset <= size + size // 2 < offset + length:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(fd, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    first, second, third = asyncio.run(PayloadReader(NoChunks(), folder).read(places)).values()
    assert (first, third) == (envelopes[0], envelopes[2])
    assert isinstance(second, DamagedBatch)
    assert "Input/output error" in second.text


def test_records_that_disagree_about_a_frame_fail_alone(tmp_path: Path) -> None:
    folder = StagedFolder(f"file://{tmp_path}", "default")
    root = folder.open().root
    assert root is not None
    ((first, second, third),) = places_in(root, [[b"a", b"bb", b"ccc"]])
    shorter, wrong = second._replace(frame_bytes=second.frame_bytes - 1), third._replace(checksum=0)
    found = asyncio.run(PayloadReader(NoChunks(), folder).read({1: first, 2: shorter, 3: wrong}))
    assert found[1] == b"a"
    assert isinstance(found[2], Exception)
    assert isinstance(found[3], Exception)


# ---- places from the indexes of batches
def staged_batch(root: Path, rows: int, max_segment_bytes: int = 4 << 20) -> StagedObject:
    """A batch object of the folder, whose segments have at least this many bytes."""
    target = StagingTarget(StagedFolder(f"file://{root}", "default").url, inline_bytes=0, inline_rows=0)
    writer = BatchWriter(target, "job", 0, 0, max_segment_bytes=max_segment_bytes)
    for row in range(rows):
        writer.add(batches.envelope(b"%d " % row * (row % 50)), batches.headers(id=str(row)), routing_key="q")
    info = writer.close()
    path = parse_batch_uri(info.uri) or ""
    return StagedObject(FIRST_ID, info.rows, info.rows, info.bytes, info.checksum, path, "job")


def payload_records(folder: Folder, batch: StagedObject) -> dict[int, bytes]:
    """The payload records that routing makes for the batch."""
    tail, id, records = read_tail(folder, batch.path, batch.bytes), batch.first_id, dict[int, bytes]()
    for segment in tail.segments:
        for encoded in read_index(folder, batch.path, segment, tail.version):
            block = decode_block(encoded, batch.path, segment.payload_bytes, 1 << 20)
            at = segment.payload_offset + block.offset
            chunk = StagedChunk("job", id, 1, 1, batch.path, at, block.rows, encoded, b"")
            records |= {row.id: row.uri for row in records_of(chunk, block, [0, block.rows])}
            id += block.rows
    return records


@pytest.mark.parametrize("segment_bytes", [4 << 20, 1000])
def test_the_index_of_a_batch_has_the_places_of_the_records(tmp_path: Path, segment_bytes: int) -> None:
    batch, staged_folder = staged_batch(tmp_path, 600, segment_bytes), StagedFolder(f"file://{tmp_path}", "default")
    recorded = {id: locate(id, record) for id, record in payload_records(staged_folder.open(), batch).items()}
    assert len(recorded) == 600
    reader = PayloadReader(NoChunks(), staged_folder)
    for ids in ([*recorded], [*recorded][3::7], [*recorded][::-1], [FIRST_ID + 255, FIRST_ID + 256, FIRST_ID + 599]):
        assert asyncio.run(reader.places_in([(batch, ids)])) == {id: recorded[id] for id in ids}


def test_places_are_not_read_from_an_index_that_may_be_wrong(tmp_path: Path) -> None:
    batch, staged_folder = staged_batch(tmp_path, 20), StagedFolder(f"file://{tmp_path}", "default")
    folder, ids = staged_folder.open(), [FIRST_ID]
    assert folder.root is not None
    file = folder.root / batch.path
    data = file.read_bytes()
    (segment,) = read_tail(folder, batch.path, batch.bytes).segments

    def places(batch: StagedObject) -> dict[int, EnvelopePlace]:
        return asyncio.run(PayloadReader(NoChunks(), staged_folder).places_in([(batch, ids)]))

    other = StagedObject(FIRST_ID, 20, 20, batch.bytes, batch.checksum + 1, batch.path, "job")
    assert places(other) == {}, "it is not the batch that was committed"
    for at in (0, segment.index_offset + 9, len(data) - 3):
        file.write_bytes(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :])
        assert places(batch) == {}, at
    file.unlink()
    assert places(batch) == {}
    file.write_bytes(data)
    assert places(batch).keys() == {FIRST_ID}


def test_a_batch_of_version_1_has_no_places_in_its_index(tmp_path: Path) -> None:
    about = json.loads((Path(__file__).parents[3] / "golden" / "batch_v1.json").read_text())
    data, path = bytes.fromhex(about["object_hex"]), parse_batch_uri(about["uri"]) or ""
    staged_folder = StagedFolder(f"file://{tmp_path}", "default")
    staged_folder.open().write(path, [data])
    tail = read_tail(staged_folder.open(), path, len(data))
    batch = StagedObject(FIRST_ID, tail.rows, tail.rows, len(data), tail.checksum, path, "job")
    reader = PayloadReader(NoChunks(), staged_folder)
    assert asyncio.run(reader.places_in([(batch, [FIRST_ID])])) == {}


class _Records:
    """A store of payload records that notes the ids of its reads."""

    def __init__(self, records: dict[bytes, bytes]) -> None:
        self._records = records
        self.ids: list[int] = []

    async def scan_batches(self, start: bytes, end: bytes, **_given: Any) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        rows = sorted((key, value) for key, value in self._records.items() if start <= key < end)
        self.ids += [int.from_bytes(key[-8:], "big") for key, _value in rows]
        if rows:
            yield rows

    async def get(self, key: bytes) -> bytes | None:
        self.ids.append(int.from_bytes(key[-8:], "big"))
        return self._records.get(key)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_staged_messages_are_loaded_without_their_records_if_the_index_has_them(
    tmp_path: Path, is_damaged: bool
) -> None:
    batch, staged_folder = staged_batch(tmp_path, 300), StagedFolder(f"file://{tmp_path}", "default")
    folder = staged_folder.open()
    staged, published = payload_records(folder, batch), [FIRST_ID - 1, FIRST_ID + 300]
    records = staged | {id: encode_inline(b"published") for id in published}
    store: Any = _Records({payload_key(id): record for id, record in records.items()})

    def batch_of(id: int) -> StagedObject | None:
        return batch if FIRST_ID <= id < FIRST_ID + 300 else None

    if is_damaged:
        assert folder.root is not None
        with (folder.root / batch.path).open("r+b") as file:
            file.seek(read_tail(folder, batch.path, batch.bytes).segments[0].index_offset)
            file.write(bytes(9))
    payloads = Payloads(store, PayloadReader(store, staged_folder), 1 << 20, batch_of)
    ids = [published[0], *staged, published[1]]
    assert asyncio.run(payloads.load(ids)) == {}
    assert sorted(set(store.ids)) == (ids if is_damaged else published)
    assert payloads.find(published[1]) == b"published"
    assert payloads.find(FIRST_ID + 7) == batches.envelope(b"7 " * 7)
