"""Sync points, and what is left of a real database after a power loss."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from kombu_opendata import errors
from kombu_opendata.storage.commit import power_loss
from kombu_opendata.storage.commit.power_loss import Healing, SyncPoint, heal_after_power_loss, mark_clean, sync_tree
from kombu_opendata.storage.slatedb.store_writer import SlateStore

BEFORE, AFTER = "boot-1", "boot-2"


async def commit(store: SlateStore, *keys: bytes) -> None:
    for key in keys:
        batch = store.batch()
        batch.put(key, key * 100)
        await store.write(batch)
        await store.flush_wal()


def files(folder: Path) -> set[Path]:
    return {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()}


def lose_power(db: Path, synced: set[Path], target: Path) -> None:
    """A copy of `db` in which everything but `synced` is empty."""
    shutil.copytree(db, target)
    shutil.copy(power_loss.sync_file(db), power_loss.sync_file(target))
    for name in files(target) - synced:
        (target / name).write_bytes(b"")


async def keys_in(root: Path) -> list[bytes]:
    store = await SlateStore.open(f"file://{root}", "db")
    pairs = await store.scan(b"", None)
    assert all(value == key * 100 for key, value in pairs)
    await commit(store, b"z-new")
    assert await store.get(b"z-new") == b"z-new" * 100
    await store.close()
    return [key for key, _ in pairs]


@pytest.mark.parametrize("collect", [False, True])
@pytest.mark.parametrize("flush_after", [False, True])
def test_synced_data_survives_a_power_loss(tmp_path: Path, collect: bool, flush_after: bool) -> None:
    db = tmp_path / "live" / "db"

    async def main() -> list[bytes]:
        store = await SlateStore.open(f"file://{db.parent}", "db")
        point = sync_tree(db, None, boot_id=BEFORE)
        await commit(store, b"a", b"b")
        await store.flush_memtable()
        point = sync_tree(db, point, boot_id=BEFORE)
        if collect:
            await store.collect_garbage(wal_min_age_seconds=0, manifest_min_age_seconds=0)
            point = sync_tree(db, point, boot_id=BEFORE)
        await commit(store, b"c")
        sync_tree(db, point, boot_id=BEFORE)
        synced = files(db)
        await commit(store, b"d", b"e")
        if flush_after:
            await store.flush_memtable()
            await commit(store, b"f")
        lose_power(db, synced, tmp_path / "lost" / "db")
        await store.close()
        moved = heal_after_power_loss(tmp_path / "lost" / "db", boot_id=AFTER).moved
        assert sum(name.startswith("wal/") for name in moved) >= 2
        assert any(name.startswith("manifest/") for name in moved) == flush_after
        assert {p.as_posix() for p in files(tmp_path / "lost" / "db.lost")} == set(moved)
        return await keys_in(tmp_path / "lost")

    assert asyncio.run(main()) == [b"a", b"b", b"c"]


def test_without_healing_the_torn_files_do_harm(tmp_path: Path) -> None:
    """The test above proves something only if this one holds."""
    db = tmp_path / "live" / "db"

    async def main() -> None:
        store = await SlateStore.open(f"file://{db.parent}", "db")
        await commit(store, b"a")
        sync_tree(db, None, boot_id=BEFORE)
        synced = files(db)
        await commit(store, b"b")
        await store.flush_memtable()
        lose_power(db, synced, tmp_path / "lost" / "db")
        await store.close()
        with pytest.raises(errors.StoreError):
            assert await keys_in(tmp_path / "lost") == [b"a"]

    asyncio.run(main())


def make_tree(tmp_path: Path, **numbers: int) -> Path:
    db = tmp_path / "db"
    for folder, count in numbers.items():
        (db / folder).mkdir(parents=True, exist_ok=True)
        suffix = {"wal": "sst", "compacted": "sst"}.get(folder, folder)
        for i in range(1, count + 1):
            (db / folder / f"{i:020d}.{suffix}").write_text("x")
    return db


def test_the_same_boot_touches_nothing(tmp_path: Path) -> None:
    db = make_tree(tmp_path, wal=2, manifest=1)
    sync_tree(db, None, boot_id=BEFORE)
    make_tree(tmp_path, wal=5, manifest=3)
    assert list(heal_after_power_loss(db, boot_id=BEFORE).moved) == []
    assert len(files(db)) == 8


def test_a_clean_close_touches_nothing(tmp_path: Path) -> None:
    db = make_tree(tmp_path, wal=2, manifest=1)
    mark_clean(db, boot_id=BEFORE)
    make_tree(tmp_path, wal=3)
    assert list(heal_after_power_loss(db, boot_id=AFTER).moved) == []
    # From here on it is open again: what comes next is at risk.
    make_tree(tmp_path, wal=4)
    assert list(heal_after_power_loss(db, boot_id="boot-3").moved) == ["wal/00000000000000000004.sst"]
    assert (tmp_path / "db.lost" / "wal").stat().st_mode & 0o777 == 0o700, "other users can't read the messages"
    assert list(heal_after_power_loss(db, boot_id="boot-4").moved) == []


def test_a_clean_close_before_the_first_manifest(tmp_path: Path) -> None:
    db = make_tree(tmp_path, wal=2)
    mark_clean(db, boot_id=BEFORE)
    assert not heal_after_power_loss(db, boot_id=AFTER).power_lost
    mark_clean(db, boot_id=BEFORE)
    make_tree(tmp_path, manifest=1)
    assert heal_after_power_loss(db, boot_id=AFTER).moved == (f"manifest/{1:020d}.manifest",)


def test_a_reader_that_ends_its_checkpoint_after_a_clean_close(tmp_path: Path) -> None:
    db, lost = tmp_path / "live" / "db", tmp_path / "lost" / "db"

    async def main() -> set[Path]:
        store = await SlateStore.open(f"file://{db.parent}", "db")
        await commit(store, b"a")
        held, _manifest = await store.admin.create_checkpoint("reader", 60)
        await store.close()
        mark_clean(db, boot_id=BEFORE)
        synced = files(db)
        await store.admin.delete_checkpoint(held)
        return synced

    lose_power(db, asyncio.run(main()), lost)
    assert [name.partition("/")[0] for name in heal_after_power_loss(lost, boot_id=AFTER).moved] == ["manifest"]
    assert asyncio.run(keys_in(lost.parent)) == [b"a"]


def test_a_folder_without_a_point_or_a_forgotten_one(tmp_path: Path) -> None:
    assert list(heal_after_power_loss(tmp_path / "db", boot_id=BEFORE).moved) == []
    db = make_tree(tmp_path, wal=2)
    sync_tree(db, None, boot_id=BEFORE)
    make_tree(tmp_path, wal=4)
    power_loss.forget(db)
    power_loss.forget(db)
    assert power_loss.read_sync_point(db) is None
    assert heal_after_power_loss(db, boot_id=AFTER) == Healing()
    point = power_loss.read_sync_point(db)
    assert point is not None
    assert point.boot_id == AFTER


def test_a_folder_that_the_point_does_not_have(tmp_path: Path) -> None:
    db = make_tree(tmp_path, manifest=1)
    sync_tree(db, None, boot_id=BEFORE)
    make_tree(tmp_path, wal=1)
    assert heal_after_power_loss(db, boot_id=AFTER).moved == (f"wal/{1:020d}.sst",)


def test_the_recorded_manifest_is_gone(tmp_path: Path) -> None:
    db = make_tree(tmp_path, wal=2, manifest=2)
    sync_tree(db, None, boot_id=BEFORE)
    make_tree(tmp_path, wal=3, manifest=3)
    (db / "manifest" / f"{2:020d}.manifest").unlink()
    assert list(heal_after_power_loss(db, boot_id=AFTER).moved) == ["wal/00000000000000000003.sst"]


def test_the_point_names_what_is_there_and_only_new_files_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    db = make_tree(tmp_path, wal=2, manifest=1, compacted=1)
    (db / "wal" / f"{3:020d}.sst#1").write_text("being written")
    point = sync_tree(db, None, boot_id=BEFORE)
    assert "db" in synced
    assert point.highest == {"wal": f"{2:020d}.sst", "manifest": f"{1:020d}.manifest"}
    assert point.tables == {f"{1:020d}.sst"}
    assert power_loss.read_sync_point(db) == point
    make_tree(tmp_path, wal=4, compacted=2)
    synced.clear()
    later = sync_tree(db, point, boot_id=BEFORE)
    assert sorted(synced) == sorted(
        [f"{3:020d}.sst", f"{4:020d}.sst", "wal", f"{2:020d}.sst", "compacted", "db.sync.tmp", tmp_path.name]
    )
    synced.clear()
    assert sync_tree(db, later, boot_id=BEFORE) == later
    assert synced == []


def test_the_folders_of_files_that_are_moved_out_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = make_tree(tmp_path, wal=2, manifest=1)
    sync_tree(db, None, boot_id=BEFORE)
    make_tree(tmp_path, wal=3)
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
    assert heal_after_power_loss(db, boot_id=AFTER).moved == (f"wal/{3:020d}.sst",)
    lost = tmp_path / "db.lost"
    assert {lost / "wal" / f"{3:020d}.sst", lost / "wal", lost, tmp_path} <= set(synced[: synced.index(db / "wal") + 1])


def test_any_flipped_byte_of_a_point_is_found(tmp_path: Path) -> None:
    db = make_tree(tmp_path, wal=2, manifest=1, compacted=1)
    mark_clean(db, boot_id=BEFORE)
    file = power_loss.sync_file(db)
    whole = file.read_bytes()
    assert list(json.loads(whole))[-1] == "checksum"
    assert file.stat().st_mode & 0o777 == 0o600
    for at in range(len(whole)):
        for bit in range(8):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            with pytest.raises(errors.StoreError, match=r"db\.sync is damaged"):
                power_loss.read_sync_point(db)
    file.write_bytes(whole)
    assert power_loss.read_sync_point(db) == SyncPoint(
        BEFORE, {"wal": f"{2:020d}.sst", "manifest": f"{1:020d}.manifest"}, frozenset({f"{1:020d}.sst"}), clean=True
    )


def test_a_point_of_an_earlier_version_has_no_checksum(tmp_path: Path) -> None:
    db = make_tree(tmp_path, wal=1)
    fields = {"boot_id": BEFORE, "highest": {"wal": f"{1:020d}.sst"}, "tables": [], "clean": True}
    power_loss.sync_file(db).write_text(json.dumps(fields))
    assert power_loss.read_sync_point(db) == SyncPoint(BEFORE, {"wal": f"{1:020d}.sst"}, frozenset(), clean=True)


def test_a_power_loss_is_remembered_until_a_broker_has_synced_again(tmp_path: Path) -> None:
    """A crash of the broker that follows it may be before the journal was continued."""
    db = make_tree(tmp_path, wal=2, manifest=1)
    sync_tree(db, None, boot_id=BEFORE)
    assert not heal_after_power_loss(db, boot_id=BEFORE).power_lost
    assert heal_after_power_loss(db, boot_id=AFTER).power_lost
    assert heal_after_power_loss(db, boot_id=AFTER).power_lost
    sync_tree(db, None, boot_id=AFTER)
    assert not heal_after_power_loss(db, boot_id=AFTER).power_lost
    mark_clean(db, boot_id=AFTER)
    assert not heal_after_power_loss(db, boot_id="boot-3").power_lost


def test_a_damaged_point_is_said(tmp_path: Path) -> None:
    db = make_tree(tmp_path, wal=1)
    power_loss.sync_file(db).write_text(json.dumps({"boot_id": 1}))
    with pytest.raises(errors.StoreError, match=r"db\.sync") as refusal:
        heal_after_power_loss(db, boot_id=AFTER)
    assert refusal.value.path == str(power_loss.sync_file(db))


def test_a_failing_disk_is_a_store_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = make_tree(tmp_path, wal=1)

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(errors.StoreError, match="Input/output error"):
        sync_tree(db, None, boot_id=BEFORE)
    assert power_loss.read_sync_point(db) is None


def test_the_boot_id_comes_from_the_kernel(tmp_path: Path) -> None:
    assert len(power_loss.current_boot_id()) == 36
    with pytest.raises(errors.StartError):
        power_loss.current_boot_id(tmp_path / "none")
    assert SyncPoint("x").clean is False
