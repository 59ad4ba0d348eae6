"""Rows that can't be sent: written beside the batches of their job, and read as a frame.

An executor writes the bad rows of a partition as one object, a line of JSON for each, however many there are. The
driver lists the objects of the attempts that it commits in another one, whose name follows from the job, so any program
finds them. The broker's maintenance deletes both after a week.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import msgspec
import pyarrow as pa

from ...bucket_credentials import bucket_settings
from ...protocol.messages import JobInfo
from ...staging.batch_format import bad_rows_index, bad_rows_path, random_token
from ...staging.folder import Folder, Output
from ...staging.folder_url import open_folder
from ...staging.job import StagingTarget
from ..encode.row_encoder import BadRow

_TEXTS = pa.map_(pa.string(), pa.string())
_SCHEMA = pa.schema([
    ("partition", pa.int32()), ("row", pa.int64()), ("task_id", pa.string()), ("column", pa.string()),
    ("value", pa.string()), ("reason", pa.string()), ("arguments", _TEXTS),
])  # fmt: skip
_DDL = (
    "partition int, row long, task_id string, column string, value string, reason string, arguments map<string, string>"
)

_decode_lines = msgspec.json.Decoder(BadRow).decode_lines


class BadRowWriter:
    """Writer of the bad rows of one attempt. The object exists only if there are any."""

    def __init__(self, target: StagingTarget, job_id: str, partition: int, attempt: int) -> None:
        self._target = target
        self._path = bad_rows_path(job_id, partition, attempt, random_token())
        self._output: Output | None = None
        self.rows = 0

    def add(self, row: BadRow) -> None:
        if self._output is None:
            self._output = _folder(self._target).create(self._path)
        self._output.write(msgspec.json.encode(row) + b"\n")
        self.rows += 1

    def close(self) -> str:
        """Make the object durable; return its path, or an empty text if there are no bad rows."""
        if self._output is None:
            return ""
        self._output.commit()
        return self._path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        if kind is not None and self._output is not None:
            self._output.abort()


def _folder(target: StagingTarget) -> Folder:
    return open_folder(target.url, target.options)


def write_index(
    target: StagingTarget, job_id: str, totals: tuple[int, int, int], digest: str, paths: list[str]
) -> None:
    """Write the list of the objects of a job, whose messages, batches and bytes are ``totals``."""
    _folder(target).write(bad_rows_index(job_id, *totals, digest), [msgspec.json.encode(paths)])


def delete_bad_rows(target: StagingTarget, paths: list[str]) -> None:
    if paths:
        _folder(target).delete(paths)


def bad_rows_frame(spark: Any, target: StagingTarget, job: JobInfo, bucket: Mapping[str, str]) -> Any:
    """Return the bad rows of a committed job as a frame, which the executors read with these settings of the bucket."""
    index = bad_rows_index(job.job_id, job.rows, job.batches, job.bytes, job.digest)

    def list_paths(_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            with bucket_settings(bucket):
                paths = msgspec.json.decode(_folder(target).read_all(index), type=list[str])
        except FileNotFoundError:
            paths = []
        yield pa.record_batch([pa.array(paths, pa.string())], ["path"])

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch.column(0).to_pylist():
                with bucket_settings(bucket):
                    yield from _read(_folder(target), path)

    paths = spark.range(0, 1, 1, 1).mapInArrow(list_paths, "path string")
    return paths.repartition("path").mapInArrow(read, _DDL)


def _read(folder: Folder, path: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an object, those of a few megabytes together."""
    rest = b""
    for piece in folder.stream(path):
        lines, _, rest = (rest + piece).rpartition(b"\n")
        rows = [{**row._asdict(), "arguments": list(row.arguments.items())} for row in _decode_lines(lines)]
        yield pa.RecordBatch.from_pylist(rows, _SCHEMA)
