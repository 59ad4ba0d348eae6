"""The commit journal, byte by byte."""

from __future__ import annotations

import errno
import os
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.errors import CorruptRecord, NewerFormat, StoreFull, StoreUnwritable
from kombu_opendata.storage.commit.file_calls import FileCalls
from kombu_opendata.storage.commit.journal import Journal
from kombu_opendata.storage.commit.journal_format import RECORD as RECORD_HEADER
from kombu_opendata.storage.commit.journal_format import checksum

from ....support.disks import failing
from ....support.unprivileged import unprivileged

pytestmark = pytest.mark.contract(9, 15)

SEGMENT = 4096
HEADER = 24
RECORD = 16


def opened(folder: Path, after: int = 0, **settings: Any) -> tuple[Journal, list[tuple[int, bytes]]]:
    """A journal that was replayed and can be appended to, and what was in it."""
    journal = Journal(folder, **{"segment_bytes": SEGMENT, **settings})
    found = list(journal.replay(after))
    journal.start()
    return journal, found


def replayed(folder: Path, after: int = 0) -> list[bytes]:
    journal = Journal(folder, segment_bytes=SEGMENT)
    try:
        return [payload for _sequence, payload in journal.replay(after)]
    finally:
        journal.close()


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.journal"))


def fill(journal: Journal) -> None:
    """Append until it is refused."""
    while True:
        journal.append(bytes(1000))


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.parametrize("sync", [True, False])
def test_what_was_appended_is_replayed_in_order(tmp_path: Path, sync: bool) -> None:
    journal, found = opened(tmp_path / "new" / "j", sync=sync)
    assert found == []
    payloads = [b"", b"one", bytes(1000), b"\xff" * 300]
    assert [journal.append(payload) for payload in payloads] == [1, 2, 3, 4]
    journal.sync()
    journal.close()
    again, found = opened(tmp_path / "new" / "j")
    assert found == list(enumerate(payloads, 1))
    assert again.append(b"next") == 5
    again.close()
    assert replayed(tmp_path / "new" / "j", after=3) == [payloads[3], b"next"]


