"""Staged batches in a bucket, on an S3 server in a process of its own."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.errors import CorruptRecord, NotFound, StoreError
from kombu_opendata.protocol.messages import Consume, JobQueueCounts
from kombu_opendata.staging.batch_format import parse_batch_uri
from kombu_opendata.staging.batch_reader import check_batch
from kombu_opendata.staging.batch_writer import BatchWriter
from kombu_opendata.staging.bucket_folder import BucketFolder
from kombu_opendata.staging.folder_url import open_folder
from kombu_opendata.staging.job import StagingTarget

from ...support.batches import Sink, as_objects, envelope, headers, stage
from ...support.processes import children, wait_until
from ...support.s3 import BUCKET, S3
from ...support.served import ServedBroker
from ...support.verified import assert_verified, describe, verify

pytest.importorskip("obstore", reason="obstore is not installed: pip install kombu-opendata[objectstore]")

MESSAGES = 600


@pytest.fixture
def broker(s3: S3, tmp_path: Path) -> Iterator[ServedBroker]:
    prefix = tmp_path.name
    with children() as started:
        found = ServedBroker(tmp_path, "--store", f"s3://{BUCKET}/{prefix}", "--listen", "tcp:127.0.0.1:0")
        started.add(found)
        yield found
        found.terminate()


def sink_of(broker: ServedBroker, *queues: str) -> Sink:
    return Sink(f"opendata://127.0.0.1:{broker.port}", *queues)


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def test_a_job_in_a_bucket_is_delivered_once(broker: ServedBroker) -> None:
    sink = sink_of(broker)
    sink.declare("q")
    client = StagingClient(sink.connection)
    target = as_objects(client.staging_target())
    assert target.url.startswith(f"s3://{BUCKET}/")
    assert target.url.endswith("/default.staged")
    assert target.options["endpoint"] == os.environ["AWS_ENDPOINT"]
    assert not {name for name in target.options if "key" in name or "secret" in name}
    infos = stage(target, "job", [bodies(MESSAGES // 2), bodies(MESSAGES // 2, MESSAGES // 2)])
    assert client.commit_job("job", infos).added
    assert not client.commit_job("job", stage(target, "job", [bodies(MESSAGES)], attempt=1)).added
    sink.connection.consume(Consume(0, 1, "sink", "q", False, False, {}))
    sink.take(MESSAGES)
    sink.quiet()
    assert sink.got == Counter(bodies(MESSAGES))
    wait_until(lambda: client.job_status("job").has_ended, 60, lambda: repr(client.job_status("job")))
    assert client.job_status("job").queues == {"q": JobQueueCounts(MESSAGES, MESSAGES)}
    sink.close()


def test_kill_9_loses_and_doubles_nothing(broker: ServedBroker, s3: S3, tmp_path: Path) -> None:
    sink = sink_of(broker)
    sink.declare("q")
    client = StagingClient(sink.connection)
    target = as_objects(client.staging_target())
    infos = stage(target, "job", [bodies(2000), bodies(2000, 2000)])
    client.commit_job("job", infos)
    sink.connection.abandon()
    os.kill(broker.pid, signal.SIGKILL)
    with children() as started:
        folder = tmp_path / "next"
        folder.mkdir()
        again = ServedBroker(folder, "--store", f"s3://{BUCKET}/{tmp_path.name}", "--listen", "tcp:127.0.0.1:0")
        started.add(again)
        sink = sink_of(again)
        client = StagingClient(sink.connection)
        assert not client.commit_job("job", infos).added
        sink.declare("q")
        sink.connection.consume(Consume(0, 1, "sink", "q", False, False, {}))
        sink.take(4000)
        sink.quiet()
        assert sink.got == Counter(bodies(4000))
        sink.close()
        again.terminate()


def test_batches_in_a_bucket_are_checked_listed_and_removed(s3: S3) -> None:
    url = f"s3://{BUCKET}/checked/default.staged"
    target = StagingTarget(url, inline_bytes=0, inline_rows=0)
    infos = stage(target, "job", [bodies(10), bodies(10)])
    folder = open_folder(url)
    for info in infos:
        check_batch(folder, info, "default", "job")
    found = [each.path for page in folder.batches() for each in page]
    assert sorted(found) == sorted(parse_batch_uri(info.uri) or "" for info in infos)
    path = found[0]
    assert [len(part) for part in folder.read(path, [(0, 8), (2, 3)])] == [8, 3]
    assert folder.delete(found) == 2
    with pytest.raises(CorruptRecord, match="is missing"):
        folder.read(path, [(0, 8)])
    assert not list(folder.batches())


def test_a_verification_reads_batches_in_a_bucket(broker: ServedBroker, s3: S3, tmp_path: Path) -> None:
    sink = sink_of(broker)
    sink.declare("q")
    client = StagingClient(sink.connection)
    (info,) = stage(as_objects(client.staging_target()), "job", [bodies(MESSAGES)])
    client.commit_job("job", [info])
    wait_until(lambda: client.job_status("job").state == "routed", 60, "the job is routed")
    sink.close()
    broker.terminate()
    url = f"s3://{BUCKET}/{tmp_path.name}"
    assert_verified(url, "default")
    bucket, path = BucketFolder(f"{url}/default.staged", {}), parse_batch_uri(info.uri) or ""
    data, version = bucket.read_version(path) or (b"", None)
    bucket.put_if(path, data[:100] + bytes((data[100] ^ 1,)) + data[101:], version)
    report = verify(url, "default")
    assert report.counts == {"batch-damaged": 1}, describe(report)
    assert path in report.findings[0].text
    bucket.delete([path])
    assert verify(url, "default").counts["batch-missing"]


def test_an_aborted_upload_is_not_visible(s3: S3) -> None:
    url = f"s3://{BUCKET}/aborted/default.staged"
    writer = BatchWriter(StagingTarget(url, inline_bytes=0, inline_rows=0), "job", 0, 0)
    for _ in range(20):
        writer.add(envelope(os.urandom(1 << 20)), headers())
    writer.abort()
    assert not list(open_folder(url).batches())


def test_an_abort_by_the_driver_removes_objects(broker: ServedBroker) -> None:
    sink = sink_of(broker)
    client = StagingClient(sink.connection)
    target = as_objects(client.staging_target())
    infos = stage(target, "job", [bodies(10), bodies(10)])
    assert client.abort_job("job") == 2
    with pytest.raises(NotFound, match="is missing"):
        client.commit_job("job", infos)
    sink.close()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(StoreError, match=r"kombu-opendata\[objectstore\]"):
        open_folder("s3://bucket/prefix")
