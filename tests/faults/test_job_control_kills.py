"""kill -9 of the broker while a job is cancelled or retried, and when it sends its task on completion."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.protocol.envelope import decode
from kombu_opendata.protocol.messages import Outcome
from kombu_opendata.staging.job import StagingTarget

from ..integration.staging.conftest import bodies, consume, when
from ..integration.staging.test_job_control import RAISED, claim, stage_tasks, task
from ..support.batches import Sink, as_objects, stage
from ..support.broker import EmbeddedBroker
from ..support.seeds import seeded_random
from ..support.verified import assert_verified
from ..support.waiting import random_moment

pytestmark = pytest.mark.slow


@pytest.fixture
def sink(store_folder: Path) -> Iterator[Sink]:
    found = Sink(f"opendata://{store_folder}", prefetch=100)
    found.declare("q")
    yield found
    found.close()


@pytest.fixture
def target(client: StagingClient) -> StagingTarget:
    return as_objects(client.staging_target())


def during_kills(broker: EmbeddedBroker, dice: Random, call: Callable[[], object]) -> None:
    """Run a call while the broker is killed three times, or until the call ends."""
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(call)
        for _ in range(3):
            random_moment(dice, 0.5)
            if running.done():
                break
            broker.kill()
        running.result(120)


def test_a_cancellation_goes_on(
    sink: Sink, client: StagingClient, target: StagingTarget, broker: EmbeddedBroker, store_folder: Path
) -> None:
    dice = seeded_random()
    parts = [bodies(5000, 5000 * number) for number in range(4)]
    client.commit_job("job", stage(target, "job", parts))
    client.commit_job("other", stage(target, "other", [bodies(50)]))
    when(client, "job", lambda job: job.routed > 2000)
    during_kills(broker, dice, lambda: client.cancel_job("job"))
    broker.kill()
    job = when(client, "job", lambda job: job.has_ended)
    assert (job.tasks.removed, job.tasks.waiting, job.tasks.running) == (20_000, 0, 0)
    consume(sink)
    sink.take(50)
    sink.quiet()
    assert sink.got == Counter(bodies(50))
    broker.terminate()
    assert_verified(store_folder)


def test_a_retry_runs_each_failed_task_again_once(
    sink: Sink, client: StagingClient, target: StagingTarget, broker: EmbeddedBroker, store_folder: Path
) -> None:
    dice, count = seeded_random(), 300
    client.commit_job("job", stage_tasks(target, "job", count))
    when(client, "job", lambda job: job.state == "routed")
    for number, delivery in enumerate(claim(sink, count)):
        outcome = (Outcome.REJECT, Outcome.ACK)[number % 2]
        sink.connection.settle_task(1, outcome, delivery.lease, RAISED)
    when(client, "job", lambda job: job.tasks.raised == count)
    during_kills(broker, dice, lambda: client.retry_job("job"))
    client.retry_job("job")
    assert when(client, "job", lambda job: job.tasks.waiting == count).tasks.raised == 0
    again = Counter(decode(delivery.envelope)[3]["id"] for delivery in claim(sink, count))
    assert again == Counter(f"job-{number}" for number in range(count))
    assert sink.connection.get(1, "q", no_ack=False) is None
    broker.terminate()
    assert_verified(store_folder)


def test_each_task_on_completion_is_sent_once(
    sink: Sink, client: StagingClient, target: StagingTarget, broker: EmbeddedBroker, store_folder: Path
) -> None:
    dice, jobs = seeded_random(), [f"job-{number}" for number in range(12)]
    sink.declare("reports")
    for name in jobs:
        client.commit_job(name, stage(target, name, [bodies(20)]), on_complete=task(name, "reports"))

    def end_all() -> None:
        for name in jobs:
            client.cancel_job(name)
            random_moment(dice, 0.2)

    during_kills(broker, dice, end_all)
    broker.kill()
    for name in jobs:
        when(client, name, lambda job: job.completed_at_ms)
    sent: Counter[str] = Counter()
    while (delivery := sink.connection.get(1, "reports", no_ack=False)) is not None:
        sent[json.loads(decode(delivery.envelope)[0])[1]["job"]["job_id"]] += 1
    assert sent == Counter(jobs)
    broker.terminate()
    assert_verified(store_folder)
