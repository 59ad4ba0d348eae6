"""What is left over of staged jobs, and when it is collected."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kombu_opendata.client.maintain import maintain
from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.errors import (
    NotFound,
    PreconditionFailed,
)
from kombu_opendata.protocol.messages import (
    PurgeQueue,
)
from kombu_opendata.staging.batch_format import bad_rows_index, bad_rows_path, job_folder, parse_batch_uri
from kombu_opendata.staging.batch_writer import BatchWriter
from kombu_opendata.staging.folder_url import open_folder
from kombu_opendata.staging.job import StagingTarget

from ...support.batches import Sink, stage
from ...support.broker import EmbeddedBroker
from ...support.processes import wait_until
from .conftest import bodies, consume, objects, when


def test_an_aborted_job_leaves_nothing(
    sink: Sink, client: StagingClient, target: StagingTarget, store_folder: Path
) -> None:
    infos = stage(target, "job", [bodies(10), bodies(10)])
    losers = stage(target, "job", [bodies(10)], attempt=1)
    assert client.abort_job("job", [losers[0], None]) == 1
    assert len(objects(store_folder)) == 2
    assert client.abort_job("job", []) == 0
    assert client.abort_job("job") == 2
    assert client.abort_job("job") == 0
    assert not objects(store_folder)
    with pytest.raises(NotFound, match=r"is missing.*was it aborted"):
        client.commit_job("job", infos)
    assert client.job_status("job").state == "unknown"
    assert client.commit_job("job", stage(target, "job", [bodies(10)])).added


def test_a_committed_job_is_not_aborted(client: StagingClient, target: StagingTarget) -> None:
    infos = stage(target, "job", [bodies(10)])
    client.commit_job("job", infos)
    for given in (None, infos):
        with pytest.raises(PreconditionFailed, match="is committed"):
            client.abort_job("job", given)


def test_collection_removes_old_orphans_only(
    sink: Sink, client: StagingClient, target: StagingTarget, store_folder: Path
) -> None:
    committed = stage(target, "job", [bodies(10)])
    loser = stage(target, "job", [bodies(10)], attempt=1)
    client.commit_job("job", committed)
    crashed = BatchWriter(target, "dead", 0, 0)
    crashed.add_many([b"x"] * 300, {})
    crashed._output._file.close()  # type: ignore[union-attr] # its process dies
    young = stage(target, "young", [bodies(10)])
    root = store_folder / "default.staged"
    for path in objects(store_folder):
        if parse_batch_uri(young[0].uri) != str(path.relative_to(root)):
            os.utime(path, (time.time() - 25 * 3600,) * 2)
    assert maintain(sink.connection, ["collect"])["staged_removed"] == 2
    left = {str(path.relative_to(root)) for path in objects(store_folder)}
    assert left == {parse_batch_uri(committed[0].uri), parse_batch_uri(young[0].uri)}
    assert not (root / job_folder("dead")).exists()
    assert parse_batch_uri(loser[0].uri) not in left


def test_bad_rows_stay_for_a_week(sink: Sink, target: StagingTarget, store_folder: Path) -> None:
    folder = open_folder(target.url, target.options)
    young = bad_rows_path("job", 0, 0, "0" * 16)
    for path, days in ((young, 6), (bad_rows_path("job", 1, 0, "1" * 16), 8), (bad_rows_index("job", 1, 1, 1, ""), 8)):
        folder.write(path, [b"x"])
        os.utime(store_folder / "default.staged" / path, (time.time() - days * 86_400,) * 2)
    assert maintain(sink.connection, ["collect"])["staged_removed"] == 2
    assert [entry.path for entry in folder.files()] == [young]


def test_an_object_goes_with_its_last_message(
    sink: Sink, client: StagingClient, target: StagingTarget, store_folder: Path, broker: EmbeddedBroker
) -> None:
    sink.declare("brief", x_done_retention=1, x_failed_retention=1)
    infos = stage(target, "job", [bodies(300), bodies(300, 300)], routing_key="brief")
    infos += stage(target, "job", [bodies(5)], attempt=1)  # to another queue
    client.commit_job("job", infos)
    consume(sink, "brief")
    sink.take(600)
    when(client, "job", lambda job: job.done == 600)

    def collected() -> bool:
        maintain(sink.connection, ["collect"])
        return len(objects(store_folder)) == 1

    wait_until(collected, 60, lambda: str(objects(store_folder)))
    (left,) = objects(store_folder)
    assert parse_batch_uri(infos[2].uri) == str(left.relative_to(store_folder / "default.staged"))
    sink.connection.call(PurgeQueue(0, "q"))
    wait_until(lambda: not objects(store_folder) or collected(), 60, lambda: "")
    broker.kill()
    wait_until(lambda: not maintain(sink.connection, ["collect"])["settled_collected"], 60, lambda: "")
    wait_until(lambda: broker.report()["staging"]["objects"] == 0, 60, lambda: repr(broker.report()))