def test_an_abandoned_journal_is_replayed(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    journal.append(b"answered")
    assert replayed(tmp_path) == [b"answered"]
    journal.close()


def test_many_segments_are_replayed_and_released(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    payloads = [b"%04d" % number * 100 for number in range(50)]
    for payload in payloads:
        journal.append(payload)
    assert len(segments(tmp_path)) > 4
    assert replayed(tmp_path) == payloads
    before = journal.waiting_bytes
    journal.release(30)
    assert journal.waiting_bytes < before
    assert replayed(tmp_path, after=30) == payloads[30:]
    journal.release(50)
    assert len(segments(tmp_path)) == 1
    journal.close()


def forged(first: int, last: int) -> bytes:
    """A message with the bytes of complete records."""
    payload = b"forged"
    return b"".join(
        RECORD_HEADER.pack(len(payload), checksum(number, payload), number) + payload for number in range(first, last)
    )


def test_records_in_the_messages_of_released_segments_are_not_replayed(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    for _round in range(9):
        journal.append(forged(1, 150))
        journal.release(journal.sequence)
    upto = journal.sequence
    last = bytes(1000)  # begins another segment
    journal.append(last)
    assert replayed(tmp_path, after=upto) == [last]
    journal.close()


def test_records_in_the_message_of_a_torn_record_are_not_replayed(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    journal.append(b"one")
    journal.append(forged(2, 3) + b"torn")
    overwrite(segments(tmp_path)[0], HEADER + RECORD + len(b"one") + RECORD + len(forged(2, 3)), bytes(4))
    assert replayed(tmp_path) == [b"one"]
    journal.close()


@pytest.mark.parametrize("cut", [1, RECORD - 1, RECORD, RECORD + 1, RECORD + 9])
def test_a_torn_tail_is_the_end(tmp_path: Path, cut: int) -> None:
    """``cut`` bytes of the last record reached the disk."""
    journal, _ = opened(tmp_path)
    journal.append(b"whole")
    end = HEADER + RECORD + len(b"whole")
    journal.append(b"torn record")
    journal.close()
    overwrite(segments(tmp_path)[0], end + cut, bytes(RECORD + 11 - cut))
    again, found = opened(tmp_path)
    assert found == [(1, b"whole")]
    assert again.append(b"after") == 2
    again.close()
    assert replayed(tmp_path) == [b"whole", b"after"]


def test_a_shortened_file_is_the_end(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    journal.append(b"whole")
    journal.append(b"torn record")
    journal.close()
    os.truncate(segments(tmp_path)[0], HEADER + 2 * RECORD + len(b"whole") + 4)
    assert replayed(tmp_path) == [b"whole"]


@pytest.mark.parametrize("at", [0, 4, RECORD])
def test_a_damaged_last_record_is_the_end(tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture) -> None:
    """It can't be told from a record that was torn by a crash, so the log says where it is."""
    journal, _ = opened(tmp_path)
    journal.append(b"whole")
    journal.append(b"damaged")
    journal.close()
    start = HEADER + RECORD + len(b"whole")
    old = segments(tmp_path)[0].read_bytes()[start + at]
    overwrite(segments(tmp_path)[0], start + at, bytes([old ^ 1]))
    assert replayed(tmp_path) == [b"whole"]
    assert f"record 2 at byte {start} of {segments(tmp_path)[0]}" in caplog.text


def test_a_last_record_with_another_number_is_an_error(tmp_path: Path) -> None:
    """Its checksum is right with the number that it should have, so it was complete."""
    journal, _ = opened(tmp_path)
    journal.append(b"damaged")
    journal.close()
    overwrite(segments(tmp_path)[0], HEADER + 8, b"\x05")
    with pytest.raises(CorruptRecord, match=f"record 1 at byte {HEADER} of"):
        replayed(tmp_path)
    assert replayed(tmp_path, after=1) == []


@pytest.mark.parametrize("damaged", [range(8, 9), range(8, 12), range(3, 19), range(16, 17), range(16, 19)])
def test_damaged_records_before_others_are_an_error(tmp_path: Path, damaged: range) -> None:
    """A bit, a sector, or two segments: the error has the first record that is lost, its file and its place."""
    journal, _ = opened(tmp_path)
    places = []
    for number in range(1, 21):
        journal.append(bytes([number]) * 500)
        places.append((segments(tmp_path)[-1], HEADER + (number - 1) % 7 * (RECORD + 500)))
    journal.close()
    for number in damaged:
        path, start = places[number - 1]
        overwrite(path, start + RECORD + 7, b"\0")
    path, start = places[damaged[0] - 1]
    with pytest.raises(CorruptRecord, match=f"record {damaged[0]} at byte {start} of {path}") as caught:
        replayed(tmp_path)
    assert (caught.value.key, caught.value.offset) == (path.name.encode(), start)
    assert "store repair --delete-damaged" in caught.value.text
    assert len(replayed(tmp_path, after=damaged[-1])) == 20 - damaged[-1]  # the store has what is damaged


def test_every_flipped_byte_is_refused_or_harmless(tmp_path: Path) -> None:
    """Except in the last record, which is taken for a torn one: the records before it are there."""
    journal, _ = opened(tmp_path)
    payloads = [b"%d" % number * (30 + 40 * number) for number in range(1, 13)] + [b"short", b"shorter", b"shortest"]
    for payload in payloads:
        journal.append(payload)
    journal.close()
    last = len(payloads[-1]) + RECORD
    refused = 0
    for path in segments(tmp_path):
        whole = path.read_bytes()
        used = len(whole.rstrip(b"\0"))
        ends = path == segments(tmp_path)[-1]
        for at in range(used):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
            for after in (0, 5):
                try:
                    found = replayed(tmp_path, after)
                except (CorruptRecord, NewerFormat):
                    refused += 1
                else:
                    is_last = ends and at >= used - last
                    assert found in ([payloads[after:], payloads[after:-1]] if is_last else [payloads[after:]]), at
        path.write_bytes(whole)
    assert refused > used
    assert replayed(tmp_path) == payloads


def test_old_records_of_an_empty_segment_are_not_records_of_the_journal(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    for _ in range(9):
        journal.append(bytes(1000))
    journal.release(9)
    while journal.room > 1000:
        journal.append(bytes(1000))
    last = journal.sequence
    journal.append(bytes(1000))
    os.truncate(segments(tmp_path)[-1], HEADER)  # the new segment was begun, and its first record never written
    assert len(replayed(tmp_path, after=9)) == last - 9
    journal.close()


def power_loss(journal: Journal, path: Path, damaged: int, synced: list[int]) -> list[bytes]:
    """Append ten records, some of them with a sync, and tear one. Return what is replayed after a power loss."""
    begin = {}
    for number in range(1, 11):
        begin[number] = HEADER + (number - 1) * (RECORD + 100)
        journal.append(b"%c%c" % (number, journal.unsynced) + bytes(98), sync=number in synced)
    overwrite(path, begin[damaged] + RECORD + 50, b"torn")
    again = Journal(path.parent, segment_bytes=SEGMENT)
    try:
        return [payload for _sequence, payload in again.replay(0, lambda payload: payload[1])]
    finally:
        again.close()


@pytest.mark.parametrize(("damaged", "synced"), [(5, [4]), (9, []), (5, [4, 10])])
def test_a_power_loss_may_tear_all_records_since_the_last_sync(
    tmp_path: Path, damaged: int, synced: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Also if a sync was under way when the power went: nothing was confirmed after record 4."""
    journal, _ = opened(tmp_path)
    assert len(power_loss(journal, segments(tmp_path)[0], damaged, synced)) == damaged - 1
    assert f"record {damaged} at byte" in caplog.text
    journal.close()


def test_what_was_synced_before_a_power_loss_is_damaged_not_torn(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    with pytest.raises(CorruptRecord, match="record 5 at byte"):
        power_loss(journal, segments(tmp_path)[0], 5, [7])
    journal.close()


def test_what_a_power_loss_tore_is_not_looked_at_again(tmp_path: Path) -> None:
    """The next broker continues in a new segment, and the one after that knows nothing of the power loss."""
    journal, _ = opened(tmp_path)
    assert len(power_loss(journal, segments(tmp_path)[0], 5, [])) == 4
    journal.close()
    again = Journal(tmp_path, segment_bytes=SEGMENT)
    assert len(list(again.replay(0, lambda payload: payload[1]))) == 4
    again.start()
    again.append(b"five")
    again.close()
    assert [payload[:1] for payload in replayed(tmp_path)] == [b"\1", b"\2", b"\3", b"\4", b"f"]


def test_a_missing_segment_is_an_error(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    for _ in range(30):
        journal.append(bytes(500))
    journal.close()
    second = segments(tmp_path)[1]
    second.rename(tmp_path / "elsewhere")
    with pytest.raises(CorruptRecord, match=r"record 8 at byte .* next file begins with record 15") as caught:
        replayed(tmp_path)
    assert caught.value.key == segments(tmp_path)[0].name.encode()
    (tmp_path / "elsewhere").rename(second)
    segments(tmp_path)[0].unlink()
    with pytest.raises(CorruptRecord, match=r"record 1 at byte 24 of .* record 8 follows at byte 24"):
        replayed(tmp_path)
    assert len(replayed(tmp_path, after=10)) == 20  # what is gone was in the store


def test_records_that_the_store_has_may_be_missing(tmp_path: Path) -> None:
    """After a power loss: unsynced settlements are gone here, but the store has them. A crash in recovery follows."""
    journal, _ = opened(tmp_path)
    journal.append(b"one")
    journal.close()
    again, found = opened(tmp_path, after=5)
    assert found == []
    assert again.append(b"six") == 6
    again.close()
    assert replayed(tmp_path, after=5) == [b"six"]


def test_a_segment_without_a_header_was_never_used(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    journal.append(b"one")
    journal.close()
    (tmp_path / "0000000000000009.journal").write_bytes(bytes(SEGMENT))
    (tmp_path / "0000000000000010.journal").write_bytes(b"")
    (tmp_path / "1-1.spare").write_bytes(b"half")
    assert replayed(tmp_path) == [b"one"]
    assert [path.name for path in tmp_path.iterdir()] == ["0000000000000001.journal"]


def test_a_damaged_header_is_an_error(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    journal.append(b"one")
    journal.close()
    whole = segments(tmp_path)[0].read_bytes()
    for at, data in ((0, b"XXXX"), (0, bytes(HEADER)), (4, b"\0"), (6, b"\1"), (8, b"\7")):
        overwrite(segments(tmp_path)[0], at, data)
        with pytest.raises(CorruptRecord, match="header"):
            replayed(tmp_path)
        segments(tmp_path)[0].write_bytes(whole)
    assert replayed(tmp_path) == [b"one"]


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    journal.close()
    overwrite(segments(tmp_path)[0], 4, struct.pack("<H", 2))
    with pytest.raises(NewerFormat, match="format 2"):
        replayed(tmp_path)


def test_a_record_larger_than_a_segment(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    large = os.urandom(3 * SEGMENT)
    payloads = [b"before", large, b"after"]
    for payload in payloads:
        journal.append(payload)
    journal.close()
    assert replayed(tmp_path) == payloads
    again, _ = opened(tmp_path)
    again.release(3)  # a segment of an odd size is not kept as a spare
    assert all(path.stat().st_size == SEGMENT for path in tmp_path.iterdir())
    again.close()


def test_room_is_what_one_record_can_have(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path, max_bytes=SEGMENT)
    assert journal.room == SEGMENT - HEADER - RECORD
    assert not journal.make_room(SEGMENT)
    journal.append(bytes(journal.room))
    assert journal.room == 0
    assert not journal.make_room(1)
    journal.release(1)
    journal.close()


def test_make_room_allocates_what_is_asked_for(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    for need in (SEGMENT - HEADER - RECORD, SEGMENT - HEADER - RECORD + 1, 5 * SEGMENT):
        assert journal.make_room(need)
        assert journal.room >= need
        segments_before = len(segments(tmp_path))
        journal.append(bytes(need))
        assert len(segments(tmp_path)) - segments_before <= 1
    journal.close()


def test_past_max_bytes_appends_are_refused(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path, max_bytes=3 * SEGMENT)
    with pytest.raises(StoreFull):
        fill(journal)
    kept = journal.sequence
    assert journal.waiting_bytes <= 4 * SEGMENT
    assert not journal.prepare_spare()
    journal.release(kept)
    assert journal.append(b"again") == kept + 1
    journal.close()
    assert replayed(tmp_path, after=kept) == [b"again"]


def test_a_full_journal_can_be_opened(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path, max_bytes=3 * SEGMENT)
    with pytest.raises(StoreFull):
        fill(journal)
    count = journal.sequence
    journal.close()
    for _ in range(3):
        again, found = opened(tmp_path, max_bytes=3 * SEGMENT)
        assert len(found) == count
        again.close()


def test_a_full_disk_is_no_room_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, _ = opened(tmp_path)
    journal.append(b"one")
    with monkeypatch.context() as patch:
        patch.setattr(FileCalls, "write_parts", staticmethod(failing(errno.ENOSPC)))
        with pytest.raises(StoreFull) as caught:
            journal.append(b"refused")
        assert caught.value.path == str(tmp_path)
        patch.setattr(
            FileCalls,
            "write_parts",
            staticmethod(lambda fd, parts, offset: os.pwrite(fd, b"".join(parts)[:19], offset)),
        )
        with pytest.raises(StoreFull):
            journal.append(b"half")
    with monkeypatch.context() as patch:
        patch.setattr(FileCalls, "write", staticmethod(failing(errno.ENOSPC)))
        with pytest.raises(StoreFull):
            journal.append(bytes(2 * SEGMENT))
        journal.append(bytes(SEGMENT - 200))  # fits the segment at hand
        assert not journal.make_room(2 * SEGMENT)
    assert journal.append(b"two") == 3
    journal.close()
    assert [len(payload) for payload in replayed(tmp_path)] == [3, SEGMENT - 200, 3]
    assert [path.suffix for path in tmp_path.iterdir()].count(".spare") <= 1


def test_a_disk_that_fails_is_no_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, _ = opened(tmp_path)
    journal.append(b"one")
    with monkeypatch.context() as patch:
        for code in (errno.EIO, errno.ENOSPC):  # a second fdatasync would succeed without having written anything
            patch.setattr(FileCalls, "sync_data", staticmethod(failing(code)))
            with pytest.raises(StoreUnwritable):
                journal.sync()
        patch.setattr(FileCalls, "write_parts", staticmethod(failing(errno.EIO)))
        with pytest.raises(StoreUnwritable):
            journal.append(b"two")
    journal.close()


@pytest.mark.parametrize("flags", [0, getattr(os, "RWF_DSYNC", 0)])
def test_a_synced_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int) -> None:
    """One call if nothing before it waits for a sync; two if something does, or the file system can't do it in one."""
    calls: list[str] = []
    pwritev, fdatasync = os.pwritev, os.fdatasync

    def write(*arguments: Any) -> int:
        calls.append("synced write" if len(arguments) > 3 else "write")
        if "fail" in calls and len(arguments) > 3:
            raise OSError(errno.EOPNOTSUPP, "flags are not supported")
        return pwritev(*arguments)

    def sync(fd: int) -> None:
        calls.append("sync")
        fdatasync(fd)

    journal, _ = opened(tmp_path, dsync=flags)
    monkeypatch.setattr(FileCalls, "write_parts", staticmethod(write))
    monkeypatch.setattr(FileCalls, "sync_data", staticmethod(sync))
    at_once = ["synced write"] if flags else ["write", "sync"]
    assert journal.append(b"one", sync=True) == 1
    assert calls == at_once
    calls.clear()
    journal.append(b"two")
    journal.append(b"three", sync=True)
    assert calls == ["write", "write", "sync"]
    calls[:] = ["fail"]
    journal.append(b"four", sync=True)
    assert calls[1:] == ([*at_once, "write", "sync"] if flags else at_once)
    calls.clear()
    journal.append(b"five", sync=True)
    assert calls == ["write", "sync"]
    journal.close()
    assert replayed(tmp_path) == [b"one", b"two", b"three", b"four", b"five"]


@pytest.mark.skipif(not hasattr(os, "RWF_DSYNC"), reason="this system writes and syncs with two calls")
@pytest.mark.parametrize(("number", "error"), [(errno.EIO, StoreUnwritable), (errno.ENOSPC, StoreFull)])
def test_a_synced_append_that_fails_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    """The system tells of a failed write once: a second one would seem to succeed."""
    journal, _ = opened(tmp_path)
    calls = []

    def write(*arguments: Any) -> int:
        calls.append(arguments)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(FileCalls, "write_parts", staticmethod(write))
    with pytest.raises(error):
        journal.append(b"one", sync=True)
    assert len(calls) == 1
    assert journal.sequence == 0
    journal.close()


def test_a_folder_without_the_right_to_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with unprivileged(), pytest.raises(StoreUnwritable):
        Journal(tmp_path / "journal")


def test_a_folder_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnwritable, match="can't be used"):
        Journal(tmp_path / "file" / "journal")


def test_a_spare_that_is_made_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread prepares the spare while the journal rolls: neither writes into the other's file."""
    journal, _ = opened(tmp_path)
    journal.append(bytes(3900))
    journal.append(bytes(3900))  # the spare is in use now
    begun, go_on = threading.Event(), threading.Event()
    original = os.pwrite

    def slow(fd: int, data: bytes, offset: int) -> int:
        if threading.current_thread() is thread:
            begun.set()
            assert go_on.wait(60)
        return original(fd, data, offset)

    thread = threading.Thread(target=journal.prepare_spare)
    monkeypatch.setattr(FileCalls, "write", staticmethod(slow))
    thread.start()
    assert begun.wait(60)
    journal.append(b"kept" * 900)
    assert journal.prepare_spare()
    go_on.set()
    thread.join(10)
    journal.close()
    assert [len(payload) for payload in replayed(tmp_path)] == [3900, 3900, 3600]


def test_a_large_spare_replaces_one_that_a_thread_made_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _ = opened(tmp_path)
    journal.append(bytes(3900))
    journal.append(bytes(3900))  # the spare is in use now
    thread = threading.Thread(target=journal.prepare_spare)
    original = os.pwrite

    def late(fd: int, data: bytes, offset: int) -> int:
        if threading.current_thread() is not thread and thread.ident is None:
            thread.start()
            thread.join(10)
        return original(fd, data, offset)

    monkeypatch.setattr(FileCalls, "write", staticmethod(late))
    assert journal.make_room(3 * SEGMENT)
    journal.append(bytes(3 * SEGMENT))
    journal.close()
    assert [len(payload) for payload in replayed(tmp_path)] == [3900, 3900, 3 * SEGMENT]
    assert not list(tmp_path.glob("*.spare"))
