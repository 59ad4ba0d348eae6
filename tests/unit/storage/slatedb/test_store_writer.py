"""The SlateDB wrapper, on real folders and in memory."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import errors
from kombu_opendata.storage.slatedb import ffi, object_store, store_writer
from kombu_opendata.storage.slatedb.slate_settings import SlateSettings
from kombu_opendata.storage.slatedb.store_reads import ReadOnlyStore
from kombu_opendata.storage.slatedb.store_writer import SlateStore

from ....support.unprivileged import unprivileged

VALUES = {b"empty": b"", b"one": b"\0", b"large": os.urandom(70_000)}


def url_of(folder: Path) -> str:
    return f"file://{folder}"


async def put(store: SlateStore, **pairs: bytes) -> None:
    batch = store.batch()
    for key, value in pairs.items():
        batch.put(key.encode(), value)
    await store.write(batch)


async def put_and_flush(store: SlateStore, **pairs: bytes) -> None:
    await put(store, **pairs)
    await store.flush_wal()


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_what_was_flushed_is_there_after_reopening(tmp_path: Path, kind: str) -> None:
    url = url_of(tmp_path / "not yet" / "there #1") if kind == "file" else f"memory://{uuid.uuid4()}"

    async def main() -> None:
        store = await SlateStore.open(url, "default")
        assert store.binding.fast_path
        batch = store.batch()
        for key, value in VALUES.items():
            batch.put(key, value)
        before = store.durable_seq
        await store.write(batch)
        assert await store.get(b"large") == VALUES[b"large"]  # durable or not
        await store.flush_wal()
        assert store.durable_seq > before
        await store.close()
        await store.close()
        again = await SlateStore.open(url, "default")
        assert {key: await again.get(key) for key in VALUES} == VALUES
        assert await again.get(b"absent") is None
        await again.close()

    asyncio.run(main())
    if kind == "file":
        assert (tmp_path / "not yet" / "there #1" / "default").stat().st_mode & 0o777 == 0o700


def test_an_empty_batch_is_no_write() -> None:
    async def main() -> None:
        store = await SlateStore.open(f"memory://{uuid.uuid4()}", "db")
        await store.write(store.batch())
        await store.close()

    asyncio.run(main())


def test_scans() -> None:
    async def main() -> None:
        store = await SlateStore.open(f"memory://{uuid.uuid4()}", "db", settings=SlateSettings(block_cache_bytes=0))
        rows = [(b"%05d" % i, b"v%d" % i) for i in range(2500)]
        batch = store.batch()
        for key, value in rows:
            batch.put(key, value)
        await store.write(batch)
        assert await store.scan(b"", None) == rows
        assert await store.scan(b"00010", b"00020") == rows[10:20]
        assert await store.scan(b"", None, limit=1200) == rows[:1200]
        assert await store.scan(b"", None, limit=2, descending=True) == rows[:-3:-1]
        assert await store.scan(b"", None, limit=0) == []
        assert await store.scan(b"5", b"4") == []
        await store.flush_memtable()
        lists = [pairs async for pairs in store.scan_batches(b"", None, batch=500)]
        assert [len(pairs) for pairs in lists] == [500] * 5
        assert [pair for pairs in lists for pair in pairs] == rows
        await store.close()

    asyncio.run(main())


def test_a_second_writer_fences_the_first(tmp_path: Path) -> None:
    async def main() -> None:
        first = await SlateStore.open(url_of(tmp_path), "db")
        second = await SlateStore.open(url_of(tmp_path), "db")
        with pytest.raises(errors.StoreFenced):
            await put_and_flush(first, a=b"1")
        await first.close()
        await put_and_flush(second, a=b"2")
        assert await second.get(b"a") == b"2"
        await second.close()
        with pytest.raises(errors.StoreError, match="closed") as caught:
            await second.get(b"a")
        assert not isinstance(caught.value, errors.StoreFenced)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_store_that_is_opened_again_goes_on(tmp_path: Path, kind: str) -> None:
    url = url_of(tmp_path) if kind == "file" else f"memory://{uuid.uuid4()}"

    async def main() -> None:
        store = await SlateStore.open(url, "db", settings=SlateSettings(metrics=True))
        await put_and_flush(store, a=b"1")
        reopening = asyncio.create_task(store.reopen(store.settings.for_idleness()))
        values = []
        while not reopening.done():
            values.append(await store.get(b"a"))
        assert await reopening
        assert set(values) == {b"1"}
        assert store.settings.manifest_poll_ms > 60_000
        await put_and_flush(store, b=b"2")
        assert await store.scan(b"", None) == [(b"a", b"1"), (b"b", b"2")]
        assert store.metrics()
        await store.close()

    asyncio.run(main())


def test_a_store_that_is_read_is_not_opened_again(tmp_path: Path) -> None:
    async def main() -> None:
        store = await SlateStore.open(url_of(tmp_path), "db")
        await put_and_flush(store, a=b"1", b=b"2", c=b"3")
        scan = store.scan_batches(b"", None, batch=1)
        await anext(scan)
        assert not await store.reopen(store.settings.for_idleness())
        assert [pairs async for pairs in scan] == [[(b"b", b"2")], [(b"c", b"3")]]
        assert store.settings == SlateSettings()
        assert await store.get(b"a") == b"1"
        assert await store.reopen(store.settings.for_idleness())
        await store.close()

    asyncio.run(main())


def test_a_writer_that_was_replaced_does_not_open_the_store_again(tmp_path: Path) -> None:
    async def main() -> None:
        first = await SlateStore.open(url_of(tmp_path), "db")
        second = await SlateStore.open(url_of(tmp_path), "db")
        with pytest.raises(errors.StoreFenced):
            await first.reopen(first.settings.for_idleness())
        await put_and_flush(second, a=b"2")
        assert await second.get(b"a") == b"2"
        await second.close()
        await first.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_store_that_another_wrote_while_it_was_closed_is_given_up(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that could not be reached for a while, and a second broker that took over."""
    url = url_of(tmp_path) if kind == "file" else f"memory://{uuid.uuid4()}"
    build = object_store.build

    async def main() -> None:
        async def late(*arguments: Any) -> Any:
            monkeypatch.setattr(store_writer, "build", build)
            second = await SlateStore.open(url, "db")
            await put_and_flush(second, a=b"2")
            await second.close()
            return await build(*arguments)

        first = await SlateStore.open(url, "db")
        await put_and_flush(first, a=b"1")
        monkeypatch.setattr(store_writer, "build", late)
        with pytest.raises(errors.StoreFenced):
            await first.reopen(first.settings.for_idleness())
        with pytest.raises(errors.StoreError):
            await put_and_flush(first, a=b"1 again")
        await first.close()
        third = await SlateStore.open(url, "db")
        assert await third.get(b"a") == b"2"
        await third.close()

    asyncio.run(main())


