"""Real Celery workers, each in processes of its own, on an embedded store that their first client starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from celery import Celery, chain, group

from ..support.broker import EmbeddedBroker
from ..support.ledger import Ledger
from ..support.processes import Children, children, wait_until
from ..support.workers import APPS, Worker, sender

POOLS = ["solo", "prefork", "threads"]


class Farm(NamedTuple):
    """A running worker, and the app that sends to it."""

    app: Celery
    worker: Worker
    broker: EmbeddedBroker
    about: dict[str, object]

    def send(self, task: str, *args: object, **options: object) -> str:
        return str(self.app.send_task(f"farm.{task}", args, **options).id)

    def task(self, name: str, *args: object) -> object:
        return self.app.signature(f"farm.{name}", args)


@pytest.fixture(scope="module", params=POOLS)
def farm(
    request: pytest.FixtureRequest, module_store_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Farm]:
    pool: str = request.param
    store = module_store_folder / pool
    url = f"opendata://{store}"
    with children() as started, sender(url) as app:
        worker = Worker(url, tmp_path_factory.mktemp(pool), pool, pool=pool, concurrency=2)
        started.add(worker)
        about = worker.wait_ready()
        yield Farm(app, worker, EmbeddedBroker(store), about)
        assert worker.terminate() == 0
        assert "Traceback" not in worker.log.read_text()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ran.txt")


@pytest.fixture
def started() -> Iterator[Children]:
    with children() as processes:
        yield processes


def test_broker_url_is_all_that_an_app_says(farm: Farm) -> None:
    assert "kombu_opendata" not in (APPS / "farm.py").read_text()
    assert farm.broker.wait_up()


def test_the_worker_uses_the_event_loop(farm: Farm) -> None:
    assert farm.about == {"loop": "asynloop", "asynchronous": True}


def test_every_task_runs_once(farm: Farm, ledger: Ledger) -> None:
    names = [f"task {number}" for number in range(200)]
    for name in names:
        farm.send("note", str(ledger), name)
    ledger.wait_count(200)
    farm.broker.wait_queue("celery", 0, 0)
    ledger.assert_once(names)


def test_a_chain_hands_results_on_without_a_result_backend(farm: Farm, ledger: Ledger) -> None:
    chain(farm.task("add", 1, 2), farm.task("add", 3), farm.task("tell", str(ledger)), app=farm.app).apply_async()
    ledger.wait_for("6")


def test_a_group_runs_all_its_tasks(farm: Farm, ledger: Ledger) -> None:
    names = [f"member {number}" for number in range(20)]
    group([farm.task("note", str(ledger), name) for name in names], app=farm.app).apply_async()
    ledger.wait_count(20)
    ledger.assert_once(names)


def test_a_retry_comes_again_after_its_countdown(farm: Farm, ledger: Ledger) -> None:
    farm.send("stubborn", str(ledger), 2, 0.7)
    ledger.wait_count(3)
    farm.broker.wait_queue("celery", 0, 0)
    tries = [line.split() for line in ledger.lines()]
    assert [words[1] for words in tries] == ["0", "1", "2"]
    at = [float(words[3]) for words in tries]
    assert at[1] - at[0] >= 0.6
    assert at[2] - at[1] >= 0.6


def test_a_late_acknowledged_task_is_in_flight_while_it_runs(farm: Farm, ledger: Ledger, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    farm.send("hold_late", str(ledger), "late", str(gate))
    ledger.wait_for("late began")
    assert farm.broker.queue("celery") == (0, 1)
    gate.touch()
    farm.broker.wait_queue("celery", 0, 0)
    assert ledger.lines() == ["late began", "late ended"]


def test_an_early_acknowledged_task_is_done_while_it_runs(farm: Farm, ledger: Ledger, tmp_path: Path) -> None:
    if farm.worker.name.startswith("solo"):
        pytest.skip("a solo worker's loop stands still while a task runs; it writes its acks when it gets to it")
    gate = tmp_path / "gate"
    farm.send("hold", str(ledger), "early", str(gate))
    ledger.wait_for("early began")
    farm.broker.wait_queue("celery", 0, 0)
    gate.touch()
    ledger.wait_for("early ended")


def test_tasks_publish_tasks(farm: Farm, ledger: Ledger) -> None:
    """In a prefork worker it is a forked child that publishes, over a connection of its own."""
    for number in range(4):
        farm.send("breed", str(ledger), f"parent {number}", 10)
    ledger.wait_count(44)
    farm.broker.wait_queue("celery", 0, 0)
    parents = [f"parent {number}" for number in range(4)]
    ledger.assert_once([*parents, *(f"{parent}.{child}" for parent in parents for child in range(10))])


@pytest.mark.parametrize("pool", POOLS)
def test_a_warm_shutdown_loses_nothing(
    pool: str, store_folder: Path, broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    names = [f"task {number}" for number in range(150)]
    with sender(broker_url) as app:
        for name in names:
            app.send_task("farm.work", (str(ledger), name, 0.01))
    broker = EmbeddedBroker(store_folder)
    # Late in prefork: there Celery 5.7, with RabbitMQ as well, may lose sight of an early acknowledgement that its
    # child just asked for when the stop comes, and then hang or hand the task back.
    options = {"worker_prefetch_multiplier": 20, "task_acks_late": pool == "prefork"}
    first = Worker(broker_url, tmp_path, "first", pool=pool, concurrency=2, **options)
    started.add(first)
    ledger.wait_count(20)
    assert first.terminate() == 0
    done = ledger.count()
    assert 20 <= done < 150, "stopped in the middle"
    assert broker.queue("celery") == (150 - done, 0), "what was not begun is back, at once"
    second = Worker(broker_url, tmp_path, "second", pool=pool, concurrency=2)
    started.add(second)
    ledger.wait_count(150)
    assert second.terminate() == 0
    ledger.assert_once(names)
    assert broker.queue("celery") == (0, 0)


def test_what_a_stopping_worker_hands_back_costs_no_attempt(
    store_folder: Path, broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    gate = tmp_path / "gate"
    with sender(broker_url) as app:
        app.send_task("farm.hold_late", (str(ledger), "first", str(gate)))
        for number in range(10):
            app.send_task("farm.redelivered", (str(ledger), str(number)))
    broker = EmbeddedBroker(store_folder)
    first = Worker(broker_url, tmp_path, "first", pool="prefork", worker_prefetch_multiplier=20)
    started.add(first)
    ledger.wait_for("first began")
    broker.wait_queue("celery", 0, 11)
    first.process.terminate()
    wait_until(lambda: "Warm shutdown" in first.log.read_text(), 30, "the signal's handler")
    gate.touch()
    assert first.wait(30) == 0
    assert broker.queue("celery") == (10, 0)
    second = Worker(broker_url, tmp_path, "second")
    started.add(second)
    ledger.wait_count(12)
    ledger.assert_once(["first began", "first ended", *(f"{number} False" for number in range(10))])
