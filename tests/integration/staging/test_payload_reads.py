"""Messages in batch objects: read by every call, also if another object is damaged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kombu_opendata import QueueClient
from kombu_opendata.cli.root import main
from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.errors import DamagedBatch
from kombu_opendata.protocol.messages import JobInfo, Outcome
from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.staging.batch_format import HEADER_BYTES, parse_batch_uri
from kombu_opendata.staging.batch_writer import BatchWriter
from kombu_opendata.staging.job import StagingTarget

from ...support.batches import Sink, envelope, headers
from ...support.broker import EmbeddedBroker
from ...support.processes import wait_until
from .conftest import when

#: tasks of each of two batches
ROWS = 5
RAISED = TaskReport.cut(TaskState.RAISED, 1000, 1, "app.add", "ValueError", "wrong", "")


@pytest.fixture
def queue_client(url: str) -> Iterator[QueueClient]:
    with QueueClient(url) as opened:
        yield opened


@pytest.fixture
def job(sink: Sink, client: StagingClient, target: StagingTarget) -> JobInfo:
    """Of two batches with tasks, which are in their queue."""
    infos = []
    for partition in range(2):
        writer = BatchWriter(target, "job", partition, 0)
        for row in range(ROWS):
            about = {"task": "app.add", "id": f"{partition}-{row}"}
            writer.add(envelope(b"[[1],{},{}]", headers=about), headers("q", **about), routing_key="q")
        infos.append(writer.close())
    client.commit_job("job", infos)
    return when(client, "job", lambda job: job.state == "routed")


def damage(target: StagingTarget, folder: Path, partition: int) -> str:
    """Overwrite the payloads of a batch; returns its path."""
    (file,) = (folder / "default.staged").rglob(f"{partition}-0-*.batch")
    data = file.read_bytes()
    at = len(HEADER_BYTES) + 16  # in the first frame
    file.write_bytes(data[:at] + bytes(len(data) - at))
    path = parse_batch_uri(f"batch:{file.parent.name}/{file.name}")
    assert path is not None
    return path


def fail_all(sink: Sink, client: QueueClient) -> None:
    """Run all tasks with early acknowledgement: each raises."""
    for _ in range(2 * ROWS):
        delivery = sink.connection.get(1, "q", no_ack=False)
        assert delivery is not None
        sink.connection.settle(1, Outcome.START, [delivery.lease])
        sink.connection.settle_task(1, Outcome.REPORT, delivery.lease, RAISED)
    wait_until(lambda: len(client.list_failures().items) == 2 * ROWS, 60, lambda: repr(client.list_failures()))


def run(*words: str, url: str) -> Result:
    return CliRunner().invoke(main, words, env={"OPENDATA_QUEUE_URL": url})


def test_messages_in_batches_can_be_read_and_run_again(job: JobInfo, sink: Sink, queue_client: QueueClient) -> None:
    assert [message.id for message in queue_client.peek("q", 2)] == [job.first_id, job.first_id + 1]
    found = queue_client.get(job.first_id + ROWS)
    assert (found.message.headers["id"], found.message.error) == ("1-0", None)
    fail_all(sink, queue_client)
    (attempt,) = queue_client.list_attempts(bodies=True, limit=1).items
    assert attempt.event is not None
    assert attempt.event.body is not None

    done = queue_client.retry_failures()

    assert (done.published, done.left) == (2 * ROWS, {})


@pytest.mark.damages_store
def test_a_damaged_batch_harms_only_its_messages(
    job: JobInfo, sink: Sink, queue_client: QueueClient, target: StagingTarget, store_folder: Path, url: str
) -> None:
    path = damage(target, store_folder, 0)

    peeked = queue_client.peek("q", 2 * ROWS)
    assert [message.error is None for message in peeked] == [False] * ROWS + [True] * ROWS
    error = peeked[0].error
    assert isinstance(error, DamagedBatch)
    assert error.batch == path
    with pytest.raises(DamagedBatch, match=path):
        peeked[0].body  # noqa: B018 - it raises
    found = queue_client.get(job.first_id)
    assert (found.metadata["id"], [state.state for state in found.states]) == ("0-0", ["available"])
    assert isinstance(found.message.error, DamagedBatch)

    told = run("peek", "q", url=url)
    assert told.exit_code == 4
    assert told.stdout.count("(can't be read)") == ROWS
    assert f"{ROWS} messages can't be read: the payload of message {job.first_id} in batch {path}" in told.stderr
    told = run("message", str(job.first_id), url=url)
    assert told.exit_code == 4
    assert "header id: 0-0" in told.stdout
    assert path in told.stderr

    sink.connection.set_prefetch(1, 1)
    for number in range(ROWS):
        delivery = sink.connection.get(1, "q", no_ack=True)
        assert delivery is not None
        assert delivery.id == job.first_id + ROWS + number
    assert sink.connection.get(1, "q", no_ack=True) is None
    assert queue_client.metrics("q").failed == ROWS


@pytest.mark.damages_store
def test_a_retry_says_which_tasks_can_not_be_read(
    job: JobInfo,
    sink: Sink,
    queue_client: QueueClient,
    target: StagingTarget,
    store_folder: Path,
    url: str,
    broker: EmbeddedBroker,
) -> None:
    fail_all(sink, queue_client)
    broker.terminate()  # it has the payloads in memory
    path = damage(target, store_folder, 0)
    attempts = queue_client.list_attempts(bodies=True).items
    assert sum(path in attempt.event.body_error for attempt in attempts if attempt.event is not None) == ROWS

    told = run("failed", "retry", "--all", url=url)

    assert told.exit_code == 4
    assert told.stdout == f"{ROWS} tasks published again; {ROWS} stayed (can't be read)\n"
    assert f"{ROWS} tasks can't run again: the payload of message {job.first_id} in batch {path}" in told.stderr
    done = queue_client.retry_failures()
    assert (done.handled, done.left, path in done.damage) == (0, {"damaged": ROWS}, True)