def test_a_compaction_of_everything_holds_up_no_flush(tmp_path: Path) -> None:
    """And its end is seen, also when another compaction ends at the same time."""
    settings = SlateSettings(
        l0_sst_size_bytes=2 << 20, l0_max_ssts=4, compactor_fetch_bytes=4096,
        compactor_poll_ms=50, commit_compaction_ms=50, manifest_poll_ms=50,
    )  # fmt: skip

    async def main() -> None:
        store = await SlateStore.open(url_of(tmp_path), "db", settings=settings)
        for number in range(100):
            await put_and_flush(store, **{f"{number}-{i}": os.urandom(500) for i in range(1000)})
        flushes = 0
        async with asyncio.timeout(300):
            while flushes <= 2 * settings.l0_max_ssts:  # a compaction may be too short for as many
                compaction, flushes, ended = "", 0, None
                while not compaction:
                    manifest = await store.admin.manifest_at_rest()
                    if manifest is not None and len(manifest.unsorted) == 1:
                        await store.flush_memtable()
                    compaction = await store.admin.compact_all(0.05)
                while ended is None:
                    await store.flush_memtable()
                    flushes += 1
                    ended = await store.admin.is_compacted(compaction)
                assert ended
        await store.close()

    asyncio.run(main())


def test_wal_files_go_after_a_memtable_flush(tmp_path: Path) -> None:
    async def main() -> None:
        store = await SlateStore.open(url_of(tmp_path), "db")
        assert store.location.folder == tmp_path / "db"
        for i in range(20):
            await put_and_flush(store, **{f"k{i}": b"v"})
        wal = tmp_path / "db" / "wal"
        assert len(list(wal.iterdir())) >= 20
        await store.collect_garbage(wal_min_age_seconds=0)
        assert len(list(wal.iterdir())) >= 20
        await store.flush_memtable()
        await store.collect_garbage(wal_min_age_seconds=0)
        assert len(list(wal.iterdir())) <= 3
        await store.close()
        again = await SlateStore.open(url_of(tmp_path), "db")
        assert len(await again.scan(b"", None)) == 20
        await again.close()

    asyncio.run(main())


