import asyncio
from pathlib import Path
from zlib import crc32

from kombu_opendata.staging.batch_format import batch_path
from kombu_opendata.staging.compression import Compressor
from kombu_opendata.staging.folder_url import StagedFolder
from kombu_opendata.storage.messages.payload_reader import PayloadReader, Place
from kombu_opendata.storage.records.payload_places import EnvelopePlace

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
