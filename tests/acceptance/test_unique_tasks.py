"""Unique tasks with a real worker: when a key is held, who gets it, and what becomes of workflows, retries and beat."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import TaskRevokedError
from kombu import messaging

import kombu_opendata
from kombu_opendata import QueueClient, UniqueViolation
from kombu_opendata.errors import InvalidMessage, NotFound, RequestError

from ..support.apps.uniques import register
from ..support.broker import EmbeddedBroker
from ..support.ledger import Ledger
from ..support.orchard import asking
from ..support.processes import Child, Children, children, tail, wait_until
from ..support.workers import APPS, Worker

pytestmark = pytest.mark.contract(16)

SECONDS = 60
Producer: Any = messaging.Producer  # untyped


class UniqueWorker(Worker):
    app = "uniques"


@pytest.fixture(scope="module")
def running(module_store_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """The tasks of an app whose worker runs."""
    url = f"opendata://{module_store_folder}"
    settings = {"result_backend": url, "task_ignore_result": False}
    with asking(url) as app, children() as started:
        worker = UniqueWorker(url, tmp_path_factory.mktemp("w"), "worker", pool="prefork", concurrency=4, **settings)
        started.add(worker)
        worker.wait_ready()
        yield register(app)
        assert worker.terminate() == 0, tail(worker.log)


@pytest.fixture
def app(broker_url: str) -> Iterator[Celery]:
    with asking(broker_url) as app:
        yield app


@pytest.fixture
def tasks(app: Celery) -> SimpleNamespace:
    """The tasks of an app without a worker."""
    return register(app)


@pytest.mark.parametrize("name", ["early", "late"])
def test_a_task_holds_its_key_until_it_is_done(
    name: str, running: SimpleNamespace, tmp_path: Path, ledger: Ledger
) -> None:
    task, gate = getattr(running, name), tmp_path / "gate"
    first = task.delay(str(ledger), "a", str(gate))
    assert task.delay(str(ledger), "a", "another gate").id == first.id
    other = task.delay(str(ledger), "b", str(gate))
    assert other.id != first.id
    ledger.wait_for("a began", "b began")
    while_running = task.delay(str(ledger), line="a")
    assert while_running.id == first.id
    gate.touch()
    assert while_running.get(timeout=SECONDS) == "a"
    # the report of the outcome may come after the result
    wait_until(lambda: task.delay(str(ledger), "a").id != first.id, SECONDS, "the key of a task that is done")
    ledger.wait_for("b ended")


def test_a_key_until_the_start_is_free_when_a_worker_has_the_task(
    running: SimpleNamespace, tmp_path: Path, ledger: Ledger
) -> None:
    gate = tmp_path / "gate"
    waiting = running.started.apply_async((str(ledger), "later"), countdown=3600)
    assert running.started.delay(str(ledger), "later").id == waiting.id
    first = running.started.delay(str(ledger), "a", str(gate))
    ledger.wait_for("a began")
    second = running.started.delay(str(ledger), "a", str(gate))
    assert second.id != first.id
    gate.touch()
    assert [first.get(timeout=SECONDS), second.get(timeout=SECONDS)] == ["a", "a"]


def test_the_newest_of_the_waiting_ones_runs(running: SimpleNamespace, ledger: Ledger) -> None:
    results = [running.newest.apply_async((str(ledger), "a"), countdown=3600 - n) for n in range(2)]
    results.append(running.newest.delay(str(ledger), "a"))
    assert len({result.id for result in results}) == 3
    assert results[-1].get(timeout=SECONDS) == "a"
    assert ledger.lines() == ["a began", "a ended"]
    for result in results[:-1]:
        with pytest.raises(TaskRevokedError):
            result.get(timeout=SECONDS)


def test_a_time_counts_from_the_publish_and_an_error_names_the_holder(
    running: SimpleNamespace, tmp_path: Path, ledger: Ledger
) -> None:
    gate = tmp_path / "gate"
    first, strict = running.hourly.delay(str(ledger), "a"), running.strict.delay(str(ledger), "a", str(gate))
    with pytest.raises(UniqueViolation) as refused:
        running.strict.delay(str(ledger), "a")
    assert refused.value.task_id == strict.id
    assert first.get(timeout=SECONDS) == "a"
    assert running.hourly.delay(str(ledger), "a").id == first.id
    assert running.hourly.delay(str(ledger), "b").id != first.id
    gate.touch()
    assert strict.get(timeout=SECONDS) == "a"


def test_a_revoked_task_holds_no_key_while_it_waits_for_its_eta(running: SimpleNamespace, ledger: Ledger) -> None:
    first = running.early.apply_async((str(ledger), "a"), countdown=3600)
    hourly = running.hourly.apply_async((str(ledger), "a"), countdown=3600)
    assert running.early.delay(str(ledger), "a").id == first.id
    for result in (first, hourly):
        result.revoke()
    second = running.early.delay(str(ledger), "a")
    assert second.get(timeout=SECONDS) == "a"
    assert second.id != first.id
    with pytest.raises(TaskRevokedError):
        first.get(timeout=SECONDS)
    assert running.hourly.delay(str(ledger), "a").id == hourly.id, "a time counts from the publish"
    assert ledger.lines() == ["a began", "a ended"]


def test_a_retry_keeps_the_key(running: SimpleNamespace, tmp_path: Path, ledger: Ledger) -> None:
    gate = tmp_path / "gate"
    first = running.again.delay(str(ledger), "a", str(gate))
    ledger.wait_for("a try 2")
    assert running.again.delay(str(ledger), "a", str(gate)).id == first.id
    gate.touch()
    assert first.get(timeout=SECONDS) == "a"
    assert ledger.lines() == [f"a try {number}" for number in range(3)]
    wait_until(lambda: running.again.delay(str(ledger), "a", str(gate), 0).id != first.id, SECONDS, "the key is free")


def test_members_of_workflows_run_without_a_key_that_is_held(
    running: SimpleNamespace, tmp_path: Path, ledger: Ledger
) -> None:
    gate = tmp_path / "gate"
    holder = running.early.delay(str(ledger), "m", str(gate))
    member = running.early.si(str(ledger), "m")
    results = [
        chain(member, running.started.si(str(ledger), "b"), member).apply_async(),
        chord([member, member], running.total.s()).apply_async(),
        group(member, running.early.si(str(ledger), "c")).apply_async(),
    ]
    linked = member.clone().apply_async(link=running.hourly.si(str(ledger), "linked"))
    assert linked.id != holder.id
    assert [result.get(timeout=SECONDS) for result in results] == ["m", "m+m", ["m", "c"]]
    ledger.wait_for("linked ended")
    assert running.early.delay(str(ledger), "m").id == holder.id
    gate.touch()
    assert holder.get(timeout=SECONDS) == "m"


def test_a_member_of_a_workflow_that_holds_a_key_is_not_replaced(tasks: SimpleNamespace, ledger: Ledger) -> None:
    chain(tasks.newest.si(str(ledger), "a"), tasks.early.si(str(ledger), "b")).apply_async()
    assert tasks.newest.delay(str(ledger), "a").id == tasks.newest.delay(str(ledger), "a").id


def test_batches_and_asyncio(app: Celery, tasks: SimpleNamespace, ledger: Ledger) -> None:
    first = tasks.early.delay(str(ledger), "a")
    with kombu_opendata.batch(app):
        in_batch = [tasks.early.delay(str(ledger), line) for line in ("a", "b", "b")]
    assert in_batch[0].id == first.id
    assert in_batch[1].id == in_batch[2].id != first.id

    async def publish() -> list[str]:
        calls = [kombu_opendata.apply_async(tasks.early, (str(ledger), line)) for line in ("a", "c", "c")]
        results = await asyncio.gather(*calls)
        await kombu_opendata.apply_async(tasks.strict, (str(ledger), "a"))
        with pytest.raises(UniqueViolation):
            await kombu_opendata.apply_async(tasks.strict, (str(ledger), "a"))
        return [result.id for result in results]

    ids = asyncio.run(publish())
    assert ids[0] == first.id
    assert ids[1] == ids[2]


def test_beat_sends_a_unique_task_once(
    tasks: SimpleNamespace, broker_url: str, store_folder: Path, tmp_path: Path, started: Children, ledger: Ledger
) -> None:
    entry = {"task": "uniques.early", "schedule": 0.1, "args": [str(ledger), "a"]}
    command = [sys.executable, "-m", "celery", "-A", "uniques", "beat", "--loglevel=DEBUG", "--max-interval=1"]
    command += [f"--schedule={tmp_path / 'schedule'}", "--pidfile="]
    env = {"CELERY_BROKER_URL": broker_url, "FARM_SETTINGS": json.dumps({"beat_schedule": {"entry": entry}})}
    beat = Child(command, tmp_path / "beat.log", cwd=APPS, env=env)
    started.add(beat)
    wait_until(lambda: beat.log.read_text().count("uniques.early sent") >= 3, SECONDS, lambda: tail(beat.log))
    assert beat.terminate() == 0, tail(beat.log)
    assert EmbeddedBroker(store_folder).queue("celery") == (1, 0)


def test_other_producers_name_the_key_in_a_header(app: Celery, broker_url: str, store_folder: Path) -> None:
    broker = EmbeddedBroker(store_folder)
    with QueueClient(broker_url) as client, app.connection_for_write() as connection:
        client.create("q")
        producer = Producer(connection)

        def publish(**fields: Any) -> Any:
            headers = {"id": str(uuid.uuid4()), "x-opendata-unique": fields}
            return producer.publish({}, routing_key="q", headers=headers)

        first, again = publish(key="k"), publish(key="k", until="done", on_conflict="replace")
        assert first.holder is again.holder is None
        assert broker.queue("q") == (1, 0)
        assert publish(key="k").message_id == again.message_id
        long = "k" * 256
        for fields in ({"key": long}, {"key": 7}, {"key": "k", "until": 0}, {"key": "k", "on_conflict": "drop"}):
            with pytest.raises(InvalidMessage):
                publish(**fields)
        assert broker.queue("q") == (1, 0)


def test_a_queue_client_names_the_key(broker_url: str) -> None:
    with QueueClient(broker_url) as client:
        client.create("q")
        first = client.send("q", 1, unique="k")
        assert client.send("q", 2, unique={"key": "k"}) == first
        again = client.send("q", 3, unique={"key": "k", "on_conflict": "replace"})
        refused = client.publish(4, routing_key="q", unique="k")
        assert (refused.id, refused.queues, refused.new) == (again, (), False)
        with pytest.raises(UniqueViolation) as violation:
            client.send("q", 5, unique={"key": "k", "on_conflict": "error"})
        assert violation.value.message_id == again
        (message,) = client.read("q", 10)
        assert message.body == 3
        client.archive("q", message.id)
        last = client.publish(6, routing_key="q", unique="k")
        assert (last.queues, last.new) == (("q",), True)
        with pytest.raises(RequestError, match="without an idempotency key"):
            client.send("q", 7, unique="k", idempotency_key="i")
        with pytest.raises(NotFound):
            client.send("none", 8, unique="k")
        assert client.publish(9, routing_key="none", unique="other").id is None


def test_a_default_of_a_keyword_argument_is_part_of_the_key(app: Celery) -> None:
    @app.task(shared=False, unique=kombu_opendata.Unique())
    def keyword(*, value: int = 1) -> int:
        return value

    first = keyword.delay()
    assert keyword.delay(value=1).id == first.id != keyword.delay(value=2).id


def test_arguments_that_make_no_key(tasks: SimpleNamespace, app: Celery) -> None:
    @app.task(shared=False, unique=kombu_opendata.Unique(("task", "other")))
    def bad(value: int) -> int:
        return value

    with pytest.raises(RequestError, match="no parameter 'other'"):
        bad.delay(1)
    with pytest.raises(RequestError, match="name plain parameters"):
        tasks.total.delay([object()])
