"""kill -9 of the broker around a commit and while a job is routed: each row is delivered once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kombu_opendata.client.maintain import maintain
from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.errors import OpenDataError
from kombu_opendata.protocol.messages import Consume, JobInfo, JobQueueCounts
from tests.support.waiting import random_moment

from ..support.batches import Sink, as_objects, stage
from ..support.broker import EmbeddedBroker
from ..support.processes import wait_until
from ..support.seeds import seeded_random
from ..support.unread import unread_bytes

pytestmark = [pytest.mark.slow, pytest.mark.contract(12)]

PAUSE_SECONDS = 0.5


@pytest.fixture
def sink(store_folder: Path) -> Iterator[Sink]:
    found = Sink(f"opendata://{store_folder}", "q", prefetch=200)
    yield found
    found.close()


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def check(sink: Sink, client: StagingClient, total: int, jobs: list[str]) -> None:
    """Every row came, once; and the counts say so."""
    sink.take(total, 120)
    sink.quiet(1.0)
    assert sink.got == Counter(bodies(total))
    done = 0
    for name in jobs:
        wait_until(partial(settled, client, name), 60, name)
        job = client.job_status(name)
        assert job.queues == {"q": JobQueueCounts(job.rows, job.rows, 0, 0)}
        done += job.done
    assert done == total


def settled(client: StagingClient, name: str) -> bool:
    return client.job_status(name).has_ended


def test_kills_while_jobs_are_committed_and_routed(
    sink: Sink, broker: EmbeddedBroker, client: StagingClient, store_folder: Path
) -> None:
    """A driver commits job after job, each twice; the broker is killed at random instants; a consumer takes all."""
    dice = seeded_random()
    jobs, rows = 12, 3000
    target = as_objects(client.staging_target())
    answers: list[JobInfo] = []
    errors: list[BaseException] = []

    def drive() -> None:
        try:
            for number in range(jobs):
                name, start = f"job-{number}", number * rows
                parts = [bodies(rows // 3, start + part * rows // 3) for part in range(3)]
                for attempt in range(2):
                    answers.append(client.commit_job(name, stage(target, name, parts, attempt=attempt)))
        except BaseException as exc:
            errors.append(exc)

    driver = threading.Thread(target=drive)
    driver.start()
    while driver.is_alive():
        before = len(answers)
        # Where a broker's start is slow, a pause alone would kill each one before it has got anywhere.
        while driver.is_alive() and not (broker.answers() and len(answers) > before):
            sink.quiet(0.05)
        until = time.monotonic() + dice.random() * PAUSE_SECONDS
        while time.monotonic() < until and driver.is_alive():
            sink.quiet(0.05)
        broker.kill()
    driver.join()
    assert not errors, errors
    for _ in range(3):
        if sink.got.total() == jobs * rows:
            break  # nobody needs a broker any more, so none would be started
        sink.take(min(sink.got.total() + dice.randrange(1, 3000), jobs * rows), 120)
        broker.kill()
    first_ids = {job.job_id: job.first_id for job in answers}
    assert all(job.first_id == first_ids[job.job_id] for job in answers)
    assert len(set(first_ids.values())) == jobs
    check(sink, client, jobs * rows, list(first_ids))


def test_a_commit_whose_answer_is_lost_is_answered_again(
    sink: Sink, broker: EmbeddedBroker, client: StagingClient, store_folder: Path
) -> None:
    """The broker is stopped with SIGSTOP when the commit is on its way, killed, and started again by the client."""
    target = as_objects(client.staging_target())
    infos = stage(target, "job", [bodies(500)])
    pid = broker.wait_up()
    os.kill(pid, signal.SIGSTOP)
    answers: list[JobInfo] = []
    driver = threading.Thread(target=lambda: answers.append(client.commit_job("job", infos)))
    before = unread_bytes()
    driver.start()
    wait_until(lambda: unread_bytes() > before or not driver.is_alive(), 60, "the request in the broker's socket")
    os.kill(pid, signal.SIGKILL)
    os.kill(pid, signal.SIGCONT)
    driver.join(60)
    assert [job.rows for job in answers] == [500]
    assert not client.commit_job("job", infos).added
    check(sink, client, 500, ["job"])


def test_a_driver_that_dies_before_the_commit_leaves_nothing_visible(
    sink: Sink, broker: EmbeddedBroker, client: StagingClient, store_folder: Path
) -> None:
    """Half of the batches are written, one is under way when its process is killed; then the job runs again."""
    program = (
        "import sys\n"
        "from kombu_opendata.client.staging_client import StagingClient\n"
        "from tests.support.batches import as_objects, stage\n"
        "from kombu_opendata.staging.batch_writer import BatchWriter\n"
        f"target = as_objects(StagingClient('opendata://{store_folder}').staging_target())\n"
        "stage(target, 'job', [[b'lost'] * 300] * 2)\n"
        "writer = BatchWriter(target, 'job', 2, 0)\n"
        "writer.add_many([b'lost'] * 300, {})\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command, pipe = [sys.executable, "-c", program], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
    assert len(list((store_folder / "default.staged").rglob("*.batch*"))) == 3
    target = as_objects(client.staging_target())
    broker.kill()
    assert client.commit_job("job", stage(target, "job", [bodies(400)], attempt=1)).added
    check(sink, client, 400, ["job"])


def test_batches_are_collected_over_kills(
    sink: Sink, broker: EmbeddedBroker, client: StagingClient, store_folder: Path
) -> None:
    """Counts of messages that are not collected stay exact when the broker dies at random instants."""
    dice = seeded_random()
    sink.declare("brief", x_done_retention=1)
    target = as_objects(client.staging_target())
    parts = [bodies(500, 500 * number) for number in range(6)]
    client.commit_job("job", stage(target, "job", parts, routing_key="brief"))
    sink.connection.consume(Consume(0, 1, "brief", "brief", False, False, {}))
    sink.take(3000, 120)
    sink.quiet()

    def left() -> list[Path]:
        return list((store_folder / "default.staged").rglob("*.batch"))

    deadline = time.monotonic() + 120
    while broker.report()["staging"]["objects"]:
        assert time.monotonic() < deadline, left()
        try:
            maintain(client._connection, ["collect"], timeout=5)
        except OpenDataError:
            continue
        finally:
            random_moment(dice, 0.3)
            broker.kill()
    # what was not removed before a kill is an orphan now
    for path in left():
        os.utime(path, (time.time() - 25 * 3600,) * 2)
    wait_until(lambda: maintain(sink.connection, ["collect"]) and not left(), 60, lambda: str(left()))
    assert client.job_status("job").queues["brief"] == JobQueueCounts(3000, 3000, 0, 0)
