"""Folders of staged batches on a disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from kombu_opendata.errors import CorruptRecord, InvalidURL
from kombu_opendata.staging.batch_format import job_folder, parse_batch_uri
from kombu_opendata.staging.batch_reader import check_batch
from kombu_opendata.staging.batch_writer import BatchWriter
from kombu_opendata.staging.folder import LocalFolder
from kombu_opendata.staging.folder_url import open_folder
from kombu_opendata.staging.job import BatchInfo, StagingTarget


def batch() -> BatchInfo:
    writer = BatchWriter(StagingTarget("file:///nowhere/default.staged"), "job", 0, 0)
    writer.add(b"x", {})
    return writer.close()


@pytest.mark.parametrize("url", ["file://relative", "file:///", "memory://x", "ftp://x/y", "s3:///x"])
def test_folders_that_cannot_be(url: str) -> None:
    with pytest.raises(InvalidURL):
        open_folder(url)


def test_a_missing_batch_says_so(tmp_path: Path) -> None:
    with pytest.raises(CorruptRecord, match="is missing"):
        check_batch(LocalFolder(tmp_path), batch(), "default", "job")


class SharedFolder(LocalFolder):
    """Its new folders are removed once, as by another writer that had no space for a file there."""

    removed = 0

    def make_folder(self, folder: Path) -> None:
        super().make_folder(folder)
        if not self.removed and folder != self.root:
            self.removed += 1
            folder.rmdir()


def test_a_file_is_written_though_another_writer_removes_its_empty_folder(tmp_path: Path) -> None:
    folder = SharedFolder(tmp_path)
    folder.write("a/b", [b"x"])
    assert (folder.removed, (tmp_path / "a" / "b").read_bytes()) == (1, b"x")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    info = batch()
    path = tmp_path / (parse_batch_uri(info.uri) or "")
    path.parent.mkdir()
    (tmp_path / "elsewhere").write_bytes(info.data)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Exception, match="can't be read"):
        LocalFolder(tmp_path).read(parse_batch_uri(info.uri) or "", [(0, 8)])


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    for name in ("notes.txt", f"{job_folder('job')}/x.batch", f"{job_folder('job')}/0-0-{'0' * 16}.batch"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    folder = LocalFolder(tmp_path)
    assert [[found.path for found in page] for page in folder.batches()] == [
        [f"{job_folder('job')}/0-0-{'0' * 16}.batch"]
    ]
    assert folder.delete([found.path for page in folder.batches() for found in page]) == 1
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["notes.txt", "x.batch"]