def test_replaced_manifests_are_collected_each_time(tmp_path: Path) -> None:
    async def main() -> None:
        store = await SlateStore.open(url_of(tmp_path), "db")
        for _ in range(3):
            for number in range(5):
                await put_and_flush(store, **{f"k{number}": b"v"})
                await store.flush_memtable()
            newest = max((tmp_path / "db" / "manifest").iterdir())
            await store.collect_garbage(manifest_min_age_seconds=0)
            kept = {checkpoint.manifest_id for checkpoint in await store.admin.checkpoints()}
            older = {int(path.stem) for path in (tmp_path / "db" / "manifest").iterdir() if path < newest}
            assert older <= kept
        await store.close()

    asyncio.run(main())


def test_a_reader_beside_the_writer(tmp_path: Path) -> None:
    async def main() -> None:
        writer = await SlateStore.open(url_of(tmp_path), "db")
        await put_and_flush(writer, a=b"1", b=b"2")
        before = files(tmp_path)
        reader = await ReadOnlyStore.open(url_of(tmp_path), "db")
        assert await reader.get(b"a") == b"1"
        assert await reader.scan(b"", None) == [(b"a", b"1"), (b"b", b"2")]
        assert [p async for p in reader.scan_batches(b"b", None)] == [[(b"b", b"2")]]
        await reader.close()
        assert files(tmp_path) == before
        await writer.close()

    asyncio.run(main())


def test_a_frozen_reader_shows_one_state_or_says_so(tmp_path: Path) -> None:
    """SlateDB's reader looks at the manifest again right after it is opened."""

    async def write(writer: SlateStore, enough: asyncio.Event) -> None:
        number = 0
        while not enough.is_set():
            number += 1
            await put_and_flush(writer, first=b"%d" % number, second=b"%d" % number)

    async def look(reader: ReadOnlyStore) -> set[bytes | None]:
        seen = set()
        for _ in range(20):
            seen |= {await reader.get(b"first"), dict(await reader.scan(b"", None))[b"second"]}
        return seen

    async def main() -> None:
        writer = await SlateStore.open(url_of(tmp_path), "db")
        await put_and_flush(writer, first=b"0", second=b"0")
        enough = asyncio.Event()
        writing = asyncio.create_task(write(writer, enough))
        shown = []
        for _ in range(30):
            reader = await ReadOnlyStore.open(url_of(tmp_path), "db", frozen=True)
            try:
                shown.append(await look(reader))
            except errors.StoreChanged:
                continue
            finally:
                await reader.close()
        enough.set()
        await writing
        await writer.close()
        assert shown
        assert [seen for seen in shown if len(seen) != 1] == []
        assert len(set(map(frozenset, shown))) > 1

    asyncio.run(main())


