"""The queue client and kill -9: batches as a whole and once, keys used once, leases that end at their time."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import QueueClient
from tests.support.waiting import random_moment

from ..support.broker import EmbeddedBroker, Watch
from ..support.processes import Child, Children, wait_until
from ..support.seeds import seeded_random
from ..support.workers import APPS

pytestmark = [pytest.mark.slow, pytest.mark.contract(1)]

PROGRESS_SECONDS = 60
BATCH = 20

#: a client that outlasts several kills within one outage
patient = partial(QueueClient, start_timeout=60, reconnect_timeout=60)


def lines(files: list[Path]) -> list[list[int]]:
    return [[int(field) for field in line.split()] for file in files for line in file.read_text().splitlines()]


def test_keys_of_a_dropped_queue_stay_forgotten(store_folder: Path, broker_url: str) -> None:
    with patient(broker_url) as client:
        client.create("again")
        first = client.send("again", "a", idempotency_key="k")
        client.delete_queue("again")
        client.create("again")
        EmbeddedBroker(store_folder).kill()
        second = client.send("again", "a", idempotency_key="k")
        EmbeddedBroker(store_folder).kill()
        assert client.send("again", "a", idempotency_key="k") == second != first


@pytest.mark.parametrize("what", ["purge", "delete_queue"])
def test_a_removal_that_a_kill_cuts_in_two_returns_the_whole_count(
    store_folder: Path, broker_url: str, what: str
) -> None:
    total, batch, broker = 100_000, 5000, EmbeddedBroker(store_folder)
    with patient(broker_url) as client, ThreadPoolExecutor() as pool:
        client.create("many")
        for start in range(0, total, batch):
            client.send_batch("many", [str(number) for number in range(start, start + batch)])
        watch = Watch(store_folder)
        removing = pool.submit(getattr(client, what), "many")
        while (left := watch.report()["queues"]["many"]["available"]) == total:
            assert not removing.done()
        broker.kill()
        watch.close()
        assert left > 0, "it was not cut"
        assert removing.result(60) == total
        assert what == "delete_queue" or client.metrics("many").length == 0


def test_batches_and_keys_under_kills(store_folder: Path, broker_url: str, tmp_path: Path, started: Children) -> None:
    rounds, total = 6, 12_000
    dice = seeded_random()
    broker = EmbeddedBroker(store_folder)
    files = [tmp_path / f"confirmed{number}" for number in range(2)]
    senders = []
    for number, file in enumerate(files):
        file.touch()
        half = total // 2
        command = [sys.executable, str(APPS / "send_batches.py"), broker_url, str(file), str(number * half), str(half)]
        senders.append(Child(command, tmp_path / f"sender{number}.log", cwd=tmp_path))
        started.add(senders[-1])
    batches = total // BATCH
    killed: int | None = None
    for threshold in sorted(dice.randrange(1, batches) for _ in range(rounds)):
        wait_until(partial(reached, files, threshold), PROGRESS_SECONDS, lambda: f"{len(lines(files))} of {batches}")
        wait_until(partial(goes_on, broker, killed, senders), PROGRESS_SECONDS, "a broker")
        if all_ended(senders):  # nobody starts it again
            break
        pid = broker.wait_up(killed)
        random_moment(dice, 0.2)
        killed = broker.kill()
        assert killed == pid
    assert killed is not None
    for sender in senders:
        assert sender.wait(PROGRESS_SECONDS) == 0, sender.log.read_text()
    answered = lines(files)
    assert len(answered) == batches
    assert all(one == two for _number, one, two, _first, _last in answered)
    assert all(last - first == BATCH - 1 for *_rest, first, last in answered)
    with patient(broker_url) as client:
        numbers = drain(client, "batches")
        assert Counter(numbers.values()) == Counter(range(total))
        assert all(numbers[first] == number for number, _one, _two, first, _last in answered)
        keyed = drain(client, "keyed")
        assert keyed == {one: number for number, one, *_rest in answered}


def all_ended(senders: list[Child]) -> bool:
    return all(sender.ended for sender in senders)


def goes_on(broker: EmbeddedBroker, killed: int | None, senders: list[Child]) -> bool:
    return broker.pid() not in (None, killed) or all_ended(senders)


def reached(files: list[Path], threshold: int) -> bool:
    return len(lines(files)) >= threshold


def drain(client: QueueClient, queue: str) -> dict[int, Any]:
    """All that waits, by id."""
    found: dict[int, Any] = {}
    while read := client.pop(queue, 1000):
        found |= {message.id: message.body for message in read}
    return found


def test_ten_senders_with_one_key_and_a_kill(store_folder: Path, broker_url: str) -> None:
    broker = EmbeddedBroker(store_folder)
    with patient(broker_url) as client:
        client.create("q")
        for turn in range(5):
            answers: list[int] = []
            gate = threading.Barrier(11)
            threads = [
                threading.Thread(target=send_one, args=(broker_url, f"key-{turn}", gate, answers)) for _ in range(10)
            ]
            for thread in threads:
                thread.start()
            gate.wait(30)
            if turn % 2:
                broker.kill()
            for thread in threads:
                thread.join(100)
            assert len(answers) == 10
            assert len(set(answers)) == 1, turn
        assert client.metrics("q").length == 5


def send_one(url: str, key: str, gate: threading.Barrier, answers: list[int]) -> None:
    with QueueClient(url, reconnect_timeout=90, start_timeout=90) as client:  # ten of them start a broker
        client.heartbeat()
        gate.wait(30)
        answers.append(client.send("q", "body", idempotency_key=key))


def test_a_key_is_known_after_kills_and_a_clean_restart(store_folder: Path, broker_url: str) -> None:
    broker = EmbeddedBroker(store_folder)
    with patient(broker_url) as client:
        client.create("q")
        first = client.send("q", "a", idempotency_key="k")
        broker.kill()
        assert client.send("q", "a", idempotency_key="k") == first
        client.pop("q")
        broker.terminate()
        assert client.send("q", "a", idempotency_key="k") == first
        assert client.metrics("q").length == 0


@pytest.mark.parametrize("end", [EmbeddedBroker.kill, EmbeddedBroker.terminate], ids=["kill", "sigterm"])
def test_timed_leases_outlive_the_broker_and_end_at_their_time(store_folder: Path, broker_url: str, end: Any) -> None:
    broker = EmbeddedBroker(store_folder)
    with patient(broker_url, name="reader") as client:
        client.create("q")
        ids = client.send_batch("q", ["long", "short", "extended", "deleted", "archived"])
        long, short, extended, deleted, archived = client.read("q", 3600, 5)
        until = client.set_vt("q", short, 1.5)
        client.extend(extended, 7200)
        client.delete("q", deleted)
        client.archive("q", archived)
        end(broker)
        (again,) = client.read_with_poll("q", 60, 5, max_poll_seconds=60)
        assert datetime.now(UTC) >= until
        assert (again.id, again.attempts, again.redelivered) == (ids[1], 2, True)
        states = {state.id: state for state in client.iter_by_state("q", "in_flight")}
        assert {id: state.holder for id, state in states.items()} == dict.fromkeys(ids[:3], "reader")
        assert states[ids[2]].leased_until > states[ids[0]].leased_until  # type: ignore[operator]
        client.archive("q", long)  # its token is good
        assert [state.id for state in client.iter_by_state("q", "done")] == [ids[4], ids[0]]


def test_a_poll_goes_on_over_a_kill(store_folder: Path, broker_url: str) -> None:
    broker = EmbeddedBroker(store_folder)
    with patient(broker_url) as client:
        client.create("q")

        def connections() -> int:
            return sum(worker.connections for worker in client.workers())

        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.extend(client.read_with_poll("q", max_poll_seconds=300)))
        thread.start()
        wait_until(lambda: connections() == 2, 60, "the poll's connection")
        for _ in range(2):
            broker.kill()
            wait_until(lambda: connections() == 2, 60, "the poll's connection to be back")
        client.send("q", "a")
        thread.join(60)
        assert [message.body for message in found] == ["a"]


def test_an_iterator_goes_on_over_a_kill(store_folder: Path, broker_url: str) -> None:
    broker = EmbeddedBroker(store_folder)
    with patient(broker_url) as client:
        client.create("q")
        client.send_batch("q", range(100))
        seen = []
        for message in client.consume("q", prefetch=10, timeout=60):
            seen.append(message.body)
            if message.body in (10, 40):
                broker.kill()
            client.ack(message)
            if len(seen) == 100:
                break
        assert seen == list(range(100))
        assert client.metrics("q").length == 0
