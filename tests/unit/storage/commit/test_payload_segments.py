"""Payload segments: bytes are durable before a record refers to them, and a failed append changes nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from zlib import crc32

import pytest

from kombu_opendata.errors import CorruptRecord, InvalidMessage, StoreError, StoreFull, StoreUnwritable
from kombu_opendata.staging.folder import LocalFolder
from kombu_opendata.staging.folder_url import StagedFolder
from kombu_opendata.storage.clock import SystemClock
from kombu_opendata.storage.commit.file_calls import FileCalls
from kombu_opendata.storage.commit.payload_segments import BucketSegments, LocalSegments
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.messages.payload_reader import PayloadReader
from kombu_opendata.storage.messages.payloads import Payloads
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.records.payload import PayloadURI
from kombu_opendata.storage.records.payload_places import Place
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.engine import SESSION, World, run, sized
from tests.support.plain_store import PlainStore
from tests.support.s3 import BUCKET, S3
from tests.support.verified import assert_verified, verify

pytestmark = pytest.mark.contract(15)

TOKEN = "0123456789abcdef"
LARGE = 1000


class Disk(FileCalls):
    """The calls of this system, with a limit for bytes, and notes about syncs."""

    def __init__(self) -> None:
        self.room = 1 << 30
        self.sync_error = 0
        self.synced: list[int] = []  # sizes of files

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "full")
        count = super().write(fd, data[: self.room], offset)
        self.room -= count
        return count

    def sync_data(self, fd: int) -> None:
        if self.sync_error:
            raise OSError(self.sync_error, "broken")
        self.synced.append(os.fstat(fd).st_size)


def body(number: int, size: int = LARGE) -> bytes:
    """A body that can't be compressed."""
    return random.Random(number).randbytes(size)


def opened(root: Path, disk: Disk, segment_bytes: int = 100) -> LocalSegments:
    return LocalSegments(LocalFolder(root / "default.staged"), TOKEN, 10, segment_bytes, calls=disk)


def test_envelopes_are_contiguous_and_read_at_their_places(tmp_path: Path) -> None:
    segments = opened(tmp_path, Disk())
    places = [segments.append(body(number, 40)) for number in range(5)]
    assert [(place.path, place.offset) for place in places] == [
        *((f"segments/{TOKEN}-0.segment", offset) for offset in (0, 40, 80)),
        *((f"segments/{TOKEN}-1.segment", offset) for offset in (0, 40)),
    ]
    for number, place in enumerate(places):
        data = (tmp_path / "default.staged" / place.path).read_bytes()[place.offset : place.offset + place.length]
        assert data == body(number, 40)
        assert place.checksum == crc32(data)
    segments.close()


def test_a_full_segment_is_synced_before_the_next_begins(tmp_path: Path) -> None:
    disk = Disk()
    segments = opened(tmp_path, disk)
    for _ in range(3):
        segments.append(body(4, 40))
    assert disk.synced == []
    segments.append(body(4, 40))
    assert disk.synced == [120]
    segments.sync()
    segments.sync()
    assert disk.synced == [120, 40], "only what was written since"
    segments.close()


def test_a_full_disk_refuses_an_envelope_and_harms_no_other(tmp_path: Path) -> None:
    disk = Disk()
    segments = opened(tmp_path, disk)
    first = segments.append(body(1, 40))
    disk.room = 10
    with pytest.raises(StoreFull):
        segments.append(body(2, 40))
    path = tmp_path / "default.staged" / first.path
    assert path.stat().st_size == 40, "later backups would take other bytes of this size for the same"
    disk.room = 1 << 30
    second = segments.append(body(3, 20))
    segments.sync()
    assert second.offset == 40
    assert path.read_bytes() == body(1, 40) + body(3, 20)
    segments.close()


def test_an_envelope_of_its_own_segment_is_durable_and_can_be_removed(tmp_path: Path) -> None:
    disk = Disk()
    segments = opened(tmp_path, disk)
    first, path = segments.append(body(1, 40)), segments.reserve()
    place = segments.write_own(path, body(2, 200))
    assert (place.path, place.offset, place.checksum) == (path, 0, crc32(body(2, 200)))
    assert disk.synced == [200]
    file = tmp_path / "default.staged" / path
    assert file.read_bytes() == body(2, 200)
    assert segments.append(body(3, 20))[:2] == (first.path, 40), "the open segment goes on"
    segments.remove(path)
    segments.remove(path)
    assert not file.exists()
    disk.room = 10
    with pytest.raises(StoreFull):
        segments.write_own(segments.reserve(), body(4, 200))
    segments.close()