def test_a_reader_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(errors.StoreError, match="no store"):
        asyncio.run(ReadOnlyStore.open(url_of(tmp_path), "db"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(errors.StoreError):
        asyncio.run(ReadOnlyStore.open(f"memory://{uuid.uuid4()}", "db"))


def test_a_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.StoreUnwritable, match=r"Not a directory|File exists") as caught:
        asyncio.run(SlateStore.open(url_of(tmp_path / "file"), "db"))
    assert caught.value.values["url"] == url_of(tmp_path / "file")


def test_a_folder_that_cannot_be_made() -> None:
    with pytest.raises(errors.StoreUnwritable, match="can't be written"):
        asyncio.run(SlateStore.open("file:///proc/nowhere", "db"))


def test_a_folder_without_the_right_to_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with unprivileged(), pytest.raises(errors.StoreUnwritable, match="Permission denied"):
        asyncio.run(SlateStore.open(url_of(tmp_path), "db"))


@pytest.mark.parametrize("path", ["", "..", "a/../b", ".hidden", "a b", "a#b", "/a", "a/"])
def test_names_that_the_store_would_mangle_are_refused(path: str) -> None:
    with pytest.raises(errors.InvalidURL):
        asyncio.run(SlateStore.open("memory://x", path))


@pytest.mark.parametrize("url", ["file://host/a", "file:///", "file:a", "http://x", "s3:///a", "/tmp"])
def test_urls_that_name_no_store(url: str) -> None:
    with pytest.raises(errors.InvalidURL):
        asyncio.run(SlateStore.open(url, "db"))


def test_a_dead_endpoint_meets_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {
        "AWS_ENDPOINT": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "r",
        "AWS_ALLOW_HTTP": "true",
    }
    for name, value in options.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(errors.StoreError, match="s3://bucket/prefix"):
        asyncio.run(SlateStore.open("s3://bucket/prefix", "db", deadline_seconds=0.5))


def test_damage_is_a_corrupt_record(tmp_path: Path) -> None:
    async def main() -> None:
        store = await SlateStore.open(url_of(tmp_path), "db")
        await put(store, a=os.urandom(100_000))
        await store.flush_memtable()
        await store.close()
        for table in (tmp_path / "db" / "compacted").iterdir():
            content = bytearray(table.read_bytes())
            content[50_000] ^= 0xFF
            table.write_bytes(content)
        again = await SlateStore.open(url_of(tmp_path), "db")
        with pytest.raises(errors.CorruptRecord) as caught:
            await again.get(b"a")
        assert caught.value.values["key"] == b""
        await again.close()

    asyncio.run(main())


@pytest.mark.parametrize("opener", [SlateStore, ReadOnlyStore])
def test_a_manifest_that_does_not_decode_is_damage(tmp_path: Path, opener: type[SlateStore | ReadOnlyStore]) -> None:
    async def main() -> None:
        await (await SlateStore.open(url_of(tmp_path), "db")).close()
        newest = max((tmp_path / "db" / "manifest").iterdir())
        content = newest.read_bytes()
        newest.write_bytes(content[: len(content) // 2])
        with pytest.raises(errors.CorruptRecord, match=str(tmp_path)):
            await opener.open(url_of(tmp_path), "db")

    asyncio.run(main())


def test_a_panic_at_opening_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    u = ffi.public()

    async def build(_builder: object) -> None:
        raise u.InternalError("Invalid encoding of sequence tracker")

    async def main() -> None:
        await (await SlateStore.open(url_of(tmp_path), "db")).close()
        monkeypatch.setattr(u.DbReaderBuilder, "build", build)
        with pytest.raises(errors.CorruptRecord, match="Invalid encoding of sequence tracker"):
            await ReadOnlyStore.open(url_of(tmp_path), "db")

    asyncio.run(main())


def test_slatedb_collects_nothing_by_itself() -> None:
    assert '"garbage_collector_options":null' in SlateSettings().as_binding().to_json_string()


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(KeyError), object_store.translated("memory://x"):
        raise KeyError("mine")


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="needs a system that lists its threads")
def test_its_threads_yield_to_ours(tmp_path: Path) -> None:
    def nice_of_threads() -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for thread in Path("/proc/self/task").iterdir():
            name = (thread / "comm").read_text().strip()
            found.setdefault(name, set()).add(os.getpriority(os.PRIO_PROCESS, int(thread.name)))
        return found

    async def main() -> None:
        before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        store = await SlateStore.open(url_of(tmp_path), "default")
        found = nice_of_threads()
        assert [nice for name, nice in found.items() if name.startswith("slatedb-")] == [{3}]
        assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
        await store.close()

    asyncio.run(main())
