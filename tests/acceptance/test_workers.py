"""Real Celery workers, each in processes of its own, on an embedded store that their first client starts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import pytest
from celery import Celery, chain, group
from kombu.exceptions import OperationalError

from kombu_opendata import QueueClient

from ..support.broker import EmbeddedBroker
from ..support.ledger import Ledger
from ..support.processes import Children, children, wait_until
from ..support.workers import APPS, MinglingWorker, Worker, sender

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
        worker = MinglingWorker(url, tmp_path_factory.mktemp(pool), pool, pool=pool, concurrency=2)
        started.add(worker)
        about = worker.wait_ready()
        broker = EmbeddedBroker(store)
        yield Farm(app, worker, broker, about)
        broker.wait_queue("celery", 0, 0)
        assert worker.terminate() == 0
        assert "Traceback" not in worker.log.read_text()


def wait_active(app: Celery, worker: Worker, number: int) -> None:
    """Until the worker's main process knows of so many running tasks; a child begins one a moment before."""
    inspect = app.control.inspect([worker.name], timeout=60)
    wait_until(lambda: len((inspect.active() or {}).get(worker.name, ())) == number, 60, f"{number} active tasks")


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


def test_a_task_sees_the_types_of_its_headers(farm: Farm, ledger: Ledger) -> None:
    sent = {"price": Decimal("1.50"), "due": [datetime(2026, 1, 2)]}
    farm.send("note_headers", str(ledger), headers=sent)
    ledger.wait_count(1)
    ledger.assert_once([str({"headers": sent, "price": sent["price"]})])


def test_a_worker_idles_while_its_queue_is_paused(farm: Farm, ledger: Ledger) -> None:
    """The queue's arguments are altered meanwhile; whoever declares it does not notice."""
    url = f"opendata://{farm.broker.folder}"
    names = [f"paused {number}" for number in range(20)]
    with QueueClient(url) as client:
        client.pause("celery", publishes=True)
        client.alter("celery", {"x-max-length": 100_000, "x-delivery-limit": 3})
        with pytest.raises(OperationalError, match="takes no publishes"):
            farm.send("note", str(ledger), "refused")
        client.resume("celery", publishes_only=True)
        for name in names:
            farm.send("note", str(ledger), name)
        inspect = farm.app.control.inspect([farm.worker.name], timeout=60)
        assert inspect.ping() == {farm.worker.name: {"ok": "pong"}}
        farm.broker.wait_queue("celery", 20, 0)
        farm.app.control.cancel_consumer("celery", [farm.worker.name], reply=True, timeout=60)
        farm.app.control.add_consumer("celery", destination=[farm.worker.name], reply=True, timeout=60)
        farm.broker.wait_queue("celery", 20, 0)
        client.resume("celery")
        ledger.wait_count(20)
        ledger.assert_once(names)
        client.alter("celery", reset=True)


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


# Not solo: its loop stands still while a task runs, and it writes its acknowledgements when it gets to it.
@pytest.mark.parametrize("farm", ["prefork", "threads"], indirect=True)
def test_an_early_acknowledged_task_is_done_while_it_runs(farm: Farm, ledger: Ledger, tmp_path: Path) -> None:
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


