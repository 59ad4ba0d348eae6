"""A queue's limits with real workers: no more tasks at a time than there are slots, also after a worker's kill."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

import pytest

from kombu_opendata.queue_client import QueueClient, QueueOptions

from ..support.broker import EmbeddedBroker
from ..support.ledger import Ledger
from ..support.processes import Children, wait_until
from ..support.workers import Worker, sender

pytestmark = [pytest.mark.slow, pytest.mark.contract(16)]

TASKS = 12
SLOTS = 3


def test_a_killed_worker_frees_its_slots(
    store_folder: Path, broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    """Two workers with four processes each share three slots; the tasks of the one that is killed are lost."""
    gates = [tmp_path / f"gate {number}" for number in range(TASKS)]

    def began() -> list[int]:
        return [int(line.split()[0]) for line in ledger.lines() if line.endswith("began")]

    def running() -> int:
        return len(began()) - sum(line.endswith("ended") for line in ledger.lines())

    with sender(broker_url) as app, QueueClient(broker_url) as client:
        client.create("celery")
        client.alter("celery", QueueOptions(concurrency=SLOTS))
        for number, gate in enumerate(gates):
            app.send_task("farm.hold", (str(ledger), str(number), str(gate)))
        first = Worker(broker_url, tmp_path, "first", pool="prefork", concurrency=4)
        started.add(first)
        ledger.wait_count(SLOTS)
        second = Worker(broker_url, tmp_path, "second", pool="prefork", concurrency=4)
        started.add(second)
        second.wait_ready()
        client.alter("celery", {"x-concurrency": SLOTS + 1})
        ledger.wait_count(SLOTS + 1)
        client.alter("celery", {"x-concurrency": SLOTS})
        gates[began()[0]].touch()  # four run and three may: nothing starts in its place
        wait_until(lambda: running() == SLOTS, 60, lambda: f"{running()} tasks")
        lines = ledger.lines()
        first.kill()
        first.clean_up()
        ledger.wait_count(len(lines) + 1)
        for gate in gates:
            gate.touch()
        EmbeddedBroker(store_folder).wait_queue("celery", 0, 0)
        wait_until(lambda: set(began()) == set(range(TASKS)), 60, lambda: str(ledger.lines()))
        second.terminate()
    assert most_running(lines) == SLOTS + 1
    ended = next(number for number, line in enumerate(lines) if line.endswith("ended"))
    assert len(lines) == ended + 1


def most_running(lines: list[str]) -> int:
    counts = accumulate(1 if line.endswith("began") else -1 for line in lines)
    return max(counts)


#: slots, deliveries in a second, and burst
QUEUE, PARTITION = (4, 20, 4), (2, 10, 2)
#: the last one has the tasks that run when a worker is killed
TENANTS = "abcd"
POOLS = ("prefork", "threads", "gevent")


def test_a_fleet_under_kills_keeps_all_limits(
    store_folder: Path, broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    """The broker is killed, and a worker of each pool while it runs a task; half of the tasks are acknowledged late."""
    with sender(broker_url) as app, QueueClient(broker_url, reconnect_timeout=60) as client:
        client.create("celery")
        (slots, rate, burst), (own_slots, own_rate, own_burst) = QUEUE, PARTITION
        limits = QueueOptions(
            concurrency=slots, rate=f"{rate}/s:{burst}", partition_by="tenant", partition_concurrency=own_slots,
            partition_rate=f"{own_rate}/s:{own_burst}", lease_seconds=30,
        )  # fmt: skip
        client.alter("celery", limits)
        for number in range(90):
            tenant, task = TENANTS[number % 3], ("farm.span", "farm.span_late")[number % 2]
            app.send_task(task, (str(ledger), f"{tenant}{number}", 0.05), headers={"tenant": tenant})

        def start(name: str, pool: str) -> Worker:
            worker = Worker(broker_url, tmp_path, name, pool=pool, concurrency=3, include=["pools"])
            started.add(worker)
            return worker

        workers = {worker.name: (pool, worker) for pool in POOLS for worker in (start(pool, pool),)}
        broker = EmbeddedBroker(store_folder)
        ledger.wait_count(30)
        broker.kill()
        killed_at: dict[str, float] = {}
        held: list[str] = []
        while workers:
            ledger.wait_count(min(60 + 20 * len(killed_at), 100))
            gate = tmp_path / f"gate {len(held)}"
            held.append(f"d{len(held)}")
            app.send_task("farm.span_late", (str(ledger), held[-1], 0, str(gate)), headers={"tenant": "d"})
            where = place_of(held[-1], ledger)
            if where in workers:
                pool, worker = workers.pop(where)
                killed_at[where] = time.time()
                worker.kill()
                worker.clean_up()
                start(f"second-{pool}", pool)
            gate.touch()
        broker.wait_queue("celery", 0, 0, 180)  # a worker that was killed before it reconnected holds its lease
        wait_until(lambda: not client.list_messages(statuses=["running"]).items, 60, "the end of all tasks")
        attempts = client.list_attempts(limit=1000).items
    runs: dict[str, dict[str, float]] = defaultdict(dict)
    tenants: dict[str, str] = {}
    places: dict[str, str] = {}
    for line in ledger.lines():
        name, run, place, what, at = line.split()
        places[run] = place
        runs[run][what], tenants[run] = float(at), name[0]
    killed = {run for run, times in runs.items() if "ended" not in times}
    assert {places[run] for run in killed} == set(killed_at), "each kill hit a running task"
    for run in killed:
        runs[run]["ended"] = killed_at[places[run]]
    late = {f"{TENANTS[number % 3]}{number}" for number in range(1, 90, 2)} | set(held)
    assert late <= {line.split()[0] for line in ledger.lines() if " ended " in line}
    claims = {(attempt.message_id, attempt.claimed_at_ms): attempt for attempt in attempts if attempt.event}
    check(runs.values(), [at for _id, at in claims], *QUEUE)
    for tenant in TENANTS:
        own = [at for (_id, at), one in claims.items() if one.event and one.event.headers["tenant"] == tenant]
        check([runs[run] for run in runs if tenants[run] == tenant], own, *PARTITION)


def place_of(name: str, ledger: Ledger) -> str:
    """Return the name of the worker that runs this task, once it runs."""

    def places() -> list[str]:
        return [line.split()[2] for line in ledger.lines() if line.startswith(f"{name} ")]

    wait_until(places, 60, lambda: f"{name} runs:\n{ledger.lines()}")
    return places()[-1]


def check(runs: Iterable[dict[str, float]], claimed_at_ms: Iterable[int], slots: int, rate: int, burst: int) -> None:
    """Count the tasks that run at a time, and the deliveries and the starts in a second. A kill ends a run.

    A start is later than its delivery, by at most as many deliveries as there are slots.
    """
    edges = [(run["began"], 1) for run in runs] + [(run["ended"], -1) for run in runs]
    assert max(accumulate(change for _at, change in sorted(edges))) <= slots
    assert most_in_a_second(at / 1000 for at in claimed_at_ms) <= rate + burst
    assert most_in_a_second(run["began"] for run in runs) <= rate + burst + slots


def most_in_a_second(times: Iterable[float]) -> int:
    ordered = sorted(times)
    return max(sum(first <= at < first + 1 for at in ordered) for first in ordered)
