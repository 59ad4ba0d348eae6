"""What a Celery user expects of a worker, with every pool that Celery has, on an embedded store.

The tests of a pool share one worker with two processes, threads or greenlets and events on.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kombu_opendata import QueueClient

from ..support.broker import EmbeddedBroker
from ..support.farm import Farm, Heard
from ..support.ledger import Ledger
from ..support.processes import children, wait_until
from ..support.workers import Worker, sender

pytestmark = pytest.mark.slow

POOLS = ["prefork", "solo", "threads", "gevent", "eventlet"]
#: those that answer remote control while a task runs
CONCURRENT = ["prefork", "threads", "gevent", "eventlet"]
PATIENCE_SECONDS = 60


def with_pools(*pools: str) -> pytest.MarkDecorator:
    """Only these pools can do what the test asks for."""
    return pytest.mark.parametrize("farm", pools, indirect=True, scope="module")


@pytest.fixture(scope="module", params=POOLS)
def farm(
    request: pytest.FixtureRequest, module_store_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Farm]:
    pool: str = request.param
    store = module_store_folder / pool
    url = f"opendata://{store}"
    folder = tmp_path_factory.mktemp(pool)
    with children() as started, sender(url) as app:
        worker = Worker(url, folder, pool, "-E", pool=pool, concurrency=2, include=["pools"])
        started.add(worker)
        worker.wait_ready()
        yield Farm(app, worker, EmbeddedBroker(store))
        app.control.shutdown(destination=[worker.name])
        assert worker.wait(PATIENCE_SECONDS) == 0
        assert tracebacks(worker.log.read_text()) == []


def tracebacks(log: str) -> list[str]:
    """The log's records with a traceback, but those of the tests' own time limits."""
    records = re.split(r"^(?=\[\d{4}-)", log, flags=re.MULTILINE)
    return [record for record in records if "Traceback" in record and "TimeLimitExceeded" not in record]


def settled(farm: Farm) -> None:
    farm.broker.wait_queue("celery", 0, 0, PATIENCE_SECONDS)


def consumed(farm: Farm) -> list[str]:
    """The queues that the worker consumes."""
    return sorted(queue["name"] for queue in farm.inspect("active_queues"))


def leave(farm: Farm, queue: str) -> None:
    """Have the worker consume the queue no more."""
    assert "ok" in farm.control("cancel_consumer", queue)
    # The answer comes before the deed where the worker's loop is a green one.
    wait_until(lambda: consumed(farm) == ["celery"], PATIENCE_SECONDS, lambda: str(consumed(farm)))


def test_tasks_run_once(farm: Farm, ledger: Ledger) -> None:
    names = [f"task {number}" for number in range(200)]
    for number, name in enumerate(names):
        farm.send("note_late" if number % 2 else "note", str(ledger), name)
    ledger.wait_count(200)
    settled(farm)
    ledger.assert_once(names)


@with_pools("gevent", "eventlet")
def test_a_green_worker_does_not_wait_after_each_delivery(farm: Farm, ledger: Ledger) -> None:
    """Celery's loop would wait 0.1 s for heartbeats each time: 300 tasks would take 30 s at the least."""
    names = [f"task {number}" for number in range(300)]
    with Heard(farm.app) as heard:
        ids = [farm.send("note", str(ledger), name) for name in names]
        began = time.monotonic()
        ledger.wait_count(300)
        assert time.monotonic() - began < 20
        wait_until(
            lambda: sum(event["type"] == "task-succeeded" for event in heard.events) == 300,
            PATIENCE_SECONDS,
            lambda: f"{len(heard.events)} events",
        )
    assert heard.types(ids[-1]) == ["task-received", "task-started", "task-succeeded"]
    settled(farm)
    ledger.assert_once(names)


