"""What is wrong with a journal's files, by the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from kombu_opendata.offline.files.journal_files import JournalTail
from kombu_opendata.storage.commit.journal import Journal
from kombu_opendata.storage.commit.journal_format import HEADER_BYTES, RECORD_BYTES
from kombu_opendata.storage.effects import codec
from kombu_opendata.storage.effects.publishes import ReserveIdsEffect

COMMIT = codec.encode([ReserveIdsEffect(0, 4096)])
RECORD = RECORD_BYTES + len(COMMIT)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Records 1 to 8 in segments of three."""
    journal = Journal(tmp_path / "j", segment_bytes=HEADER_BYTES + 3 * RECORD + 8, sync=False)
    assert not list(journal.replay(0))
    journal.start()
    for _ in range(8):
        journal.append(COMMIT)
    journal.close()
    return tmp_path / "j"


def codes(tail: JournalTail) -> list[str]:
    return [found.code for found in tail.findings]


def segment(folder: Path, number: int) -> Path:
    return folder / f"{number:016d}.journal"


def change(path: Path, at: int, data: bytes) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + data + whole[at + len(data) :])


def test_a_whole_journal(folder: Path) -> None:
    for position in range(9):
        tail = JournalTail(folder, position)
        assert not tail.findings
        assert (tail.last, len(tail.commits), tail.tail_bytes) == (8, 8 - position, RECORD * (8 - position))
        assert [one.records for one in tail.segments] == [3, 3, 2]
        assert tail.is_whole


def test_a_journal_that_was_never_there(tmp_path: Path) -> None:
    assert not JournalTail(tmp_path / "none", 0).findings
    assert codes(JournalTail(tmp_path / "none", 5)) == ["journal-missing"]
    (tmp_path / "none").mkdir()
    assert codes(JournalTail(tmp_path / "none", 5)) == ["journal-missing"]


def test_a_damaged_record_in_the_middle(folder: Path) -> None:
    change(segment(folder, 1), HEADER_BYTES + RECORD + RECORD_BYTES, b"\xee")
    tail = JournalTail(folder, 0)
    assert codes(tail) == ["journal-record"]
    assert "record 2 " in tail.findings[0].text
    assert tail.findings[0].file == str(segment(folder, 1))
    assert (tail.last, tail.is_whole) == (1, False)


def test_a_damaged_last_record(folder: Path) -> None:
    change(segment(folder, 3), HEADER_BYTES + RECORD + RECORD_BYTES, b"\xee")
    torn = JournalTail(folder, 0)
    assert codes(torn) == ["journal-torn"]
    assert (torn.last, torn.is_whole) == (7, True)
    assert codes(JournalTail(folder, 8)) == ["journal-stored"]


@pytest.mark.parametrize("field", [0, 4, 8])
def test_a_damaged_field_of_a_record(folder: Path, field: int) -> None:
    change(segment(folder, 2), HEADER_BYTES + field, b"\x77")
    assert codes(JournalTail(folder, 0))[0] == "journal-record"


def test_a_damaged_sequence_number_of_the_last_record(folder: Path) -> None:
    change(segment(folder, 3), HEADER_BYTES + RECORD + 8, b"\x77")
    assert codes(JournalTail(folder, 0)) == ["journal-record"]


@pytest.mark.parametrize(("at", "code"), [(0, "header"), (4, "header"), (6, "header"), (8, "header"), (16, "gap")])
def test_a_damaged_header(folder: Path, at: int, code: str) -> None:
    change(segment(folder, 2), at, b"\x77")
    assert f"journal-{code}" in codes(JournalTail(folder, 0))


def test_a_missing_segment(folder: Path) -> None:
    segment(folder, 2).unlink()
    assert codes(JournalTail(folder, 0)) == ["journal-gap"]
    assert codes(JournalTail(folder, 3)) == ["journal-gap"]
    assert codes(JournalTail(folder, 7)) == ["journal-sequence"]


def test_a_first_segment_that_is_too_late(folder: Path) -> None:
    segment(folder, 1).unlink()
    assert codes(JournalTail(folder, 2)) == ["journal-gap"]
    assert not JournalTail(folder, 3).findings


def test_a_journal_that_is_older_than_the_store(folder: Path) -> None:
    tail = JournalTail(folder, 9)
    assert codes(tail) == ["journal-behind"]
    assert not tail.commits


@pytest.mark.parametrize("content", [b"", bytes(100), b"something else"])
def test_a_segment_without_a_header(folder: Path, content: bytes) -> None:
    segment(folder, 3).write_bytes(content)
    tail = JournalTail(folder, 0)
    assert "journal-header" in codes(tail)
    assert not tail.is_whole


def test_a_record_that_is_no_commit(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", segment_bytes=4096, sync=False)
    assert not list(journal.replay(0))
    journal.start()
    journal.append(b"\xc1")
    journal.close()
    tail = JournalTail(tmp_path / "j", 0)
    assert codes(tail) == ["journal-record"]
    assert not tail.is_whole
