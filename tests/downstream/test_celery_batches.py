"""celery-batches: a run for many messages, whose outcome each message has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.protocol.messages import AttemptInfo

from ..support.processes import run, tail, wait_until
from ..support.served import ServedBroker
from ..support.workers import CeleryWorker, sender
from .compatibility import Row
from .conftest import APPS, StartWorker

COMPATIBILITY = Row(
    package="celery-batches",
    tried="early and late acknowledgement, failures, a killed process; prefork and threads",
    result="Works, also task outcomes: each message of a batch has the outcome of the batch. If the process of a batch "
    "with late acknowledgement is killed, its messages return when the worker ends "
    "([patch](upstream/celery-batches.md)). It needs Celery below 5.7.",
)
PATIENCE_SECONDS = 60
SIZE = 3


@pytest.fixture(scope="session")
def python(python_with: Callable[[str], str]) -> str:
    return python_with("celery-batches")


def ended(client: QueueClient, worker: CeleryWorker, number: int) -> list[AttemptInfo]:
    """The attempts, once so many have a state."""
    found: list[AttemptInfo] = []

    def complete() -> bool:
        found[:] = [each for each in client.iter_attempts(queues=["batches"], tracebacks=True) if each.state]
        return len(found) >= number

    wait_until(complete, PATIENCE_SECONDS, lambda: f"{number} outcomes, has {found}:\n{tail(worker.log)}")
    return found


def test_it_allows_no_celery_5_7(python: str) -> None:
    code = "from importlib import metadata; print(metadata.requires('celery-batches'))"
    assert "<5.7" in run([python, "-c", code], APPS)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_each_message_has_the_outcome_of_its_batch(
    pool: str, python: str, start_worker: StartWorker, broker: ServedBroker, client: QueueClient
) -> None:
    worker = start_worker("batches", pool=pool, python=python)
    with sender(broker.url) as app:
        for name in ("total", "total_late", "fails", "fails_late"):
            for number in range(2 * SIZE):
                app.send_task(f"batches.{name}", (number,), queue="batches")
        app.send_task("batches.single", (1,), queue="batches")
    found = ended(client, worker, 8 * SIZE + 1)
    states = {(each.event.headers["task"], each.state, each.exception, each.error) for each in found if each.event}
    assert states == {
        ("batches.total", "succeeded", "", ""),
        ("batches.total_late", "succeeded", "", ""),
        ("batches.fails", "raised", "ValueError", "3 requests"),
        ("batches.fails_late", "raised", "ValueError", "3 requests"),
        ("batches.single", "succeeded", "", ""),
    }
    assert len(found) == 8 * SIZE + 1, "one for each message"
    assert {each.outcome for each in found} == {"acked"}
    failed = [each for each in found if each.state == "raised"]
    assert all("in fails\n    raise ValueError" in each.traceback for each in failed)
    metrics = client.metrics("batches")
    assert (metrics.length, metrics.in_flight) == (0, 0)
    assert worker.terminate() == 0, tail(worker.log)


def test_a_killed_process_is_the_outcome_of_an_early_batch(
    python: str, start_worker: StartWorker, broker: ServedBroker, client: QueueClient
) -> None:
    worker = start_worker("batches", python=python)
    with sender(broker.url) as app:
        for number in range(SIZE):
            app.send_task("batches.dies", (number,), queue="batches")
        found = ended(client, worker, SIZE)
        assert [each.state for each in found] == ["lost"] * SIZE
        for number in range(SIZE):
            app.send_task("batches.dies_late", (number,), queue="batches")
        wait_until(lambda: worker.log.read_text().count("signal 9") >= 2, PATIENCE_SECONDS, lambda: tail(worker.log))
        assert client.metrics("batches").in_flight == SIZE
    assert worker.terminate() == 0, tail(worker.log)
    wait_until(lambda: client.metrics("batches").ready == SIZE, PATIENCE_SECONDS, "the messages are ready again")