def test_a_late_acknowledged_task_is_in_flight_while_it_runs(farm: Farm, ledger: Ledger, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    farm.send("hold_late", str(ledger), "late", str(gate))
    ledger.wait_for("late began")
    assert farm.broker.queue("celery") == (0, 1)
    gate.touch()
    settled(farm)
    ledger.assert_once(["late began", "late ended"])


def test_a_task_with_a_countdown_waits_in_the_store(farm: Farm, ledger: Ledger) -> None:
    farm.send("note", str(ledger), "far away", countdown=3600)
    assert farm.inspect("scheduled") == []
    assert farm.broker.queue("celery") == (1, 0)
    assert farm.app.control.purge() == 1
    sent = time.time()
    farm.send("stamp", str(ledger), "countdown", countdown=1)
    ledger.wait_count(1)
    settled(farm)
    (line,) = ledger.lines()
    assert float(line.split()[1]) - sent >= 1


def test_a_retry_comes_again_after_its_countdown(farm: Farm, ledger: Ledger) -> None:
    farm.send("stubborn", str(ledger), 2, 0.7)
    ledger.wait_count(3)
    settled(farm)
    tries = [line.split() for line in ledger.lines()]
    assert [words[1] for words in tries] == ["0", "1", "2"]
    at = [float(words[3]) for words in tries]
    assert at[1] - at[0] >= 0.6
    assert at[2] - at[1] >= 0.6


def test_a_task_delays_its_queue(farm: Farm, ledger: Ledger) -> None:
    farm.send("delay", str(ledger), "delayed", 3600)
    ledger.wait_for("delayed 0 True")
    farm.broker.wait_queue("celery", 1, 0)
    with QueueClient(f"opendata://{farm.broker.folder}") as client:
        client.delay_key("celery", 0)
    ledger.wait_for("delayed 1 False")
    settled(farm)


def test_revoked_tasks_do_not_run(farm: Farm, ledger: Ledger) -> None:
    """They wait in a queue that the worker consumes once they are revoked."""
    by_id = farm.send("note", str(ledger), "revoked", queue="later")
    farm.send("note", str(ledger), "stamped", queue="later", stamped_headers=["account"], account="a-1")
    farm.send("note", str(ledger), "other", queue="later", stamped_headers=["account"], account="a-2")
    farm.control("revoke", by_id)
    farm.control("revoke_by_stamped_headers", {"account": ["a-1"]})
    assert by_id in farm.inspect("revoked")
    assert farm.broker.queue("later") == (3, 0)
    assert "ok" in farm.control("add_consumer", "later")
    ledger.wait_for("other")
    farm.broker.wait_queue("later", 0, 0, PATIENCE_SECONDS)
    leave(farm, "later")
    ledger.assert_once(["other"])


@with_pools("prefork", "gevent", "eventlet")
def test_a_running_task_is_terminated(farm: Farm, ledger: Ledger, tmp_path: Path) -> None:
    running = farm.send("hold", str(ledger), "held", str(tmp_path / "gate"))
    ledger.wait_for("held began")
    wait_until(lambda: farm.inspect("active"), PATIENCE_SECONDS, "the task to be active")
    with Heard(farm.app) as heard:
        farm.control("revoke", running, terminate=True)
        wait_until(lambda: "task-revoked" in heard.types(running), PATIENCE_SECONDS, lambda: str(heard.events))
    wait_until(lambda: farm.inspect("active") == [], PATIENCE_SECONDS, lambda: str(farm.inspect("active")))
    farm.send("note", str(ledger), "after it")
    ledger.wait_for("after it")
    settled(farm)
    ledger.assert_once(["held began", "after it"])


@with_pools("prefork")
def test_time_limits(farm: Farm, ledger: Ledger, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    farm.send("limited", str(ledger), str(gate))
    ledger.wait_for("soft limit")
    with Heard(farm.app) as heard:
        killed = farm.send("hold", str(ledger), "hard", str(gate), time_limit=4)
        wait_until(lambda: "task-failed" in heard.types(killed), PATIENCE_SECONDS, lambda: str(heard.types(killed)))
    settled(farm)
    ledger.assert_once(["soft limit", "hard began"])


def test_rate_limits(farm: Farm, ledger: Ledger) -> None:
    assert "ok" in farm.control("rate_limit", "farm.stamp", "2/s")
    sent = time.time()
    for number in range(4):
        farm.send("stamp", str(ledger), str(number))
    ledger.wait_count(4)
    assert "ok" in farm.control("rate_limit", "farm.stamp", "0")
    # From the sending, not from the first one's run: that may be late, and the other three are not sooner for it.
    last = max(float(line.split()[1]) for line in ledger.lines())
    assert last - sent > 1.4, "four of them half a second apart"
    settled(farm)


def test_ping_and_stats(farm: Farm) -> None:
    assert farm.inspect("ping") == {"ok": "pong"}
    stats = farm.inspect("stats")
    assert stats["pid"] == farm.worker.pid
    assert stats["broker"]["transport"] == "opendata"
    assert "farm.note" in farm.inspect("registered")


@with_pools(*CONCURRENT)
def test_active_and_reserved(farm: Farm, ledger: Ledger, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    running = {farm.send("hold", str(ledger), f"held {number}", str(gate)) for number in range(2)}
    ledger.wait_for("held 0 began", "held 1 began")
    # One: a green pool that is full keeps the worker from receiving another.
    waiting = {farm.send("note", str(ledger), "waiting")}
    wait_until(
        lambda: {task["id"] for task in farm.inspect("reserved")} == waiting,
        PATIENCE_SECONDS,
        lambda: f"{waiting} reserved: {farm.inspect('reserved')}",
    )
    assert {task["id"] for task in farm.inspect("active")} == running
    gate.touch()
    ledger.wait_count(5)
    settled(farm)


def test_consumers_come_and_go(farm: Farm, ledger: Ledger) -> None:
    assert "ok" in farm.control("add_consumer", "extra")
    farm.send("note", str(ledger), "extra", queue="extra")
    ledger.wait_for("extra")
    leave(farm, "extra")
    farm.send("note", str(ledger), "too late", queue="extra")
    farm.send("note", str(ledger), "after it")
    ledger.wait_for("after it")
    assert farm.broker.queue("extra") == (1, 0)
    assert "too late" not in ledger.lines()
    assert "ok" in farm.control("add_consumer", "extra")
    ledger.wait_for("too late")
    assert "ok" in farm.control("cancel_consumer", "extra")
    settled(farm)


@with_pools("prefork", "gevent", "eventlet")
def test_the_pool_grows_and_shrinks(farm: Farm, ledger: Ledger, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    assert "ok" in farm.control("pool_grow", 2)
    for number in range(4):
        farm.send("hold", str(ledger), str(number), str(gate))
    ledger.wait_for(*(f"{number} began" for number in range(4)))
    gate.touch()
    ledger.wait_count(8)
    assert "ok" in farm.control("pool_shrink", 2)
    settled(farm)


def test_events_tell_what_happens_to_a_task(farm: Farm, ledger: Ledger) -> None:
    with Heard(farm.app) as heard:
        task_id = farm.send("note", str(ledger), "seen")
        wait_until(lambda: "task-succeeded" in heard.types(task_id), PATIENCE_SECONDS, lambda: str(heard.events))
    assert heard.types(task_id) == ["task-received", "task-started", "task-succeeded"]


def test_a_broker_kill_in_the_middle_is_invisible(farm: Farm, ledger: Ledger, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    farm.send("hold_late", str(ledger), "held", str(gate))
    ledger.wait_for("held began")
    names = [f"task {number}" for number in range(100)]
    for name in names[:50]:
        farm.send("note_late", str(ledger), name)
    killed = farm.broker.kill()
    for name in names[50:]:
        farm.send("note_late", str(ledger), name)
    assert farm.broker.wait_up(other_than=killed)
    gate.touch()
    ledger.wait_count(102)
    settled(farm)
    ledger.assert_once([*names, "held began", "held ended"])
    assert farm.inspect("ping") == {"ok": "pong"}