def test_no_sync_is_repeated_after_one_has_failed(tmp_path: Path) -> None:
    disk = Disk()
    segments = opened(tmp_path, disk)
    segments.append(body(1, 40))
    disk.sync_error = errno.EIO
    with pytest.raises(StoreUnwritable):
        segments.sync()
    disk.sync_error = 0
    for step in (segments.sync, lambda: segments.append(body(2, 40))):
        with pytest.raises(StoreUnwritable):
            step()
    segments.close()


def test_the_collection_may_remove_the_empty_folder(tmp_path: Path) -> None:
    segments = opened(tmp_path, Disk(), segment_bytes=1)
    place = segments.append(body(1, 40))
    assert LocalFolder(tmp_path / "default.staged").delete([place.path]) == 1
    assert not (tmp_path / "default.staged" / "segments").exists()
    assert segments.append(body(2, 40)).path != place.path
    segments.close()


def test_an_object_has_the_envelopes_of_one_commit(tmp_path: Path) -> None:
    folder = StagedFolder(f"file://{tmp_path}", "default")
    segments = BucketSegments(folder, TOKEN, 10)
    assert segments.begin_flush() is None
    places = [segments.append(body(1, 20)), segments.append(body(2, 30))]
    assert segments.waiting_bytes == 50
    upload = segments.begin_flush()
    later = segments.append(body(3, 10))
    assert upload is not None
    upload()
    assert [(place.path, place.offset) for place in (*places, later)] == [
        (f"segments/{TOKEN}-0.segment", 0), (f"segments/{TOKEN}-0.segment", 20), (f"segments/{TOKEN}-1.segment", 0),
    ]  # fmt: skip
    assert folder.open().read_all(places[0].path) == body(1, 20) + body(2, 30)
    assert segments.waiting_bytes == 10


# ---------------------------------------------------------------------- with an engine
SETTINGS = sized(large_body_bytes=LARGE, segment_bytes=2500)


def files(world: World) -> list[Path]:
    return sorted((world.root / "default.staged").glob("segments/*"))


def names(world: World) -> list[str]:
    return [file.name.partition("-")[2] for file in files(world)]


async def delete_next(world: World) -> bytes | None:
    """Delete the next message; return its payload."""
    entry = await world.claim("q")
    envelope = world.engine.payloads.find(entry.id)
    world.engine.operations.delete(world.queue("q"), (entry,))
    return envelope


async def collect(world: World) -> None:
    """Delete what is not needed, and what a crash left."""
    await world.engine.commits.checkpoint()
    await world.engine.upkeep.tidy()
    await world.engine.staging.remove_orphans(world.clock.now_ms(), lambda _folder: nullcontext())