def test_a_running_task_delays_its_key_and_no_other(
    broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    """One task was acknowledged when it began, and is retried; the other is acknowledged when it ends."""
    gate = tmp_path / "gate"
    with sender(broker_url) as app, QueueClient(broker_url) as client:
        client.create("celery")
        client.alter("celery", {"x-partition-by": "tenant"})

        def send(task: str, tenant: str, *args: object) -> None:
            app.send_task(f"farm.{task}", (str(ledger), *args), headers={"tenant": tenant})

        def limits() -> dict[str, tuple[int, str]]:
            rows = client.list_partitions("celery").partitions
            return {row.key: (row.backlog, row.limited_by) for row in rows}

        send("delay", "early", "early", 3600)
        send("delay_late", "late", "late", 3600, str(gate))
        started.add(Worker(broker_url, tmp_path, "worker", pool="threads", concurrency=2, include=["pools"]))
        ledger.wait_for("early 0 True")
        ledger.wait_for("late 0 True")
        wait_until(lambda: limits() == {"early": (1, "delay"), "late": (0, "delay")}, 60, lambda: str(limits()))
        gate.touch()
        ledger.wait_for("late ended")
        for tenant in ("late", "early", "other"):
            send("note", tenant, f"note of {tenant}")
        ledger.wait_for("note of other")
        wait_until(lambda: limits() == {"early": (2, "delay"), "late": (1, "delay")}, 60, lambda: str(limits()))
        assert not {"note of early", "note of late", "early 1 False"} & set(ledger.lines())
        client.delay_key("celery", 0, key="late")
        ledger.wait_for("note of late")
        assert "note of early" not in ledger.lines()
        client.delay_key("celery", 0, key="early")
        ledger.wait_for("early 1 False")
        ledger.wait_for("note of early")


@pytest.mark.parametrize("pool", [pytest.param("solo", marks=pytest.mark.slow), "threads"])
def test_a_warm_shutdown_at_any_moment_loses_nothing(
    pool: str, store_folder: Path, broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    """Two held tasks are among the first ones: a test that is slow to stop the worker finds it there."""
    names, held = [f"task {number}" for number in range(150)], ["held 0", "held 1"]
    total, gate = len(names) + len(held), tmp_path / "gate"

    def done() -> int:
        return sum(not line.endswith("began") for line in ledger.lines())

    with sender(broker_url) as app:
        for number, name in enumerate(names):
            if number == 40:
                for hold in held:
                    app.send_task("farm.hold", (str(ledger), hold, str(gate)))
            app.send_task("farm.work", (str(ledger), name, 0.01))
    broker = EmbeddedBroker(store_folder)
    first = Worker(broker_url, tmp_path, "first", pool=pool, concurrency=2, worker_prefetch_multiplier=20)
    started.add(first)
    ledger.wait_count(20)
    first.process.terminate()
    wait_until(lambda: "Warm shutdown" in first.log.read_text(), 60, "the signal's handler")
    gate.touch()
    assert first.wait(60) == 0
    assert 20 <= done() < total, "stopped in the middle"
    assert broker.queue("celery") == (total - done(), 0), "what was not begun is back, at once"
    second = Worker(broker_url, tmp_path, "second", pool=pool, concurrency=2)
    started.add(second)
    wait_until(lambda: done() == total, 60, lambda: f"{total} tasks, not {done()}")
    assert second.terminate() == 0
    ledger.assert_once([*names, *(f"{hold} {what}" for hold in held for what in ("began", "ended"))])
    assert broker.queue("celery") == (0, 0)


def test_a_warm_shutdown_of_prefork_ends_what_runs_and_hands_back_the_rest(
    store_folder: Path, broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    """What comes back is there at once and costs no attempt.

    The stop waits until the main process knows what its children run. Celery 5.7, with RabbitMQ and Redis as well,
    drops a task from its books when the stop comes between a child's taking it and the main process's reading so: the
    task runs to its end, unacknowledged, and a child that nobody listens to any more takes another 30 seconds to exit.
    """
    gate = tmp_path / "gate"
    waiting = 10
    broker = EmbeddedBroker(store_folder)
    with sender(broker_url) as app:
        app.send_task("farm.hold_late", (str(ledger), "late", str(gate)))
        app.send_task("farm.hold", (str(ledger), "early", str(gate)))
        for number in range(waiting):
            app.send_task("farm.attempted", (str(ledger), str(number)))
        first = Worker(broker_url, tmp_path, "first", pool="prefork", concurrency=2, worker_prefetch_multiplier=20)
        started.add(first)
        ledger.wait_for("late began", "early began")
        broker.wait_queue("celery", 0, waiting + 1)
        wait_active(app, first, 2)
    first.process.terminate()
    wait_until(lambda: "Warm shutdown" in first.log.read_text(), 60, "the signal's handler")
    gate.touch()
    assert first.wait(30) == 0
    ran = ["late began", "late ended", "early began", "early ended"]
    ledger.assert_once(ran)
    assert broker.queue("celery") == (waiting, 0), "what was not begun is back, at once"
    second = Worker(broker_url, tmp_path, "second")
    started.add(second)
    ledger.wait_count(len(ran) + waiting)
    broker.wait_queue("celery", 0, 0)
    ledger.assert_once([*ran, *(f"{number} 0" for number in range(waiting))])


@pytest.mark.slow
def test_what_a_person_must_mend_is_logged_once_in_a_while(store_folder: Path, tmp_path: Path) -> None:
    folder = store_folder / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with children() as started:
        worker = Worker(f"opendata://{folder}", tmp_path, "patient")
        started.add(worker)
        wait_until(lambda: "chmod 700" in worker.log.read_text(), 60, "the error")
        folder.chmod(0o700)
        worker.wait_ready()
        assert worker.terminate() == 0
    log = worker.log.read_text()
    assert log.count("Cannot connect to") == 1
    assert "Frequent restarts" not in log
    EmbeddedBroker(folder).terminate()