def test_bodies_from_the_threshold_on_are_in_segments(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for number, size in enumerate((LARGE - 1, LARGE, LARGE + 1)):
            world.publish("q", envelope=body(number, size))
        await world.engine.commits.commit()

    world = run(tmp_path / "s", steps, SETTINGS)
    stored = PlainStore(world.root).of[RecordKind.PAYLOAD]
    assert [isinstance(record, PayloadURI) for _id, record in sorted(stored.items())] == [False, True, True]
    assert [use.messages for use in PlainStore(world.root).of[RecordKind.SEGMENT].values()] == [2]
    assert_verified(world.root)


@pytest.mark.parametrize("step", ["appended", "committed", "stored", "deleted", "delete committed", "delete stored"])
def test_a_crash_at_any_step_loses_nothing_and_leaves_nothing(tmp_path: Path, step: str) -> None:
    """The copy of the store is as a kill -9 leaves it: what was written without a commit is there."""
    left = [] if step in ("appended", "delete committed", "delete stored") else [body(1)]

    async def steps(world: World) -> None:
        commits = world.engine.commits
        world.publish("q", envelope=body(1))
        if step != "appended":
            await commits.commit()
        if step not in ("appended", "committed"):
            await commits.checkpoint()
        if step.startswith("delete"):
            assert await delete_next(world) == body(1)
        if step == "delete committed":
            await commits.commit()
        if step == "delete stored":
            await commits.checkpoint()
        assert names(world) == ["0.segment"]
        await world.crash()
        await collect(world)
        assert len(names(world)) == len(left)
        assert len(world.queue("q").messages.available) == len(left)
        for expected in left:
            assert await delete_next(world) == expected
        await collect(world)
        assert names(world) == []

    assert_verified(run(tmp_path / "s", steps, SETTINGS).root)


def test_a_body_that_shrinks_is_compressed(tmp_path: Path) -> None:
    text = b"".join(b'{"id": %d, "name": "x"}' % number for number in range(20_000))

    async def steps(world: World) -> None:
        world.publish("q", envelope=text)
        world.publish("q", envelope=body(1, 50_000))
        await world.engine.commits.checkpoint()
        await world.crash()
        sizes = sorted(file.stat().st_size for file in files(world))
        assert 50_000 < sum(sizes) < len(text) // 2
        assert [await delete_next(world), await delete_next(world)] == [text, body(1, 50_000)]
        world.publish("q", envelope=text)

    world = run(tmp_path / "s", steps, SETTINGS)
    assert_verified(world.root)
    assert PlainStore(world.root).envelope(max(PlainStore(world.root).of[RecordKind.PAYLOAD])) == text


def test_a_segment_is_deleted_with_its_last_message(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for number in range(7):
            world.publish("q", envelope=body(number))
        await collect(world)
        assert names(world) == ["0.segment", "1.segment", "2.segment"]
        for number in range(7):
            assert await delete_next(world) == body(number)
            await collect(world)
            assert names(world) == [f"{part}.segment" for part in range((number + 1) // 3, 3) if number < 6]
        world.publish("q", envelope=body(8))
        assert names(world) == ["3.segment"], "the open one was deleted, too"
        await collect(world)

    assert_verified(run(tmp_path / "s", steps, SETTINGS).root)


def test_a_message_in_two_queues_keeps_its_segment_until_both_have_deleted_it(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.definitions.declare_queue("other", QueueSettings(max_attempts=2))
        world.publish("q", "other", envelope=body(1))
        assert await delete_next(world) == body(1)
        await collect(world)
        assert names(world) == ["0.segment"]
        entry = await world.claim("other")
        assert world.engine.payloads.find(entry.id) == body(1)
        world.engine.operations.delete(world.queue("other"), (entry,))
        await collect(world)
        assert names(world) == []

    assert_verified(run(tmp_path / "s", steps, SETTINGS).root)


def test_a_message_that_was_never_stored_is_counted_and_collected(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.publish("q", envelope=body(1))
        await delete_next(world)
        await collect(world)
        assert names(world) == []

    assert_verified(run(tmp_path / "s", steps, SETTINGS).root)


def test_the_open_segment_is_no_orphan(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        assert world.engine.commits.segments is not None
        world.engine.commits.segments.append(body(1))  # of a publish that was refused afterwards
        await collect(world)
        assert names(world) == ["0.segment"]
        world.publish("q", envelope=body(2))
        await world.engine.commits.commit()
        await world.crash()
        await collect(world)
        assert await delete_next(world) == body(2)

    assert_verified(run(tmp_path / "s", steps, SETTINGS).root)


@pytest.mark.parametrize("damage", ["flipped", "cut off", "missing"])
def test_damage_fails_only_the_messages_in_it(tmp_path: Path, damage: str) -> None:
    async def publish(world: World) -> None:
        for number in range(6):
            world.publish("q", envelope=body(number))
        world.publish("q", envelope=b"small")

    world = run(tmp_path / "s", publish, SETTINGS)
    assert [file.stat().st_size for file in files(world)] == [3 * LARGE, 3 * LARGE]
    numbers = {int(file.name.partition("-")[2][0]): file for file in files(world)}
    if damage == "missing":
        numbers[0].unlink()
    elif damage == "cut off":
        os.truncate(numbers[0], 2 * LARGE + 1)
    else:
        data = bytearray(numbers[0].read_bytes())
        data[2 * LARGE + 7] ^= 1
        numbers[0].write_bytes(data)
    lost = [0, 1, 2] if damage == "missing" else [2]
    report = verify(world.root)
    ids = {found.message_id for found in report.findings}
    assert len(ids) == len(lost)
    assert {found.code for found in report.findings} == {"batch-damaged" if damage == "flipped" else "batch-missing"}

    async def read(world: World) -> None:
        found = [await delete_next(world) for _ in range(7 - len(lost))]
        assert found == [*(body(number) for number in range(6) if number not in lost), b"small"]
        assert await world.next("q") is None

    store = PlainStore(run(tmp_path / "s", read, SETTINGS).root)
    assert {row[0] for row in store.rows(RecordKind.FAILED, "q")} == ids


def test_a_message_that_is_deleted_while_it_is_read_is_no_damage(tmp_path: Path) -> None:
    class SlowReader(PayloadReader):
        async def read(self, places: Mapping[int, Place]) -> dict[int, bytes | CorruptRecord]:
            await delete_next(self.world)
            await collect(self.world)
            return await super().read(places)

        world: World

    async def steps(world: World) -> None:
        id = world.publish("q", envelope=body(1))
        await world.engine.commits.checkpoint()
        reader = SlowReader(world.engine.store, StagedFolder(f"file://{world.root}", "default"))
        reader.world = world
        assert await Payloads(world.engine.store, reader, 0).read(id) is None

    assert_verified(run(tmp_path / "s", steps, SETTINGS).root)


def test_a_failed_sync_ends_the_engine_before_the_journal_has_the_places(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        disk = Disk()
        commits = world.engine.commits
        commits.segments = opened(world.root, disk)
        world.publish("q", envelope=body(1))
        disk.sync_error = errno.EIO
        with pytest.raises(StoreUnwritable):
            await commits.commit()
        assert isinstance(commits.failure, StoreUnwritable)
        await world.crash()
        assert not world.queue("q").messages.available

    run(tmp_path / "s", steps, SETTINGS)


def test_a_refused_message_takes_no_space(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        with pytest.raises(InvalidMessage):
            world.publish("q", envelope=body(1), headers={f"h{number}": "x" * 60_000 for number in range(3000)})
        assert files(world) == []

    run(tmp_path / "s", steps, SETTINGS)


BUCKET_SETTINGS = sized(bucket_large_body_bytes=LARGE)


async def open_in_bucket(name: str) -> Engine:
    engine = await Engine.open(f"s3://{BUCKET}/{name}", "default", SystemClock(), BUCKET_SETTINGS)
    if "q" not in engine.state.queues:
        engine.definitions.declare_queue("q", QueueSettings(max_attempts=2))
        await engine.commits.commit()
    return engine


def test_publishes_during_an_upload_are_in_the_next_checkpoint(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a crash in between loses them wholly: their publishers repeat them."""
    uploading, may_upload = threading.Event(), threading.Event()
    upload = BucketSegments._upload

    def slow(self: BucketSegments, path: str, parts: list[bytes]) -> None:
        uploading.set()
        assert may_upload.wait(60)
        upload(self, path, parts)

    monkeypatch.setattr(BucketSegments, "_upload", slow)

    async def main() -> None:
        world = World(tmp_path, BUCKET_SETTINGS)
        world.engine = await open_in_bucket("upload")
        first = world.publish("q", envelope=body(1))
        checkpoint = asyncio.create_task(world.engine.commits.checkpoint())
        assert await asyncio.to_thread(uploading.wait, 60)
        later = [world.publish("q", envelope=b"small"), world.publish("q", envelope=body(2))]
        may_upload.set()
        await checkpoint
        await world.engine.store.close()
        world.engine = await open_in_bucket("upload")
        assert list(world.queue("q").messages.available) == [first]
        assert await world.engine.payloads.read(first) == body(1)
        published = [world.engine.operations.published(SESSION, number) is not None for number in (1, 2, 3)]
        assert published == [True, False, False]
        assert [await world.engine.payloads.read(id) for id in later] == [None, None]
        await world.engine.close()

    asyncio.run(main())


def test_a_replaced_broker_deletes_no_object_of_its_successor(s3: S3, tmp_path: Path) -> None:
    async def main() -> None:
        replaced = await open_in_bucket("successor")
        world = World(tmp_path, BUCKET_SETTINGS)
        world.engine = await open_in_bucket("successor")
        id = world.publish("q", envelope=body(1))
        await world.engine.commits.checkpoint()
        await replaced.staging.remove_orphans(SystemClock().now_ms(), lambda _job: nullcontext())
        world.engine.payloads.shrink()
        assert await world.engine.payloads.read(id) == body(1)
        await world.engine.close()
        with pytest.raises(StoreError):
            await replaced.close()

    asyncio.run(main())
